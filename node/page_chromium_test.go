package node_test

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

// browserWait bounds every wait for the browser, on a machine that does much else.
const browserWait = 60 * time.Second

// tab is a tab with its own cookies, and what its console said.
type tab struct {
	t    *testing.T
	ctx  context.Context
	page *ownerPage

	mu       sync.Mutex
	problems []string
}

// newTab opens a tab. It fails the test at its end where a script failed, the policy blocked something, or a dialog
// opened.
func newTab(t *testing.T, browser context.Context, p *ownerPage) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	tb := &tab{t: t, ctx: ctx, page: p}
	messages := chromedp.Console(ctx)
	dialogs := chromedp.Events(ctx, page.JavascriptDialogOpening)
	var listening sync.WaitGroup
	listening.Go(func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			tb.hear(m)
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
		for _, text := range tb.said() {
			t.Errorf("the browser says: %s", text)
		}
	})
	tb.do(chromedp.EmulateViewport(1200, 900))
	return tb
}

func (tb *tab) hear(m chromedp.ConsoleMessage) {
	switch m.Type {
	case chromedp.ConsoleError, chromedp.ConsoleWarning, chromedp.ConsoleException:
		tb.complain(fmt.Sprintf("%s: %s %s", m.Type, m.Text, m.URL))
	}
}

func (tb *tab) complain(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.problems = append(tb.problems, text)
}

// said returns what the browser complained about.
func (tb *tab) said() []string {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return slices.Clone(tb.problems)
}

// forgive drops complaints that hold text, where the test provoked them.
func (tb *tab) forgive(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.problems = slices.DeleteFunc(tb.problems, func(p string) bool { return strings.Contains(p, text) })
}

func (tb *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, browserWait)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tb.t.Fatalf("browser: %v\n%s", err, tb.text())
	}
}

// see returns what an action brings.
func see[T any](tb *tab, action chromedp.Action[T]) T {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, browserWait)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		tb.t.Fatalf("browser: %v\n%s", err, tb.text())
	}
	return v
}

// text is what the page shows, for messages of tests.
func (tb *tab) text() string {
	ctx, cancel := context.WithTimeout(tb.ctx, 5*time.Second)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
	if err != nil {
		return "(no page: " + err.Error() + ")"
	}
	return out
}

// eval returns what a script says.
func eval[T any](tb *tab, script string) T {
	tb.t.Helper()
	return see(tb, chromedp.Evaluate[T](script))
}

// until waits for a script to say true. It asks from outside: the policy of the page lets nothing inside evaluate text.
func (tb *tab) until(script string) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, browserWait)
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

// shows waits until the page shows a text.
func (tb *tab) shows(text string) {
	tb.t.Helper()
	tb.until(fmt.Sprintf(`document.body && document.body.innerText.includes(%q)`, text))
}

// live waits until the page hears what changes.
func (tb *tab) live() {
	tb.t.Helper()
	tb.until(`document.getElementById("stream").textContent === "Live"`)
}

// open goes to a page and signs in where it is asked to.
func (tb *tab) open(path string) {
	tb.t.Helper()
	tb.do(chromedp.Navigate(tb.page.url(path)))
	if eval[bool](tb, `!!document.getElementById("secret") && location.pathname.endsWith("/login")`) && path != "login" {
		tb.do(chromedp.SendKeys("#secret", tb.page.token+"\r"), chromedp.WaitVisible("#nav"))
	}
}

// click presses a button as a pointer does.
func (tb *tab) click(selector string) {
	tb.t.Helper()
	tb.do(chromedp.WaitVisible(selector), chromedp.Click(selector))
}

// size sets the viewport.
func (tb *tab) size(width, height int64) {
	tb.t.Helper()
	tb.do(chromedp.EmulateViewport(width, height))
}

// call sends a command of the protocol to the tab.
func call[P, R any](tb *tab, cmd cdp.Command[P, R], params P) R {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, browserWait)
	defer cancel()
	v, err := chromedp.Call(ctx, cmd, params)
	if err != nil {
		tb.t.Fatalf("browser: %s: %v", cmd.Method, err)
	}
	return v
}

// scheme sets the colour scheme that the reader prefers.
func (tb *tab) scheme(name string) {
	tb.t.Helper()
	call(tb, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}
