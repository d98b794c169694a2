//go:build slow

package directory

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
)

// TestPagesInBrowser checks the pages in a browser: light and dark, on narrow and wide screens, and with the keyboard
// alone. Nothing may overflow sideways, and text must have enough contrast.
func TestPagesInBrowser(t *testing.T) {
	t.Parallel()
	browser := browsertest.Start(t)
	tab := browsertest.NewTab(t, browser)
	w := newWorld(t, func(c *Config) {
		c.Local, c.BaseURL = true, "http://localhost/v1"
		c.Site = site.Operator{Name: "Agents of Cork", Contact: "operator@cork.example", Terms: "Be kind. " + hostile}
	})
	w.register(alice, testCard("am_sarah", text("name", "Sarah's Assistant"), text("description", "Books meetings in Zürich and answers mail"),
		members("capabilities", "scheduling", "travel.transit", "a-capability-with-a-name-that-is-much-longer-than-any-line-of-a-telephone-and-has-no-discardResponse"),
		obj("owner", text("name", "Sarah Okafor")), text("public_key", testKey("am_sarah").PublicText())))
	w.register(alice, testCard("am_long", text("name", "Wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww"),
		text("description", "京都の案内 — دليل القاهرة — Ξεναγός "+hostile)))
	for i := range 30 {
		w.register(alice, testCard(fmt.Sprintf("am_%03d", i), text("description", "One of many")))
	}
	server := httptest.NewServer(w.edge.Handler())
	t.Cleanup(server.Close)

	tab.WithoutScript() // no page needs a script
	defer tab.Forgive("404 (Not Found)")

	// The keyboard alone: past the skip link to the search, to the first agent, to its page.
	tab.Do(chromedp.Navigate(server.URL + "/"))
	tab.Do(chromedp.KeyEvent("\t"))
	tab.Until(`document.activeElement.className === "skip"`)
	tabTo := func(what string) {
		t.Helper()
		for range 40 {
			if browsertest.Eval[bool](tab, "!!("+what+")") {
				return
			}
			tab.Do(chromedp.KeyEvent("\t"))
		}
		t.Fatalf("the keyboard never reaches %s", what)
	}
	tabTo(`document.activeElement.name === "q"`)
	tab.Do(chromedp.KeyEvent("sarah osaka"), chromedp.KeyEvent("\r"))
	tab.Until(`location.search.includes("q=sarah+osaka") && document.querySelectorAll(".members li").length === 0 && document.querySelector(".empty")`)
	tabTo(`document.activeElement.name === "q"`)
	tab.Do(chromedp.Evaluate[chromedp.Void](`document.activeElement.select()`), chromedp.KeyEvent("assist"), chromedp.KeyEvent("\r"))
	tab.Until(`document.querySelectorAll(".members li").length === 1`)
	tabTo(`document.activeElement.pathname === "/agents/am_sarah"`)
	tab.Do(chromedp.KeyEvent("\r"))
	tab.Until(`location.pathname === "/agents/am_sarah" && document.querySelector("svg.qr") && document.querySelector("h1").innerText === "Sarah's Assistant"`)

	// One click selects a whole command, and nothing else.
	tab.Click(`pre[aria-label="Command that gets the card"]`)
	if got := browsertest.Eval[string](tab, `getSelection().toString().trim()`); got != "curl http://localhost/v1/agents/am_sarah" {
		t.Errorf("a click on the command selects %q", got)
	}

	// How to join is one link away.
	tab.Click(`a[href="/join"]`)
	tab.Until(`location.pathname === "/join" && document.querySelector("#start").innerText === "agentmesh quickstart agent --join 'http://localhost/join' && agentmesh serve"`)

	// A report takes a form, and its answer is a page.
	tab.Do(chromedp.Navigate(server.URL + "/agents/am_long"))
	tab.Do(chromedp.SendKeys("#text", "It sends advertising."))
	tab.Click(`form[action="/agents/am_long/report"] button`)
	tab.Until(`document.querySelector("h1").innerText === "Reported"`)
	if list, _, err := w.reg.Reports(t.Context(), "am_long", "", 2); err != nil || len(list) != 1 || list[0].Text != "It sends advertising." {
		t.Errorf("the report is %+v, %v", list, err)
	}

	paths := []string{"/", "/?q=agent&capability=scheduling", "/agents/am_sarah", "/agents/am_long", "/changes", "/join", "/terms", "/nothing-here"}
	scripted := browsertest.NewTab(t, browser) // axe is a script
	for _, path := range paths {
		scripted.Do(chromedp.Navigate(server.URL + path))
		scripted.CheckBarriers()
	}
	scripted.Forgive("404 (Not Found)")
	for _, scheme := range []string{"light", "dark"} {
		tab.Scheme(scheme)
		for _, width := range []int64{320, 390, 768, 1280} {
			tab.Size(width, 900)
			for _, path := range paths {
				tab.Do(chromedp.Navigate(server.URL + path))
				if wide := browsertest.Eval[int](tab, `document.documentElement.scrollWidth`); int64(wide) > width {
					t.Errorf("%s is %d wide on a screen of %d", path, wide, width)
				}
				for _, faint := range browsertest.Eval[[]string](tab, contrast) {
					t.Errorf("%s, %s, %d: %s", path, scheme, width, faint)
				}
				if to := os.Getenv("AGENTMESH_PICTURES"); to != "" {
					tab.Picture(filepath.Join(to, fmt.Sprintf("public%s-%s-%d.png", strings.Map(func(r rune) rune {
						if strings.ContainsRune("/?&=", r) {
							return '-'
						}
						return r
					}, path), scheme, width)))
				}
				for _, small := range browsertest.Eval[[]string](tab, unlabelled) {
					t.Errorf("%s has a control without a name: %s", path, small)
				}
			}
		}
	}
}

// TestJoinInBrowser: with a script, the page shows the code of the link in its commands, as text, and sends it nowhere;
// without one, it says what to do.
func TestJoinInBrowser(t *testing.T) {
	t.Parallel()
	browser := browsertest.Start(t)
	w := newWorld(t, inviteOnly)
	var seen sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen.Store(r.RequestURI+r.Referer(), true)
		r.Host = "directory.example"
		w.edge.Handler().ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)

	tab := browsertest.NewTab(t, browser)
	shows := func(code string, paste bool) {
		t.Helper()
		tab.Until(fmt.Sprintf(`document.querySelector("#start").innerText === "agentmesh quickstart agent --join 'https://directory.example/join#%s' && agentmesh serve"`+
			` && document.querySelector("#add").innerText.endsWith("/join#%[1]s'") && document.querySelector("#paste").checkVisibility() === %t`, code, paste))
	}
	tab.Do(chromedp.Navigate(server.URL + "/join#SECRET234"))
	shows("SECRET234", false)
	tab.Do(chromedp.Evaluate[chromedp.Void](`location.hash = "#OTHER"`)) // somebody pastes a code
	shows("OTHER", false)
	for _, hostile := range []string{"<img src=x onerror=alert(1)>", "x'; rm -rf ~ #", "%3Cb%3E", ""} {
		tab.Do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`location.hash = %q`, hostile)))
		shows("CODE", true)
	}
	tab.CheckBarriers()
	tab.Do(chromedp.Navigate("about:blank"))
	tab.WithoutScript()
	tab.Do(chromedp.Navigate(server.URL + "/join#SECRET234"))
	shows("CODE", true)
	seen.Range(func(uri, _ any) bool {
		if strings.Contains(uri.(string), "SECRET") {
			t.Errorf("the browser sent the code: %s", uri)
		}
		return true
	})
}

// contrast lists texts whose contrast with their background is below 4.5 (WCAG AA).
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

// unlabelled lists controls that a screen reader cannot name.
const unlabelled = `[...document.querySelectorAll("input, button, a, summary")].filter(e =>
  !(e.innerText || "").trim() && !(e.labels && e.labels.length) && !e.getAttribute("aria-label") && !e.querySelector("img[alt]")).map(e => e.outerHTML.slice(0, 100))`
