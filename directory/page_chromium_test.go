package directory

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
)

// browserWait bounds every wait for the browser, on a machine that does much else.
const browserWait = 60 * time.Second

// browser starts a browser. The test fails where its console complains.
func browser(t *testing.T) context.Context {
	t.Helper()
	var listening sync.WaitGroup
	t.Cleanup(listening.Wait) // after the browser has stopped
	ctx := browsertest.Start(t)
	messages := chromedp.Console(ctx)
	listening.Go(func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			switch m.Type {
			case chromedp.ConsoleError, chromedp.ConsoleWarning, chromedp.ConsoleException:
				t.Errorf("the browser says: %s: %s %s", m.Type, m.Text, m.URL)
			}
		}
	})
	return ctx
}

func do(t *testing.T, browser context.Context, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(browser, browserWait)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatalf("browser: %v", err)
	}
}

func see[T any](t *testing.T, browser context.Context, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(browser, browserWait)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatalf("browser: %v", err)
	}
	return v
}

// until waits for a script to say true.
func until(t *testing.T, browser context.Context, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(browser, browserWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+script+")")); err == nil && ok {
			return
		}
		select {
		case <-tick.C: // an error may come of a page that is just changing
		case <-ctx.Done():
			text := see(t, browser, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
			t.Fatalf("%s never came true; the page is\n%s", script, text)
		}
	}
}

// TestFaceInBrowser looks at the pages as people do: light and dark, on a telephone and on a desk, with the keyboard
// alone. Nothing may stick out sideways and no text may be faint. AGENTMESH_SCREENSHOTS names a folder for pictures.
func TestFaceInBrowser(t *testing.T) {
	browser := browser(t)
	w := newWorld(t, func(c *Config) { c.Local, c.BaseURL = true, "http://localhost/v1" })
	w.register(alice, testCard("am_sarah", text("name", "Sarah's Assistant"), text("description", "Books meetings in Zürich and answers mail"),
		members("capabilities", "scheduling", "travel.transit", "a-capability-with-a-name-that-is-much-longer-than-any-line-of-a-telephone-and-has-no-blank"),
		obj("owner", text("name", "Sarah Okafor")), text("public_key", testKey("am_sarah").PublicText())))
	w.register(alice, testCard("am_long", text("name", "Wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww"),
		text("description", "京都の案内 — دليل القاهرة — Ξεναγός "+hostile)))
	for i := range 30 {
		w.register(alice, testCard(fmt.Sprintf("am_%03d", i), text("description", "One of many")))
	}
	server := httptest.NewServer(w.edge.Handler())
	t.Cleanup(server.Close)

	// No page needs a script: none runs from here on.
	off, cancel := context.WithTimeout(browser, browserWait)
	_, err := chromedp.Call(off, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	cancel()
	if err != nil {
		t.Fatal(err)
	}

	// The keyboard alone: past the skip link to the search, to the first agent, to its page.
	do(t, browser, chromedp.EmulateViewport(1200, 900), chromedp.Navigate(server.URL+"/"))
	do(t, browser, chromedp.KeyEvent("\t"))
	until(t, browser, `document.activeElement.className === "skip"`)
	tabTo := func(what string) {
		t.Helper()
		for range 40 {
			if see(t, browser, chromedp.Evaluate[bool]("!!("+what+")")) {
				return
			}
			do(t, browser, chromedp.KeyEvent("\t"))
		}
		t.Fatalf("the keyboard never reaches %s", what)
	}
	tabTo(`document.activeElement.name === "q"`)
	do(t, browser, chromedp.KeyEvent("sarah osaka"), chromedp.KeyEvent("\r"))
	until(t, browser, `location.search.includes("q=sarah+osaka") && document.querySelectorAll("article").length === 0 && document.querySelector(".empty")`)
	tabTo(`document.activeElement.name === "q"`)
	do(t, browser, chromedp.Evaluate[chromedp.Void](`document.activeElement.select()`), chromedp.KeyEvent("assist"), chromedp.KeyEvent("\r"))
	until(t, browser, `document.querySelectorAll("article").length === 1`)
	tabTo(`document.activeElement.pathname === "/agents/am_sarah"`)
	do(t, browser, chromedp.KeyEvent("\r"))
	until(t, browser, `location.pathname === "/agents/am_sarah" && document.querySelector("svg.qr") && document.querySelector("h1").innerText === "Sarah's Assistant"`)

	// One click takes a whole command, and nothing but it.
	do(t, browser, chromedp.Click(`pre[aria-label="Command that gets the card"]`))
	if got := see(t, browser, chromedp.Evaluate[string](`getSelection().toString().trim()`)); got != "curl http://localhost/v1/agents/am_sarah" {
		t.Errorf("a click on the command selects %q", got)
	}

	// How to register is one link away.
	do(t, browser, chromedp.Click(`a[href="/#join"]`))
	until(t, browser, `location.hash === "#join" && document.querySelector("#join").getBoundingClientRect().top < innerHeight`)

	shots := os.Getenv("AGENTMESH_SCREENSHOTS")
	for _, scheme := range []string{"light", "dark"} {
		ctx, cancel := context.WithTimeout(browser, browserWait)
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for _, width := range []int64{320, 768, 1280} {
			do(t, browser, chromedp.EmulateViewport(width, 900))
			for name, path := range map[string]string{"front": "/", "found": "/?q=agent&capability=scheduling", "card": "/agents/am_sarah", "long": "/agents/am_long"} {
				do(t, browser, chromedp.Navigate(server.URL+path))
				if wide := see(t, browser, chromedp.Evaluate[int](`document.documentElement.scrollWidth`)); int64(wide) > width {
					t.Errorf("%s is %d wide on a screen of %d", path, wide, width)
				}
				for _, faint := range see(t, browser, chromedp.Evaluate[[]string](contrast)) {
					t.Errorf("%s, %s, %d: %s", path, scheme, width, faint)
				}
				for _, small := range see(t, browser, chromedp.Evaluate[[]string](unlabelled)) {
					t.Errorf("%s has a control without a name: %s", path, small)
				}
				if shots != "" {
					picture := see(t, browser, chromedp.FullScreenshot(100))
					if err := os.WriteFile(filepath.Join(shots, fmt.Sprintf("%s-%s-%d.png", name, scheme, width)), picture, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}

// contrast lists texts whose contrast against what is behind them is below 4.5 (WCAG AA).
const contrast = `(() => {
  const lum = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
  const rgb = s => { const m = s.match(/[\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m.slice(0, 3) };
  const out = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
    let back = null;
    for (let p = e; p && !back; p = p.parentElement) back = rgb(getComputedStyle(p).backgroundColor);
    const a = lum(rgb(getComputedStyle(e).color)), b = lum(back || [255, 255, 255]);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) out.push(e.tagName + " " + e.className + " has contrast " + ratio.toFixed(2) + ": " + e.innerText.slice(0, 40));
  }
  return out.slice(0, 5);
})()`

// unlabelled lists controls that a screen reader could not name.
const unlabelled = `[...document.querySelectorAll("input, button, a, summary")].filter(e =>
  !(e.innerText || "").trim() && !(e.labels && e.labels.length) && !e.getAttribute("aria-label") && !e.querySelector("img[alt]")).map(e => e.outerHTML.slice(0, 100))`
