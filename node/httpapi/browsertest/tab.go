package browsertest

import (
	"context"
	"fmt"
	"os"
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

// patience bounds every wait for the browser. It is long enough for a busy machine.
const patience = 60 * time.Second

// Tab is a browser tab with its own cookies. When the test ends, Tab fails it if a script of the page failed, a browser
// policy blocked something, or a dialog opened.
type Tab struct {
	t   testing.TB
	ctx context.Context

	scriptless bool // scripts are turned off

	mu       sync.Mutex
	problems []string
	forgiven []string // texts of problems that the test provokes
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
				tb.addProblem(fmt.Sprintf("%s: %s %s", m.Type, m.Text, m.URL))
			}
		}
	})
	listening.Go(func() {
		for d, err := range dialogs {
			if err != nil {
				return
			}
			tb.addProblem("dialog: " + d.Message)
		}
	})
	t.Cleanup(func() {
		cancel()
		listening.Wait()
		tb.mu.Lock()
		defer tb.mu.Unlock()
		for _, text := range tb.problems {
			t.Errorf("the browser reports: %s", text)
		}
	})
	tb.Size(1200, 900)
	return tb
}

func (tb *Tab) addProblem(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if !slices.ContainsFunc(tb.forgiven, func(part string) bool { return strings.Contains(text, part) }) {
		tb.problems = append(tb.problems, text)
	}
}

// Forgive drops reported and later problems that contain text, because the test provokes them.
func (tb *Tab) Forgive(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.forgiven = append(tb.forgiven, text)
	tb.problems = slices.DeleteFunc(tb.problems, func(p string) bool { return strings.Contains(p, text) })
}

// Do runs actions in order.
func (tb *Tab) Do(actions ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tb.t.Fatalf("browser: %v\n%s", err, tb.text())
	}
}

// try runs an action and reports whether its DOM node still existed. Scripts see a new page before chromedp does, so
// chromedp may look for a node of the previous page.
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

func (tb *Tab) text() string {
	ctx, cancel := context.WithTimeout(tb.ctx, 5*time.Second)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
	if err != nil {
		return "(no page: " + err.Error() + ")"
	}
	return out
}

// Eval returns the result of a script.
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

// Until waits until a script returns true.
func (tb *Tab) Until(script string) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	tick := time.Tick(20 * time.Millisecond)
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+script+")"))
		if err == nil && ok {
			return
		}
		select {
		case <-tick: // a page may fail while it changes
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

// Open opens a page. If the owner's page shows its sign-in form, Open signs in with secret.
func (tb *Tab) Open(url, secret string) {
	tb.t.Helper()
	tb.Do(chromedp.Navigate(url))
	if Eval[bool](tb, `!!document.getElementById("secret") && location.pathname.endsWith("/login")`) {
		tb.Do(chromedp.SendKeys("#secret", secret+"\r"), chromedp.WaitVisible("#nav"))
	}
}

// Click clicks the element that selector finds. It waits until the element stops moving, because layout or a late image
// could move it away from the pointer. Click tries again if the page changed under the pointer anyway, or if the
// owner's page refused the click because its list had just changed.
func (tb *Tab) Click(selector string) {
	tb.t.Helper()
	for end := time.Now().Add(patience); ; {
		if tb.try(chromedp.WaitVisible(selector)) && tb.press(selector) {
			return
		}
		if time.Now().After(end) {
			tb.t.Fatalf("the page accepts no click on %s; it shows\n%s", selector, tb.text())
		}
	}
}

// press waits until the element stops moving, and clicks it once. It reports whether the page took the click or was
// replaced.
func (tb *Tab) press(selector string) bool {
	tb.t.Helper()
	place := fmt.Sprintf(`(() => {
		const r = document.querySelector(%q)?.getBoundingClientRect();
		const ready = r && document.readyState === "complete" && [...document.images].every(i => i.complete);
		return ready ? [r.left, r.top + scrollY, r.width, r.height].join() : "";
	})()`, selector)
	for previous := ""; ; time.Sleep(50 * time.Millisecond) {
		tb.Until(place)
		current := Eval[string](tb, place)
		if current == previous && current != "" {
			break
		}
		previous = current
	}
	if tb.scriptless { // without scripts nothing moves and no click is refused
		return tb.try(chromedp.Click(selector))
	}
	// To refuse a click, the owner's page stops the event in the capture phase at document. So a refused click never
	// reaches this listener on window, which runs in the bubbling phase.
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
	return err != nil || !refused // clickTaken is undefined on a next page
}

// WaitUntilStable waits until the owner's page accepts clicks again after a change, and no further change is in flight.
// It waits for the event stream first, because the page may fetch its content again when the stream connects.
func (tb *Tab) WaitUntilStable() {
	tb.t.Helper()
	tb.Until(`!document.body.dataset.events || document.getElementById("stream").textContent === "Live"`)
	tb.Until(`(() => {
		const changed = () => { window.changeSeen = performance.now(); };
		if (!window.changeSeen) document.body.addEventListener("htmx:afterSwap", changed);
		if (!window.changeSeen || document.querySelector(".htmx-request")) changed();
		return performance.now() - window.changeSeen > 600;
	})()`)
	tb.Until(`(window.changeSeen = performance.now())`) // so that the next call waits, too
}

// Live waits until the owner's page has loaded and its event stream is connected.
func (tb *Tab) Live() {
	tb.t.Helper()
	tb.Until(`!window.leaving && document.readyState === "complete" && document.getElementById("stream").textContent === "Live"`)
}

// Leaves marks the current page as being replaced, so that [Tab.Live] waits for the next page.
func (tb *Tab) Leaves() {
	tb.t.Helper()
	tb.Until(`(window.leaving = true)`)
}

// Submit clicks a form button on the owner's page, then waits for the next page with [Tab.Live]. Before that, the page
// could miss changes and lose typed text.
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

// Picture writes what the tab shows as a PNG image.
func (tb *Tab) Picture(file string) {
	tb.t.Helper()
	shot := Call(tb, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: "png"})
	if err := os.WriteFile(file, shot.Data, 0o644); err != nil {
		tb.t.Fatal(err)
	}
}

// Axe is the environment variable with the path of axe.min.js, which looks for accessibility barriers in pages.
const Axe = "AXE"

// HasAxe reports whether [Axe] names a script.
func HasAxe() bool { return os.Getenv(Axe) != "" }

// Barriers runs axe on the page and returns its violations, one on each line.
func (tb *Tab) Barriers() string {
	tb.t.Helper()
	script, err := os.ReadFile(os.Getenv(Axe))
	if err != nil {
		tb.t.Fatalf("%s must name axe.min.js: %v", Axe, err)
	}
	Eval[bool](tb, string(script)+`;
		window.barriers = undefined;
		axe.run({ resultTypes: ["violations"] }).then(
			(r) => { window.barriers = r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + v.help + ": " + n.html.slice(0, 160))).join("\n"); },
			(e) => { window.barriers = String(e); });
		true`)
	tb.Until(`window.barriers !== undefined`)
	return Eval[string](tb, `window.barriers`)
}

// CheckBarriers reports axe's violations on the page, light and dark, on a screen and on a phone, as errors of the
// test. It does nothing without axe. The tab keeps the last size and color scheme.
func (tb *Tab) CheckBarriers() {
	tb.t.Helper()
	if !HasAxe() {
		return
	}
	for _, size := range [][2]int64{{1280, 900}, {390, 844}} {
		tb.Size(size[0], size[1])
		for _, scheme := range []string{"light", "dark"} {
			tb.Scheme(scheme)
			if found := tb.Barriers(); found != "" {
				tb.t.Errorf("%s, %d, %s:\n%s", Eval[string](tb, `location.pathname`), size[0], scheme, found)
			}
		}
	}
}

// Scheme sets the color scheme that the page sees: light or dark.
func (tb *Tab) Scheme(name string) {
	tb.t.Helper()
	Call(tb, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}

// WithoutScript turns off the scripts of pages in this tab.
func (tb *Tab) WithoutScript() {
	tb.t.Helper()
	tb.scriptless = true
	Call(tb, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// Call sends a command of the Chrome DevTools Protocol to the tab and returns its result.
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
