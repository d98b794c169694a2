//go:build slow

package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// serveFullPage serves a page with all kinds of content, some of it hostile.
func serveFullPage(t *testing.T) (*ownerPage, []string) {
	t.Helper()
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	for i, text := range hostile(t) {
		sendAsStranger(t, mesh, sarah, fmt.Sprintf("stranger-%d", i), text)
	}
	for range 3 {
		if _, err := sarah.Receive(t.Context(), []byte("no message")); err == nil {
			t.Fatal("nonsense is accepted")
		}
	}
	if err := sarah.SetPause(t.Context(), true, "test"); err != nil {
		t.Fatal(err)
	}
	p := servePage(t, sarah)
	paths := append([]string{"login"}, allPages...)
	return p, append(paths, link(t, p.must("approvals"), "approvals/ask_"), link(t, p.must("inbox"), "inbox/in_"),
		link(t, p.must("conversations"), "conversations/am_"), link(t, p.must("conversations"), "conversations/am_")+"?after=0",
		link(t, p.must("people"), "people/am_"), "none")
}

// browserPhone: nothing is wider than a small phone, and every control is large enough for a finger.
func browserPhone(t *testing.T, browser context.Context) {
	p, paths := serveFullPage(t)
	tb := newTab(t, browser, p)
	tb.Size(320, 568)
	for _, path := range paths {
		tb.open(path)
		if wide := browsertest.Eval[int](tb.Tab, `document.documentElement.scrollWidth`); wide > 320 {
			t.Errorf("%q is %d px wide", path, wide)
		}
		small := browsertest.Eval[string](tb.Tab, `Array.from(document.querySelectorAll("button, nav a, .filters a, summary, input:not([type=hidden]), select, textarea, .button"))
			.filter((e) => e.offsetParent && e.getBoundingClientRect().height < 43.5).map((e) => e.outerHTML.slice(0, 80)).join("\n")`)
		if small != "" {
			t.Errorf("%q has small targets:\n%s", path, small)
		}
	}
	tb.Forgive("404 (Not Found)")
}

// contrast computes the smallest contrast between text and its background on a page, and the element that has it.
const contrast = `(() => {
	const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
	const lum = (c) => { const f = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
	let worst = 99, where = "";
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n = walker.nextNode(); n; n = walker.nextNode()) {
		const e = n.parentElement;
		if (!n.textContent.trim() || !e.offsetParent || e.closest(".skip")) continue;
		const a = lum(parse(getComputedStyle(e).color)), b = lum(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < worst) { worst = ratio; where = e.outerHTML.slice(0, 90); }
	}
	return { worst, where };
})()`

// browserSchemes: both color schemes exist, and all text in them is readable (WCAG AA).
func browserSchemes(t *testing.T, browser context.Context) {
	p, paths := serveFullPage(t)
	tb := newTab(t, browser, p)
	grounds := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		tb.Scheme(scheme)
		for _, path := range paths {
			tb.open(path)
			got := browsertest.Eval[struct {
				Worst float64 `json:"worst"`
				Where string  `json:"where"`
			}](tb.Tab, contrast)
			if got.Worst < 4.5 {
				t.Errorf("%s, %q: contrast %.2f of %s", scheme, path, got.Worst, got.Where)
			}
		}
		grounds[scheme] = browsertest.Eval[string](tb.Tab, `getComputedStyle(document.body).backgroundColor`)
	}
	if grounds["light"] == grounds["dark"] {
		t.Errorf("both schemes are %s", grounds["light"])
	}
	tb.Forgive("404 (Not Found)")
}

// browserNames: every control has a name, and every page has one heading and its landmarks.
func browserNames(t *testing.T, browser context.Context) {
	p, paths := serveFullPage(t)
	tb := newTab(t, browser, p)
	acted := []string{"button", "link", "textbox", "searchbox", "combobox", "DisclosureTriangle", "checkbox", "radio"}
	for _, path := range paths {
		tb.open(path)
		tree := browsertest.Call(tb.Tab, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		roles := map[string]int{}
		for _, n := range tree.Nodes {
			if n.Ignored || n.Role == nil {
				continue
			}
			role, name := axText(n.Role), axText(n.Name)
			roles[role]++
			for _, r := range acted {
				if role == r && strings.TrimSpace(name) == "" {
					t.Errorf("%q has a %s without a name: %+v", path, role, n)
				}
			}
		}
		if roles["main"] != 1 || path != "login" && (roles["navigation"] != 1 || roles["banner"] != 1) {
			t.Errorf("%q has the landmarks %v", path, roles)
		}
		if n := browsertest.Eval[int](tb.Tab, `document.querySelectorAll("h1").length`); n != 1 {
			t.Errorf("%q has %d first headings", path, n)
		}
		if twice := browsertest.Eval[string](tb.Tab, `(() => { const seen = new Set(); for (const e of document.querySelectorAll("[id]")) { if (seen.has(e.id)) return e.id; seen.add(e.id); } return ""; })()`); twice != "" {
			t.Errorf("%q has the id %s twice", path, twice)
		}
	}
	tb.Forgive("404 (Not Found)")
}

// browserBarriers: axe finds no violation on any page, in both color schemes, on a screen and on a phone.
func browserBarriers(t *testing.T, browser context.Context) {
	if !browsertest.HasAxe() {
		t.Skipf("%s does not name axe.min.js; .ci/axe installs it", browsertest.Axe)
	}
	p, paths := serveFullPage(t)
	tb := newTab(t, browser, p)
	for _, path := range paths {
		tb.open(path)
		tb.CheckBarriers()
	}
	for _, ask := range pendingAsks(t, p.member)[:3] {
		tb.Do(chromedp.Navigate(p.localLink(ask)))
		tb.CheckBarriers()
	}
	tb.open("")
	browsertest.Eval[int](tb.Tab, `document.querySelector("main").append(document.createElement("input")) ?? 0`)
	if found := tb.Barriers(); !strings.HasPrefix(found, "label: ") {
		t.Errorf("axe does not see a field without a label: %q", found)
	}
	tb.Forgive("404 (Not Found)")
}

func axText(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	var s string
	if json.Unmarshal(v.Value, &s) != nil {
		return string(v.Value)
	}
	return s
}

// browserHostile: text of strangers never acts as markup or script.
func browserHostile(t *testing.T, browser context.Context) {
	p, paths := serveFullPage(t)
	tb := newTab(t, browser, p)
	for _, path := range paths {
		tb.open(path)
		got := browsertest.Eval[string](tb.Tab, `[
			window.owned ? "a script of a stranger ran" : "",
			document.querySelectorAll("script").length === 2 ? "" : "there are " + document.querySelectorAll("script").length + " scripts",
			document.querySelectorAll("iframe, object, embed, [onerror], [onload], [style], style, base").length ? "something foreign is in the page" : "",
			Array.from(document.forms).every((f) => f.getAttribute("action").startsWith("/owner/page/")) ? "" : "a form goes elsewhere",
			Array.from(document.links).every((a) => a.href.startsWith(location.origin + "/owner/page")) ? "" : "a link goes elsewhere",
			Array.from(document.images).every((i) => i.src.startsWith(location.origin + "/owner/page/static/")) ? "" : "a foreign image",
			/[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText) ? "a direction is overridden" : "",
		].filter(Boolean).join("; ")`)
		if got != "" {
			t.Errorf("%q: %s", path, got)
		}
		// Text with many combining marks stays inside its line.
		if out := browsertest.Eval[int](tb.Tab, `Array.from(document.querySelectorAll(".text")).filter((e) => getComputedStyle(e).overflow === "visible").length`); out > 0 {
			t.Errorf("%q: %d texts may draw outside themselves", path, out)
		}
	}
	tb.Forgive("404 (Not Found)")
}
