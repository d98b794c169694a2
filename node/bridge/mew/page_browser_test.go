//go:build slow

package mew

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ownerPage is the owner's page with the spaces of a gateway and of a link, on an address of its own.
type ownerPage struct{ url, token string }

func serveOwnerPage(t *testing.T, g *gateway.Gateway, b *link.Bridge) ownerPage {
	t.Helper()
	dir, err := os.MkdirTemp("", "am") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	owner := httpapi.NewOwner(httpapi.OwnerConfig{Dir: dir, Listen: "127.0.0.1:0"})
	MountPages(owner.Pages(), g, b)
	if err := owner.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- owner.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	token, err := os.ReadFile(filepath.Join(dir, httpapi.TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	return ownerPage{"http://" + owner.Addr().String() + httpapi.PagePath + "/", strings.TrimSpace(string(token))}
}

// TestPageInBrowser: the owner watches and uses a space in a browser: a hosted space, and one behind a link; without
// scripts; on a narrow screen. Names and messages of participants appear as plain text.
func TestPageInBrowser(t *testing.T) {
	browser := browsertest.Start(t)
	r, abroad := start(t), start(t)
	cat := abroad.Join("cat-token")
	b := startLink(t, abroad)
	p := serveOwnerPage(t, r.G, b)
	const hostile = `<img src=x onerror=alert(1)>"'&`
	alice := r.Open("/ws", "")
	alice.Send(`{"type":"join","token":"alice-token","participantId":` + string(wire.Text(hostile).JSON()) + `}`)
	alice.Want("system/welcome")
	propose := func(pl *mewtest.Player, id, tool string) {
		pl.Send(`{"id":"` + id + `","kind":"mcp/proposal","payload":{"method":"tools/call","params":{"name":` + string(wire.Text(tool).JSON()) + `}}}`)
	}

	t.Run("hosted", func(t *testing.T) {
		tb := browsertest.NewTab(t, browser)
		tb.Open(p.url+"mew", p.token)
		tb.Shows("hosted here")
		tb.Shows("joined over a link")
		tb.Open(p.url+"mew/space/lab", p.token)
		tb.Live()
		tb.Shows(hostile)
		tb.Shows("May send (7)")
		propose(alice, "p1", "</script><script>alert(2)</script>")
		tb.Shows("</script><script>alert(2)</script>")
		key := mewtest.Key(t, r.G.Space("lab").View(), "p1")
		tb.WaitUntilStable()
		tb.Submit("#approve-" + key)
		if req := alice.Until("mcp/request"); mewtest.About(req) != "p1" {
			t.Errorf("approved with %s", req.JSON())
		}
		tb.Shows("Sent.")
		propose(alice, "p2", "burn")
		tb.Shows("burn")
		tb.WaitUntilStable()
		tb.Submit("#reject-" + mewtest.Key(t, r.G.Space("lab").View(), "p2"))
		if no := alice.Until("mcp/reject"); mewtest.About(no) != "p2" {
			t.Errorf("rejected with %s", no.JSON())
		}
		alice.Send(`{"id":"r1","kind":"reasoning/start","payload":{"message":"hm"}}`,
			`{"kind":"reasoning/thought","context":"r1","payload":{"message":"<b>thought</b>"}}`,
			`{"kind":"stream/request","payload":{"direction":"upload","description":"<i>camera</i>"}}`)
		tb.Shows("<i>camera</i>")
		tb.Shows("stream-1")
		tb.Shows("<b>thought</b>")
		// A click on a button that stays in place works during any number of changes, also in the moment of a
		// change.
		tb.WaitUntilStable()
		tb.Leaves()
		browsertest.Eval[bool](tb, `(document.body.addEventListener("htmx:afterSwap", () => {
			const button = document.getElementById("cancel-r1"), at = button.getBoundingClientRect();
			button.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, detail: 1, clientX: at.left + 1, clientY: at.top + 1 }));
		}, { once: true }), true)`)
		alice.Send(`{"kind":"chat","payload":{"text":"a change"}}`)
		if stop := alice.Until("reasoning/cancel"); stop.GetStr("context") != "r1" {
			t.Errorf("cancelled with %s", stop.JSON())
		}
		tb.Live()
		tb.Shows("No reasoning in progress.")
		tb.Do(chromedp.SendKeys("#text", "to <all>"))
		alice.Send(`{"kind":"chat","payload":{"text":"what passes meanwhile"}}`)
		tb.Shows("what passes meanwhile")
		tb.WaitUntilStable()
		tb.Submit("#chat") // the typed text is still there
		said := alice.Until("chat")
		for said.GetStr("from") != gateway.OwnerName {
			said = alice.Until("chat")
		}
		if mewtest.Text(mewtest.Payload(said, "text")) != "to <all>" {
			t.Errorf("the owner says %s", said.JSON())
		}
		tb.WaitUntilStable()
		tb.Submit("#pause-alice")
		alice.Until("participant/pause")
		tb.Until(`document.querySelector(".tag.warn")`)
		tb.WaitUntilStable()
		tb.Submit("#resume-alice")
		alice.Until("participant/resume")
	})

	t.Run("link", func(t *testing.T) {
		tb := browsertest.NewTab(t, browser)
		tb.Open(p.url+"mew/link/home", p.token)
		tb.Live()
		tb.Shows("node")
		cat.Send(`{"kind":"chat","payload":{"text":"<u>meow</u>"}}`)
		tb.Shows("<u>meow</u>")
		// A change while the page is being fetched is fetched too.
		tb.Until(`(fetched = () => performance.getEntriesByName(location.href).length, true)`)
		tb.Until(`(before = fetched(), document.body.addEventListener("htmx:beforeSwap",
			() => htmx.trigger(document.getElementById("live"), "refresh"), { once: true }), true)`)
		propose(cat, "p3", "purr")
		tb.Shows("purr")
		tb.Until(`fetched() >= before + 2`)
		tb.WaitUntilStable()
		tb.Submit("#approve-" + mewtest.Key(t, b.RemoteLinks()[0].View(), "p3"))
		if req := cat.FromNode("mcp/request"); mewtest.About(req) != "p3" {
			t.Errorf("approved with %s", req.JSON())
		}
		cat.Control("participant/shutdown", `{}`, "chat/acknowledge")
		await(t, func() bool { return b.Links()[0].State == bridge.LinkDown })
		tb.Open(p.url+"mew/link/home", p.token)
		tb.Shows("shut this node down")
		tb.WaitUntilStable()
		tb.Click("#connect")
		tb.Shows("The link connects now.")
		await(t, func() bool { return b.Links()[0].State == bridge.LinkUp })
	})

	t.Run("narrow", func(t *testing.T) {
		alice.Send(fmt.Sprintf(`{"kind":"chat","payload":{"text":%q}}`, strings.Repeat("w", 400)),
			fmt.Sprintf(`{"id":%q,"kind":"mcp/proposal","to":[%q],"payload":{"method":%q}}`, strings.Repeat("i", 200), strings.Repeat("t", 200), strings.Repeat("m", 400)),
			`{"id":"r9","kind":"reasoning/start","payload":{}}`)
		alice.Fence()
		tb := browsertest.NewTab(t, browser)
		tb.Size(320, 568)
		for _, path := range []string{"mew", "mew/space/lab", "mew/link/home"} {
			tb.Open(p.url+path, p.token)
			if wide := browsertest.Eval[int](tb, `document.documentElement.scrollWidth`); wide > 320 {
				t.Errorf("%s is %d wide on a screen of 320", path, wide)
			}
		}
	})

	t.Run("barriers", func(t *testing.T) {
		tb := browsertest.NewTab(t, browser)
		for _, path := range []string{"mew", "mew/space/lab", "mew/link/home"} {
			tb.Open(p.url+path, p.token)
			tb.CheckBarriers()
		}
	})

	t.Run("no script", func(t *testing.T) {
		propose(alice, "p4", "quietly")
		alice.Fence()
		tb := browsertest.NewTab(t, browser)
		tb.WithoutScript()
		tb.Open(p.url+"mew/space/lab", p.token)
		tb.Shows("quietly")
		tb.Shows(hostile)
		tb.Click("#approve-" + mewtest.Key(t, r.G.Space("lab").View(), "p4"))
		tb.Shows("Sent.")
		if req := alice.Until("mcp/request"); mewtest.About(req) != "p4" {
			t.Errorf("approved with %s", req.JSON())
		}
	})
}
