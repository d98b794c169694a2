//go:build slow

package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestBrowser drives the owner's page in Chromium. All parts share one browser; each part has its own mesh and tabs.
func TestBrowser(t *testing.T) {
	browser := browsertest.Start(t)
	t.Run("ten thousand events", func(t *testing.T) { browserManyEvents(t, browser) }) // measures memory, so nothing may run beside it
	for name, test := range map[string]func(*testing.T, context.Context){
		"code": browserCode, "stranger": browserStranger, "keyboard": browserKeyboard, "phone": browserPhone, "schemes": browserSchemes,
		"names": browserNames, "no script": browserWithoutScript, "restart": browserRestart, "two tabs": browserTwoTabs,
		"hostile": browserHostile, "typing": browserKeepsWhatIsTyped, "line breaks": browserLineBreaks,
		"guard": browserGuardsClicks, "chat": browserChat, "connect": browserConnect, "barriers": browserBarriers, "shortcuts": browserShortcuts, "notifications": browserNotifications, "link": browserLink,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, browser)
		})
	}
}

// sendAsStranger makes a new stranger write to a node, which holds the message.
func sendAsStranger(t *testing.T, mesh *meshtest.Mesh, sarah *meshtest.Member, name, text string) []byte {
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

// browserCode: the address that agentmesh page prints signs in with one key press, and the code after # is sent to no
// server.
func browserCode(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	p := servePage(t, mesh.Node("sarah", nil))
	rec := httptest.NewRecorder()
	p.edge.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/owner/sign-in", nil)) // as over the socket
	var in httpapi.SignIn
	if err := json.Unmarshal(rec.Body.Bytes(), &in); err != nil {
		t.Fatalf("%s: %v", rec.Body, err)
	}
	tb := newTab(t, browser, p)
	tb.Do(chromedp.Navigate(in.URL + "login#" + in.Code))
	tb.Until(`document.getElementById("secret").value === "` + in.Code + `" && location.hash === ""`)
	tb.Do(chromedp.KeyEvent("\r"))
	tb.Shows("Nothing waits for you.")
	tb.live()
	tb.open("settings")
	tb.Click("#sign-out-all")
	tb.Shows("You are signed out.")
	if status, body := p.get("approvals"); status != http.StatusOK || !strings.Contains(body, "<h1>Sign in</h1>") {
		t.Errorf("another browser is still signed in: %d", status)
	}
}

// browserLink: on a phone that has not signed in, without scripts, a link shows a question with its buttons above the
// fold, and one touch decides it.
func browserLink(t *testing.T, browser context.Context) {
	_, sarah, p, _, _ := newHeldPage(t)
	tb := browsertest.NewTab(t, browser)
	tb.WithoutScript()
	tb.Size(390, 844)
	tb.Do(chromedp.Navigate(p.localLink(onlyAsk(t, sarah))))
	tb.Shows("A stranger writes")
	if low := browsertest.Eval[float64](tb, `document.querySelector("button[value=approve]").getBoundingClientRect().bottom - innerHeight`); low > 0 {
		t.Errorf("the button is %.0f px below the fold", low)
	}
	if wide := browsertest.Eval[int](tb, `document.documentElement.scrollWidth`); wide > 390 {
		t.Errorf("the page is %d px wide", wide)
	}
	if to := os.Getenv("PICTURES"); to != "" && to != "docs" {
		tb.Picture(filepath.Join(to, "link-390.png"))
	}
	tb.Click(`button[value="approve"]`)
	tb.Shows("Approved, and the sender is let in. This link is used up.")
	if n := len(pendingAsks(t, sarah)); n != 0 {
		t.Errorf("%d questions wait", n)
	}
}

// browserStranger: a stranger's message arrives while the page is open. It appears without a reload, a click approves
// it, and the stranger gets the signed answer.
func browserStranger(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	tb := newTab(t, browser, servePage(t, sarah))
	tb.open("approvals")
	tb.live()
	tb.Shows("Nothing waits for a decision.")
	browsertest.Eval[int](tb.Tab, `window.sameDocument = 1`)
	raw := sendAsStranger(t, mesh, sarah, "chris", "Hello from a stranger")
	tb.Shows("Hello from a stranger")
	tb.Until(`document.querySelector("#nav .count")?.textContent === "1" && document.title.startsWith("(1) ")`)
	if browsertest.Eval[int](tb.Tab, `window.sameDocument || 0`) != 1 {
		t.Error("the page was loaded again")
	}
	ask := onlyAsk(t, sarah)
	if shown := browsertest.Eval[string](tb.Tab, `document.querySelector(".hash").textContent`); shown != ask.Hash {
		t.Errorf("the page shows the hash %s, want %s", shown, ask.Hash)
	}
	tb.WaitUntilStable()
	tb.Click(`button[value="approve"]`)
	tb.Shows("Let in.")
	final := meshtest.Post(t, sarah.URL, raw)
	must(t, final, http.StatusOK)
	if reply := final.Message(t, sarah); reply.Action() != wire.ActionReceived || reply.Meta("in_reply_to") == "" {
		t.Errorf("the stranger gets %s", final.Body)
	}
}

// browserKeyboard signs in, skips to the content, opens a question and decides it without a pointer.
func browserKeyboard(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	sendAsStranger(t, mesh, sarah, "chris", "By keyboard")
	tb := newTab(t, browser, servePage(t, sarah))
	tb.Do(chromedp.Navigate(tb.page.url("approvals")))
	tb.Until(`document.activeElement.id === "secret"`) // ready to type
	tb.Do(chromedp.KeyEvent(tb.page.token), chromedp.KeyEvent("\r"))
	tb.Shows("By keyboard")
	tb.WaitUntilStable()
	tb.Do(chromedp.KeyEvent("\t"))
	tb.Until(`document.activeElement.className === "skip" && document.activeElement.getBoundingClientRect().top >= 0`)
	tb.Do(chromedp.KeyEvent("\r"))
	tb.Until(`document.activeElement.id === "main"`)
	var seen []string
	for range 40 {
		tb.Do(chromedp.KeyEvent("\t"))
		at := browsertest.Eval[string](tb.Tab, `document.activeElement.id || document.activeElement.textContent.trim()`)
		seen = append(seen, at)
		if at == "main" { // the focus is still moving; main is not a tab stop
			continue
		}
		tb.Until(`getComputedStyle(document.activeElement).outlineStyle !== "none"`) // focus is visible; at has it
		if strings.HasPrefix(at, "reject-") {
			tb.Do(chromedp.KeyEvent("\r"))
			tb.Shows("Rejected.")
			if n := len(pendingAsks(t, sarah)); n != 0 {
				t.Errorf("%d wait", n)
			}
			return
		}
	}
	t.Errorf("the keyboard does not reach the button: %q", seen)
}

// browserWithoutScript: signing in, reading and deciding need no script.
func browserWithoutScript(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	sendAsStranger(t, mesh, sarah, "chris", "Without a script")
	tb := newTab(t, browser, servePage(t, sarah))
	tb.WithoutScript()
	tb.open("approvals")
	tb.Shows("Without a script")
	if stream := browsertest.Eval[string](tb.Tab, `document.getElementById("stream").textContent`); stream != "" {
		t.Fatalf("a script runs: %s", stream)
	}
	tb.Click("details summary")
	tb.Until(`document.querySelector("details").open`)
	tb.Click(`button[value="approve"]`)
	tb.Shows("Let in.")
	if n := len(pendingAsks(t, sarah)); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// browserRestart: a page that is open while the process restarts reconnects and shows what arrived meanwhile.
func browserRestart(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	p := servePage(t, sarah)
	tb := newTab(t, browser, p)
	tb.open("approvals")
	tb.live()
	p.stop()
	tb.Until(`document.getElementById("stream").textContent.startsWith("Reconnecting")`)
	sarah = mesh.Restart(sarah, mode(acl.Approval))
	sendAsStranger(t, mesh, sarah, "chris", "While you were away")
	p.start(sarah)
	tb.Shows("While you were away")
	tb.live()
	sendAsStranger(t, mesh, sarah, "ann", "And after that")
	tb.Shows("And after that")
	tb.Forgive("Failed to load resource") // while the process was down
	tb.Forgive("htmx:sendError")
	tb.Forgive("ERR_")
}

// browserTwoTabs: two tabs decide differently about the same question; the second one shows what the first decided.
func browserTwoTabs(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	sendAsStranger(t, mesh, sarah, "chris", "Who decides?")
	p := servePage(t, sarah)
	first, second := newTab(t, browser, p), newTab(t, browser, p)
	path := link(t, p.must("approvals"), "approvals/ask_")
	second.WithoutScript() // keeps showing the old state
	first.open(path)
	second.open(path)
	first.Click(`button[value="reject"]`)
	first.Shows("Rejected.")
	second.Click(`button[value="approve"]`)
	second.Shows("This was decided before: rejected by page")
	second.Forgive("409 (Conflict)")
	third := newTab(t, browser, p) // a live tab removes the buttons
	sendAsStranger(t, mesh, sarah, "ann", "Once more")
	ask := onlyAsk(t, sarah)
	third.open("approvals/" + ask.ID)
	third.live()
	decide(t, sarah, ask, acl.Block)
	third.Shows("blocked")
	third.Until(`!document.querySelector("button[name=choice]")`)
}

// browserShortcuts: keys lead to the entries and the search while nobody types, and can be turned off.
func browserShortcuts(t *testing.T, browser context.Context) {
	p := servePage(t, meshtest.New(t).Node("sarah", nil))
	tb := newTab(t, browser, p)
	at := func(path string) {
		tb.Until(`location.pathname === "/owner/page/` + path + `" && document.readyState === "complete"`)
	}
	press := func(key string) { tb.Do(chromedp.KeyEvent(key)) }
	tb.open("")
	tb.live()
	for key, path := range map[string]string{"2": "conversations", "3": "people", "w": "compose", "/": "discover"} {
		tb.open("settings")
		tb.live()
		press(key)
		at(path)
	}
	tb.open("discover")
	tb.live()
	press("/")
	tb.Until(`document.activeElement.id === "q"`)
	press("2")
	tb.Until(`document.activeElement.value.endsWith("2")`) // typing is not a shortcut
	tb.open("settings")
	tb.live()
	press("?")
	tb.Until(`document.getElementById("keys").open`)
	tb.Click("#keys-off")
	tb.Click("#keys-close")
	press("2")
	press("?")
	tb.Until(`document.getElementById("keys").open`)
	at("settings")
}

// browserNotifications: with the owner's permission, a tab in the background tells that something waits. It names
// nobody, because text of strangers would leave the page.
func browserNotifications(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	tb := newTab(t, browser, servePage(t, sarah))
	tb.open("settings")
	tb.live()
	browsertest.Eval[bool](tb.Tab, `(window.told = [], window.Notification = class {
		static permission = "default";
		static requestPermission() { this.permission = "granted"; return Promise.resolve("granted"); }
		constructor(title, options) { told.push(title + ": " + options.body); }
	}, true)`)
	tb.Click("#notify")
	tb.Until(`document.getElementById("notify").textContent.startsWith("Do not")`)
	sendAsStranger(t, mesh, sarah, "chris", "In front")
	tb.Until(`document.querySelector("#nav .count")?.textContent === "1" && document.title.startsWith("(1) ")`) // settings do not show it
	browsertest.Eval[bool](tb.Tab, `(Object.defineProperty(document, "hidden", { value: true }), document.dispatchEvent(new Event("visibilitychange")))`)
	sendAsStranger(t, mesh, sarah, "ann", "Behind")
	tb.Until(`told.join() === "agentmesh: 2 waiting for you"`)
	tb.Click("#notify")
	tb.Until(`!document.getElementById("notify").textContent.startsWith("Do not")`)
	sendAsStranger(t, mesh, sarah, "eve", "Unheard")
	tb.Until(`document.querySelector("#nav .count")?.textContent === "3"`)
	if n := browsertest.Eval[int](tb.Tab, `told.length`); n != 1 {
		t.Errorf("%d notifications after the owner switched them off, want 1", n)
	}
}

// heap returns the size of what scripts still hold, after a garbage collection.
func (tb *tab) heap() float64 {
	browsertest.Call(tb.Tab, heapprofiler.CollectGarbage, cdp.Empty{})
	return browsertest.Call(tb.Tab, cdpruntime.GetHeapUsage, cdp.Empty{}).UsedSize
}

// serverHeap returns the heap size of this process after a garbage collection.
func serverHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// browserManyEvents: after ten thousand events the tab and the server use as much memory as before.
func browserManyEvents(t *testing.T, browser context.Context) {
	const events, warm, tabMost, serverMost = 10_000, 500, 3 << 20, 8 << 20
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	tb := newTab(t, browser, servePage(t, sarah))
	tb.open("settings")
	tb.live()
	refused := 0
	refuse := func(n int) {
		for range n {
			if _, err := sarah.Receive(t.Context(), []byte("no message")); err == nil {
				t.Fatal("nonsense is accepted")
			}
			refused++
		}
		tb.Shows(fmt.Sprintf("%d times, last", refused))
	}
	refuse(warm)
	tabBefore, serverBefore := tb.heap(), serverHeap()
	nodes := browsertest.Eval[int](tb.Tab, `document.getElementsByTagName("*").length`)
	for range 10 { // in several steps, so that the page updates in between
		refuse(events / 10)
	}
	if grown := tb.heap() - tabBefore; grown > tabMost {
		t.Errorf("the tab grew by %.1f MiB", grown/(1<<20))
	}
	if after := serverHeap(); after > serverBefore+serverMost {
		t.Errorf("the server grew by %d KiB", (after-serverBefore)>>10)
	}
	if now := browsertest.Eval[int](tb.Tab, `document.getElementsByTagName("*").length`); now != nodes {
		t.Errorf("the page has %d elements, before %d", now, nodes)
	}
}

// browserGuardsClicks: a click does not hit a button that has just moved under the pointer.
func browserGuardsClicks(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	sendAsStranger(t, mesh, sarah, "chris", "The first")
	first := onlyAsk(t, sarah)
	sendAsStranger(t, mesh, sarah, "ann", "The second")
	tb := newTab(t, browser, servePage(t, sarah))
	tb.open("approvals")
	tb.live()
	browsertest.Eval[bool](tb.Tab, `(document.body.addEventListener("htmx:beforeSwap", () => {
		for (const start = performance.now(); performance.now() - start < 500;); // as on a slow machine
	}), document.body.addEventListener("htmx:afterSwap", () => {
		const click = new MouseEvent("click", { bubbles: true, cancelable: true, detail: 1 });
		window.taken ??= document.querySelector('button[value="approve"]').dispatchEvent(click);
	}), true)`)
	decide(t, sarah, first, acl.Reject) // in another tab: the second question moves up
	tb.Until(`window.taken !== undefined`)
	if browsertest.Eval[bool](tb.Tab, `window.taken`) {
		t.Error("a click in the moment of the change is taken")
	}
	if ask := onlyAsk(t, sarah); ask.ID == first.ID {
		t.Error("the second question was decided")
	}
	tb.WaitUntilStable()
	tb.Click(`button[value="approve"]`)
	tb.Shows("Let in.")
}

// browserKeepsWhatIsTyped: an arriving message changes neither what the owner is typing nor which details are open.
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
	tb.Do(chromedp.SendKeys("#text", "half a senten"))
	tb.Click("#e1 summary")
	next := chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"Are you there?"}}`)
	next.Conversation = draft.Conversation
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(next)), http.StatusOK)
	tb.Shows("Are you there?")
	if typed := browsertest.Eval[string](tb.Tab, `document.getElementById("text").value`); typed != "half a senten" {
		t.Errorf("what was typed became %q", typed)
	}
	if !browsertest.Eval[bool](tb.Tab, `document.getElementById("e1").open`) {
		t.Error("what was open is shut")
	}
	tb.Do(chromedp.SendKeys("#text", "ce"))
	tb.Click(`form[action$="/reply"] button:not([name])`)
	tb.Shows("It is on its way.")
	tb.Shows("half a sentence")
}

// browserConnect: the page says by itself when a program has connected.
func browserConnect(t *testing.T, browser context.Context) {
	p := servePage(t, meshtest.New(t).Node("sarah", nil))
	tb := newTab(t, browser, p)
	tb.open("connect")
	tb.live()
	tb.Shows("No program is connected.")
	p.doorUsed.Store(time.Now().Unix())
	tb.Shows("Connected: a program used the agent's door")
}

// browserLineBreaks: what is typed in two lines is signed with one LF, and both sides read two lines without a code
// between them, at every text area. A peer's CR LF is shown as a line break, too.
func browserLineBreaks(t *testing.T, browser context.Context) {
	mesh := meshtest.New(t)
	sarah, peter := mesh.Node("sarah", nil), mesh.Node("peter", nil)
	sarahTab, peterTab := newTab(t, browser, servePage(t, sarah)), newTab(t, browser, servePage(t, peter))
	readsLines := func(tb *tab, first, second string) {
		t.Helper()
		tb.Until(fmt.Sprintf(`[...document.querySelectorAll("div.text")].some(d => d.innerText === %q)`, first+"\n"+second))
		if codes := browsertest.Eval[string](tb.Tab, `[...document.querySelectorAll(".ctl")].map(e => e.innerText).join(" ")`); codes != "" {
			t.Errorf("%s shows %s", browsertest.Eval[string](tb.Tab, `location.pathname`), codes)
		}
	}
	sarahTab.open("compose?to=" + string(peter.ID()))
	sarahTab.Do(chromedp.SendKeys("#text", "first line\rsecond line"))
	sarahTab.Click(`form[action$="/compose"] button[type=submit]`)
	readsLines(sarahTab, "first line", "second line")
	peterTab.open(link(t, peterTab.page.must("conversations"), "conversations/am_"))
	readsLines(peterTab, "first line", "second line")
	peterTab.Do(chromedp.SendKeys("#text", "third line"), chromedp.KeyEvent("\r", chromedp.KeyModifiers(chromedp.ModifierShift)),
		chromedp.KeyEvent("fourth line"), chromedp.KeyEvent("\r")) // Enter sends
	readsLines(peterTab, "third line", "fourth line")
	readsLines(sarahTab, "third line", "fourth line")
	for _, m := range []*meshtest.Member{sarah, peter} {
		items, _, err := m.Inbox(t.Context(), "", "", 10)
		if err != nil || len(items) != 1 || strings.Contains(string(items[0].Payload), `\r`) || !strings.Contains(string(items[0].Payload), `line\n`) {
			t.Errorf("received: %+v %v", items, err)
		}
	}
	chris := mesh.Stranger("chris")
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"from\r\nWindows"}}`))), http.StatusOK)
	sarahTab.open(link(t, sarahTab.page.must("conversations"), "conversations/"+string(chris.ID)))
	readsLines(sarahTab, "from", "Windows")
}
