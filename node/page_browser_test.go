package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestBrowser drives the owner's page in Chromium. One browser serves all of it; every part has a mesh and tabs of its
// own.
func TestBrowser(t *testing.T) {
	browser := chromium(t)
	for name, test := range map[string]func(*testing.T, context.Context){
		"stranger": browserStranger, "keyboard": browserKeyboard, "phone": browserPhone, "schemes": browserSchemes,
		"names": browserNames, "no script": browserWithoutScript, "restart": browserRestart, "two tabs": browserTwoTabs,
		"hostile": browserHostile, "ten thousand events": browserManyEvents, "typing": browserKeepsWhatIsTyped,
	} {
		t.Run(name, func(t *testing.T) { test(t, browser) })
	}
}

// askedBy has a stranger write to a node that asks about strangers.
func askedBy(t *testing.T, mesh *meshtest.Mesh, sarah *meshtest.Member, name, text string) []byte {
	t.Helper()
	s := mesh.Stranger(name)
	payload, err := json.Marshal(map[string]any{"action": "deliver", "message": map[string]string{"body": text}})
	if err != nil {
		t.Fatal(err)
	}
	raw := s.Sign(s.Draft(sarah.ID(), wire.Deliver, string(payload)))
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
	return raw
}

// browserStranger: a stranger's message arrives while the page is open, appears without a reload, is approved by a
// click, and the stranger gets the signed answer.
func browserStranger(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	tb := newTab(t, browser, servePage(t, sarah))
	tb.open("approvals")
	tb.live()
	tb.shows("Nothing waits for a decision.")
	eval[int](tb, `window.sameDocument = 1`)
	raw := askedBy(t, mesh, sarah, "chris", "Hello from a stranger")
	tb.shows("Hello from a stranger")
	tb.until(`document.querySelector("#nav .count")?.textContent === "1"`)
	if eval[int](tb, `window.sameDocument || 0`) != 1 {
		t.Error("the page was loaded again")
	}
	ask := theAsk(t, sarah)
	if shown := eval[string](tb, `document.querySelector(".hash").textContent`); shown != ask.Hash {
		t.Errorf("the page shows the hash %s, want %s", shown, ask.Hash)
	}
	tb.settled()
	tb.click(`button[value="approve"]`)
	tb.shows("Approved. It goes on now.")
	final := meshtest.Post(t, sarah.URL, raw)
	must(t, final, http.StatusOK)
	if reply := final.Message(t, sarah); reply.Action() != wire.ActionReceived || reply.Meta("in_reply_to") == "" {
		t.Errorf("the stranger gets %s", final.Body)
	}
}

// settled waits until a click is taken again after a change of the page.
func (tb *tab) settled() {
	tb.t.Helper()
	tb.until(`(window.changeSeen ??= performance.now(), performance.now() - window.changeSeen > 600)`)
}

// browserKeyboard signs in, skips to the content, opens a question and decides without a pointer.
func browserKeyboard(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	askedBy(t, mesh, sarah, "chris", "By keyboard")
	tb := newTab(t, browser, servePage(t, sarah))
	tb.do(chromedp.Navigate(tb.page.url("approvals")))
	tb.until(`document.activeElement.id === "secret"`) // ready to type
	tb.do(chromedp.KeyEvent(tb.page.token), chromedp.KeyEvent("\r"))
	tb.shows("By keyboard")
	tb.do(chromedp.KeyEvent("\t"))
	tb.until(`document.activeElement.className === "skip" && document.activeElement.getBoundingClientRect().top >= 0`)
	tb.do(chromedp.KeyEvent("\r"))
	tb.until(`document.activeElement.id === "main"`)
	var seen []string
	for range 40 {
		tb.do(chromedp.KeyEvent("\t"))
		at := eval[string](tb, `document.activeElement.id || document.activeElement.textContent.trim()`)
		seen = append(seen, at)
		if !eval[bool](tb, `getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
			t.Errorf("focus cannot be seen on %q", at)
		}
		if strings.HasPrefix(at, "reject-") {
			tb.do(chromedp.KeyEvent("\r"))
			tb.shows("Rejected.")
			if n := len(pendingAsks(t, sarah)); n != 0 {
				t.Errorf("%d wait", n)
			}
			return
		}
	}
	t.Errorf("the keyboard does not reach the button: %q", seen)
}

// loaded is a page full of things, some of them hostile.
func loaded(t *testing.T) (*ownerPage, []string) {
	t.Helper()
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	for i, text := range hostile(t) {
		askedBy(t, mesh, sarah, fmt.Sprintf("stranger-%d", i), text)
	}
	for range 3 {
		if _, err := sarah.Receive(t.Context(), []byte("no message")); err == nil {
			t.Fatal("nonsense is accepted")
		}
	}
	if err := sarah.SetPaused(t.Context(), true, "test"); err != nil {
		t.Fatal(err)
	}
	p := servePage(t, sarah)
	paths := append([]string{"login"}, everyPage...)
	return p, append(paths, link(t, p.must("approvals"), "approvals/ask_"), link(t, p.must("inbox"), "inbox/in_"),
		link(t, p.must("conversations"), "conversations/am_"), "none")
}

// browserPhone: nothing is wider than a small phone, and what is pressed is large enough for a finger.
func browserPhone(t *testing.T, browser context.Context) {
	p, paths := loaded(t)
	tb := newTab(t, browser, p)
	tb.size(320, 568)
	for _, path := range paths {
		tb.open(path)
		if wide := eval[int](tb, `document.documentElement.scrollWidth`); wide > 320 {
			t.Errorf("%q is %d px wide", path, wide)
		}
		small := eval[string](tb, `Array.from(document.querySelectorAll("button, nav a, .filters a, summary, input:not([type=hidden]), select, textarea, .button"))
			.filter((e) => e.offsetParent && e.getBoundingClientRect().height < 43.5).map((e) => e.outerHTML.slice(0, 80)).join("\n")`)
		if small != "" {
			t.Errorf("%q has small targets:\n%s", path, small)
		}
	}
	tb.forgive("404 (Not Found)")
}

// contrast computes the smallest contrast of text against what is behind it on a page, and where.
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

// browserSchemes: both colour schemes are there, and all text in them can be read (WCAG AA).
func browserSchemes(t *testing.T, browser context.Context) {
	p, paths := loaded(t)
	tb := newTab(t, browser, p)
	grounds := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		tb.scheme(scheme)
		for _, path := range paths {
			tb.open(path)
			got := eval[struct {
				Worst float64 `json:"worst"`
				Where string  `json:"where"`
			}](tb, contrast)
			if got.Worst < 4.5 {
				t.Errorf("%s, %q: contrast %.2f of %s", scheme, path, got.Worst, got.Where)
			}
		}
		grounds[scheme] = eval[string](tb, `getComputedStyle(document.body).backgroundColor`)
	}
	if grounds["light"] == grounds["dark"] {
		t.Errorf("both schemes are %s", grounds["light"])
	}
	tb.forgive("404 (Not Found)")
}

// browserNames: whatever can be acted on has a name, and every page has one heading and its landmarks.
func browserNames(t *testing.T, browser context.Context) {
	p, paths := loaded(t)
	tb := newTab(t, browser, p)
	acted := []string{"button", "link", "textbox", "searchbox", "combobox", "DisclosureTriangle", "checkbox", "radio"}
	for _, path := range paths {
		tb.open(path)
		tree := call(tb, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
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
		if n := eval[int](tb, `document.querySelectorAll("h1").length`); n != 1 {
			t.Errorf("%q has %d first headings", path, n)
		}
		if twice := eval[string](tb, `(() => { const seen = new Set(); for (const e of document.querySelectorAll("[id]")) { if (seen.has(e.id)) return e.id; seen.add(e.id); } return ""; })()`); twice != "" {
			t.Errorf("%q has the id %s twice", path, twice)
		}
	}
	tb.forgive("404 (Not Found)")
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

// browserWithoutScript: signing in, reading and deciding need no script.
func browserWithoutScript(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	askedBy(t, mesh, sarah, "chris", "Without a script")
	tb := newTab(t, browser, servePage(t, sarah))
	call(tb, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	tb.open("approvals")
	tb.shows("Without a script")
	if stream := eval[string](tb, `document.getElementById("stream").textContent`); stream != "" {
		t.Fatalf("a script runs: %s", stream)
	}
	tb.click("details summary")
	tb.until(`document.querySelector("details").open`)
	tb.click(`button[value="always"]`)
	tb.shows("Approved, and this sender may write from now on.")
	if n := len(pendingAsks(t, sarah)); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// browserRestart: a page that is open while the process restarts is connected again and shows what came meanwhile.
func browserRestart(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	p := servePage(t, sarah)
	tb := newTab(t, browser, p)
	tb.open("approvals")
	tb.live()
	p.stop()
	tb.until(`document.getElementById("stream").textContent.startsWith("Reconnecting")`)
	sarah = mesh.Restart(sarah, mode(acl.Approval))
	askedBy(t, mesh, sarah, "chris", "While you were away")
	p.start(sarah)
	tb.shows("While you were away")
	tb.live()
	askedBy(t, mesh, sarah, "ann", "And after that")
	tb.shows("And after that")
	tb.forgive("Failed to load resource") // while nobody answered
	tb.forgive("htmx:sendError")
	tb.forgive("ERR_")
}

// browserTwoTabs: two tabs decide differently about what both show; the second is told what the first decided.
func browserTwoTabs(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	askedBy(t, mesh, sarah, "chris", "Who decides?")
	p := servePage(t, sarah)
	first, second := newTab(t, browser, p), newTab(t, browser, p)
	path := link(t, p.must("approvals"), "approvals/ask_")
	call(second, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}) // it goes on showing the old state
	first.open(path)
	second.open(path)
	first.click(`button[value="reject"]`)
	first.shows("Rejected.")
	second.click(`button[value="always"]`)
	second.shows("This was decided before: rejected by page")
	second.forgive("409 (Conflict)")
	third := newTab(t, browser, p) // one that is live sees the buttons go
	askedBy(t, mesh, sarah, "ann", "Once more")
	ask := theAsk(t, sarah)
	third.open("approvals/" + ask.ID)
	third.live()
	decide(t, sarah, ask, acl.Block)
	third.shows("blocked")
	third.until(`!document.querySelector("button[name=choice]")`)
}

// browserHostile: what strangers write is nothing but text.
func browserHostile(t *testing.T, browser context.Context) {
	p, paths := loaded(t)
	tb := newTab(t, browser, p)
	for _, path := range paths {
		tb.open(path)
		got := eval[string](tb, `[
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
		// Piled-up marks stay inside their line.
		if out := eval[int](tb, `Array.from(document.querySelectorAll(".text")).filter((e) => getComputedStyle(e).overflow === "visible").length`); out > 0 {
			t.Errorf("%q: %d texts may draw outside themselves", path, out)
		}
	}
	tb.forgive("404 (Not Found)")
}

// heap is the size of what a script still holds, after a collection.
func (tb *tab) heap() float64 {
	tb.t.Helper()
	call(tb, heapprofiler.CollectGarbage, cdp.Empty{})
	return call(tb, cdpruntime.GetHeapUsage, cdp.Empty{}).UsedSize
}

// serverHeap is the same of this process.
func serverHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// browserManyEvents: ten thousand events leave the memory of the tab and of the server as it was.
func browserManyEvents(t *testing.T, browser context.Context) {
	const events, warm, tabMost, serverMost = 10_000, 500, 3 << 20, 8 << 20
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	tb := newTab(t, browser, servePage(t, sarah))
	tb.open("")
	tb.live()
	refused := 0
	refuse := func(n int) {
		for range n {
			if _, err := sarah.Receive(t.Context(), []byte("no message")); err == nil {
				t.Fatal("nonsense is accepted")
			}
			refused++
		}
		tb.shows(fmt.Sprintf("%d times, last", refused))
	}
	refuse(warm)
	tabBefore, serverBefore := tb.heap(), serverHeap()
	nodes := eval[int](tb, `document.getElementsByTagName("*").length`)
	for range 10 { // the page is changed in between, not once at the end
		refuse(events / 10)
	}
	if grown := tb.heap() - tabBefore; grown > tabMost {
		t.Errorf("the tab grew by %.1f MiB", grown/(1<<20))
	}
	if after := serverHeap(); after > serverBefore+serverMost {
		t.Errorf("the server grew by %d KiB", (after-serverBefore)>>10)
	}
	if now := eval[int](tb, `document.getElementsByTagName("*").length`); now != nodes {
		t.Errorf("the page has %d elements, before %d", now, nodes)
	}
}

// browserKeepsWhatIsTyped: a message that arrives leaves alone what the owner is writing, and what is open.
func browserKeepsWhatIsTyped(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", nil)
	chris := mesh.Stranger("chris")
	draft := chris.Draft(sarah.ID(), wire.Deliver, hello)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(draft)), http.StatusOK)
	p := servePage(t, sarah)
	tb := newTab(t, browser, p)
	tb.open(link(t, p.must("conversations"), "conversations/am_"))
	tb.live()
	tb.do(chromedp.SendKeys("#text", "half a senten"))
	tb.click("#e1 summary")
	next := chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"Are you there?"}}`)
	next.Conversation = draft.Conversation
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(next)), http.StatusOK)
	tb.shows("Are you there?")
	if typed := eval[string](tb, `document.getElementById("text").value`); typed != "half a senten" {
		t.Errorf("what was typed became %q", typed)
	}
	if !eval[bool](tb, `document.getElementById("e1").open`) {
		t.Error("what was open is shut")
	}
	tb.do(chromedp.SendKeys("#text", "ce"))
	tb.click(`form[action$="/reply"] button:not([name])`)
	tb.shows("It is on its way.")
	tb.shows("half a sentence")
}
