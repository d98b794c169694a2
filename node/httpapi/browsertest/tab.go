package browsertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// patience bounds every wait for the browser, on a machine that does much else.
const patience = 60 * time.Second

// Tab is a tab with its own cookies. It fails the test at its end where a script failed, a policy blocked something, or
// a dialog opened.
type Tab struct {
	t   testing.TB
	ctx context.Context

	scriptless bool

	mu       sync.Mutex
	problems []string
}

// NewTab opens a tab of a browser that [Start] returned.
func NewTab(t testing.TB, browser context.Context) *Tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	tb := &Tab{t: t, ctx: ctx}
	messages, dialogs := chromedp.Console(ctx), chromedp.Events(ctx, page.JavascriptDialogOpening)
	var listening sync.WaitGroup
	listening.Go(func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if slices.Contains([]chromedp.ConsoleType{chromedp.ConsoleError, chromedp.ConsoleWarning, chromedp.ConsoleException}, m.Type) {
				tb.complain(fmt.Sprintf("%s: %s %s", m.Type, m.Text, m.URL))
			}
		}
	})
	listening.Go(func() {
		for d, err := range dialogs {
			if err != nil {
				return
			}
			tb.complain("dialog: " + d.Message)
		}
	})
	t.Cleanup(func() {
		cancel()
		listening.Wait()
		tb.mu.Lock()
		defer tb.mu.Unlock()
		for _, text := range tb.problems {
			t.Errorf("the browser says: %s", text)
		}
	})
	tb.Size(1200, 900)
	return tb
}

func (tb *Tab) complain(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.problems = append(tb.problems, text)
}

// Forgive drops complaints of the browser that hold text, where the test provoked them.
func (tb *Tab) Forgive(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.problems = slices.DeleteFunc(tb.problems, func(p string) bool { return strings.Contains(p, text) })
}

// Do carries out actions, in order.
func (tb *Tab) Do(actions ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tb.t.Fatalf("browser: %v\n%s", err, tb.text())
	}
}

// try carries out an action and reports whether its node was there. A script sees a new page before the driver does, which
// may still look for a node of the page before.
func (tb *Tab) try(action chromedp.Action[chromedp.Void]) bool {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	err := chromedp.Do(ctx, action)
	isStale := err != nil && strings.Contains(strings.ToLower(err.Error()), "not find node with given id")
	if err != nil && !isStale {
		tb.t.Fatalf("browser: %v\n%s", err, tb.text())
	}
	return !isStale
}

// text is what the page shows, for messages of tests.
func (tb *Tab) text() string {
	ctx, cancel := context.WithTimeout(tb.ctx, 5*time.Second)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
	if err != nil {
		return "(no page: " + err.Error() + ")"
	}
	return out
}

// Eval returns what a script says.
func Eval[T any](tb *Tab, script string) T {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		tb.t.Fatalf("browser: %s: %v\n%s", script, err, tb.text())
	}
	return v
}

// Until waits for a script to say true.
func (tb *Tab) Until(script string) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+script+")"))
		if err == nil && ok {
			return
		}
		select {
		case <-tick.C: // an error may come of a page that is just changing
		case <-ctx.Done():
			tb.t.Fatalf("%s never came true (%v); the page shows\n%s", script, err, tb.text())
		}
	}
}

// Shows waits until the page shows a text.
func (tb *Tab) Shows(text string) {
	tb.t.Helper()
	tb.Until(fmt.Sprintf(`document.body && document.body.innerText.includes(%q)`, text))
}

// Hides waits until the page does not show a text.
func (tb *Tab) Hides(text string) {
	tb.t.Helper()
	tb.Until(fmt.Sprintf(`document.body && !document.body.innerText.includes(%q)`, text))
}

// Open goes to a page. Where the owner's page asks who is there, secret signs in.
func (tb *Tab) Open(url, secret string) {
	tb.t.Helper()
	tb.Do(chromedp.Navigate(url))
	if Eval[bool](tb, `!!document.getElementById("secret") && location.pathname.endsWith("/login")`) {
		tb.Do(chromedp.SendKeys("#secret", secret+"\r"), chromedp.WaitVisible("#nav"))
	}
}

// Click presses what a selector finds, as a pointer does, once it stands still: a page that is just being laid out,
// or a picture above that is still being read, would move it from under the pointer. Click presses again if the page
// changed under the pointer all the same, or refused the click because it had just changed.
func (tb *Tab) Click(selector string) {
	tb.t.Helper()
	for end := time.Now().Add(patience); ; {
		if tb.try(chromedp.WaitVisible(selector)) && tb.press(selector) {
			return
		}
		if time.Now().After(end) {
			tb.t.Fatalf("no click on %s is taken; the page shows\n%s", selector, tb.text())
		}
	}
}

// press clicks on what a selector finds. It reports whether the page took the click, or makes way for another page.
func (tb *Tab) press(selector string) bool {
	tb.t.Helper()
	place := fmt.Sprintf(`(() => {
		const r = document.querySelector(%q)?.getBoundingClientRect();
		const ready = r && document.readyState === "complete" && [...document.images].every(i => i.complete);
		return ready ? [r.left, r.top + scrollY, r.width, r.height].join() : "";
	})()`, selector)
	for was := ""; ; time.Sleep(50 * time.Millisecond) {
		tb.Until(place)
		is := Eval[string](tb, place)
		if is == was && is != "" {
			break
		}
		was = is
	}
	if tb.scriptless { // then nothing moves, and nothing refuses a click
		return tb.try(chromedp.Click(selector))
	}
	// The owner's page stops a click that it refuses on its way down, in document.
	if !Eval[bool](tb, fmt.Sprintf(`(() => {
		const on = (e) => e.target instanceof Element && e.target.closest(%q);
		window.clickTaken = false;
		window.addEventListener("click", (e) => { if (on(e)) window.clickTaken = true; }, { once: true });
		return true;
	})()`, selector)) {
		return false
	}
	if !tb.try(chromedp.Click(selector)) {
		return false
	}
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	refused, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`window.clickTaken === false`))
	return err != nil || !refused // the next page knows nothing of the click
}

// Settled waits until a click is taken again after a change of the owner's page, and no other change is on its way: the
// page may fetch anew what it shows when it begins to follow changes.
func (tb *Tab) Settled() {
	tb.t.Helper()
	tb.Until(`!document.body.dataset.events || document.getElementById("stream").textContent === "Live"`)
	tb.Until(`(() => {
		const changed = () => { window.changeSeen = performance.now(); };
		if (!window.changeSeen) document.body.addEventListener("htmx:afterSwap", changed);
		if (!window.changeSeen || document.querySelector(".htmx-request")) changed();
		return performance.now() - window.changeSeen > 600;
	})()`)
	tb.Until(`(window.changeSeen = performance.now())`)
}

// Live waits until the owner's page follows what changes.
func (tb *Tab) Live() {
	tb.t.Helper()
	tb.Until(`!window.leaving && document.readyState === "complete" && document.getElementById("stream").textContent === "Live"`)
}

// Leaves notes that this page makes way for another one: what [Tab.Live] waits for is the next page.
func (tb *Tab) Leaves() {
	tb.t.Helper()
	tb.Until(`(window.leaving = true)`)
}

// Submit presses a button of a form of the owner's page and waits for the page that answers it, as [Tab.Live] does. Until
// then what changes may be missed, and what is typed is lost.
func (tb *Tab) Submit(selector string) {
	tb.t.Helper()
	tb.Leaves()
	tb.Click(selector)
	tb.Live()
}

// Size sets the viewport.
func (tb *Tab) Size(width, height int64) {
	tb.t.Helper()
	tb.Do(chromedp.EmulateViewport(width, height))
}

// WithoutScript has the tab run no scripts of pages.
func (tb *Tab) WithoutScript() {
	tb.t.Helper()
	tb.scriptless = true
	Call(tb, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// Call sends a command of the browser's protocol to the tab.
func Call[P, R any](tb *Tab, cmd cdp.Command[P, R], params P) R {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	v, err := chromedp.Call(ctx, cmd, params)
	if err != nil {
		tb.t.Fatalf("browser: %s: %v", cmd.Method, err)
	}
	return v
}
