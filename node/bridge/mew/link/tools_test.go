package link

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestLinkTools: a link offers no tools unless the owner switches them on: discover, send and inbox.
func TestLinkTools(t *testing.T) {
	const toSpace = "to the space"
	const fromSpace = "from the space"
	call := func(p *mewtest.Player, id, method, params string) wire.Value {
		t.Helper()
		p.Send(`{"id":"` + id + `","kind":"mcp/request","to":["node"],"payload":{"jsonrpc":"2.0","id":"` + id + `","method":"` + method + `","params":` + params + `}}`)
		v := p.FromNode("mcp/response")
		for mewtest.About(v) != id { // everybody sees everything
			v = p.FromNode("mcp/response")
		}
		if mewtest.Text(mewtest.Payload(v, "id")) != id {
			t.Errorf("%s %s is answered with %s", method, params, v.JSON())
		}
		return v
	}
	off := newLab(t, bridge.LinkPolicy{Access: "open"})
	if v := call(off.peers["cat"], "r1", "tools/list", `{}`); string(mewtest.Payload(v, "result", "tools").JSON()) != "[]" {
		t.Errorf("tools of a link without any: %s", v.JSON())
	}
	if v := call(off.peers["cat"], "r2", "tools/call", `{"name":"discover","arguments":{"query":"far"}}`); !goldentest.Says(t, "a tool that is off", string(mewtest.Payload(v, "error").JSON())) {
		t.Errorf("a tool that is off: %s", v.JSON())
	}
	if v := call(off.peers["cat"], "r3", "resources/read", `{}`); !strings.Contains(string(mewtest.Payload(v, "error").JSON()), "-32601") {
		t.Errorf("an unknown method: %s", v.JSON())
	}

	// The SDK of the reference sends no JSON-RPC id; it matches the answer by the envelope id.
	cat := off.peers["cat"]
	cat.Send(`{"id":"n0","kind":"mcp/request","to":["node"],"payload":{"jsonrpc":"2.0","method":"notifications/initialized"}}`,
		`{"id":"n1","kind":"mcp/request","to":["node"],"payload":{"method":"tools/list"}}`)
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "n1" || string(mewtest.Payload(v).JSON()) != `{"jsonrpc":"2.0","result":{"tools":[]}}` {
		t.Errorf("a request without a JSON-RPC id is answered with %s", v.JSON())
	}

	l := newLab(t, bridge.LinkPolicy{Access: "open", Tools: bridge.Tools()})
	cat = l.peers["cat"]
	cat.Send(`{"id":"n2","kind":"mcp/request","to":["node"],"payload":{"method":"tools/call","params":{"name":"discover","arguments":{"query":"far"}}}}`)
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "n2" || !strings.Contains(string(mewtest.Payload(v, "result").JSON()), string(l.far.ID())) {
		t.Errorf("a call without a JSON-RPC id is answered with %s", v.JSON())
	}
	if v := call(cat, "r4", "initialize", `{}`); mewtest.Text(mewtest.Payload(v, "result", "protocolVersion")) == "" {
		t.Errorf("initialize: %s", v.JSON())
	}
	if v := call(cat, "r5", "tools/call", `{"name":"discover","arguments":{"query":"far"}}`); !strings.Contains(string(v.JSON()), string(l.far.ID())) {
		t.Errorf("discover: %s", v.JSON())
	}
	v := call(cat, "r6", "tools/call", `{"name":"send","arguments":{"to":"`+string(l.far.ID())+`","text":"`+fromSpace+`"}}`)
	conv := mewtest.Text(mewtest.Payload(v, "result", "structuredContent", "conversation_id"))
	got := l.inbox(l.far, owner.ItemNew)
	if string(got.Conversation) != conv || got.Peer != l.home.ID() || !strings.Contains(string(got.Payload), fromSpace) || !strings.Contains(string(got.Payload), `"peer":"cat"`) {
		t.Errorf("the agent got %+v %s", got, got.Payload)
	}
	if _, err := l.far.Send(t.Context(), node.Outgoing{
		To: l.home.ID(), Conv: got.Conversation, Intent: wire.Deliver, Via: "owner",
		Payload: mewtest.Parse(t, `{"action":"deliver","message":{"body":"`+toSpace+`"}}`),
	}, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if v := call(cat, "r7", "tools/call", `{"name":"inbox","arguments":{"conversation_id":"`+conv+`"}}`); !strings.Contains(string(v.JSON()), toSpace) {
		t.Errorf("inbox: %s", v.JSON())
	}
	// A participant can neither read nor write in a conversation that another one opened.
	dog := l.peers["dog"]
	if v := call(dog, "r8", "tools/call", `{"name":"inbox","arguments":{"conversation_id":"`+conv+`"}}`); strings.Contains(string(v.JSON()), toSpace) {
		t.Errorf("another's inbox: %s", v.JSON())
	}
	if v := call(dog, "r9", "tools/call", `{"name":"send","arguments":{"to":"`+string(l.far.ID())+`","text":"x","conversation_id":"`+conv+`"}}`); mewtest.Payload(v, "error").IsNull() {
		t.Errorf("another's conversation: %s", v.JSON())
	}
	// Its opener writes again with the tool.
	call(cat, "r10", "tools/call", `{"name":"send","arguments":{"to":"`+string(l.far.ID())+`","text":"thank you","conversation_id":"`+conv+`"}}`)
	items, _, err := l.far.Inbox(t.Context(), owner.ItemNew, "", 10)
	for end := time.Now().Add(10 * time.Second); err == nil && len(items) < 2 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // the tool does not wait for the delivery
		items, _, err = l.far.Inbox(t.Context(), owner.ItemNew, "", 10)
	}
	if err != nil || len(items) != 2 || !strings.Contains(string(items[1].Payload), "thank you") {
		t.Errorf("the agent has %+v, %v", items, err)
	}
}

// TestLinkAnswersEveryID: the answer to a tool call has the JSON-RPC id of the call, also if that id is a large number.
func TestLinkAnswersEveryID(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open", Tools: bridge.Tools()})
	cat := l.peers["cat"]
	for _, id := range []string{`"7"`, `9007199254740993`, `1e999`, `1.50`} {
		cat.Send(strings.Replace(fmt.Sprintf(callTo, "r1", "discover"), `"id":7`, `"id":`+id, 1))
		if v := cat.FromNode("mcp/response"); string(mewtest.Payload(v, "id").JSON()) != id {
			t.Errorf("the call %s is answered with %s", id, v.JSON())
		}
	}
}

// use runs a tool for a participant and returns its structured result.
func (l *testLab) use(from, tool, arguments string) wire.Value {
	l.t.Helper()
	return mewtest.Payload(wire.Obj(wire.Field("payload", l.l.runTool(l.t.Context(), from, tool, mewtest.Parse(l.t, arguments)))), "result", "structuredContent")
}

// TestOpenedConversationsAreBounded: a participant that opens many conversations loses only its own oldest one, and a
// refused send opens none.
func TestOpenedConversationsAreBounded(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open", Tools: bridge.Tools()})
	send := `{"to":"` + string(l.far.ID()) + `","text":"x"}`
	theirs := l.use("dog", bridge.ToolSend, send).GetStr("conversation_id")
	first := l.use("cat", bridge.ToolSend, send).GetStr("conversation_id")
	for range maxOpenedByOne {
		l.use("cat", bridge.ToolSend, send)
	}
	all, err := l.l.conversationsOpened(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for _, b := range all {
		count[b.To]++
		count[string(b.Conv)]++
	}
	if count["cat"] != maxOpenedByOne || count[theirs] != 1 || count[first] != 0 {
		t.Errorf("%d of cat, %d of dog, %d the first of cat", count["cat"], count[theirs], count[first])
	}
	if v := l.use("owl", bridge.ToolSend, `{"to":"`+string(l.home.ID())+`","text":"x"}`); !v.IsNull() {
		t.Errorf("a message to the node itself was sent: %s", v.JSON())
	}
	if again, err := l.l.conversationsOpened(t.Context()); err != nil || len(again) != len(all) {
		t.Errorf("after a refused send: %d conversations, %v, want %d", len(again), err, len(all))
	}
}

// TestInboxShowsNewest: the tool inbox shows the newest messages of a long conversation.
func TestInboxShowsNewest(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open", Tools: bridge.Tools()})
	send := `{"to":"` + string(l.far.ID()) + `","text":"%s"}`
	conv := l.use("cat", bridge.ToolSend, fmt.Sprintf(send, "first")).GetStr("conversation_id")
	for range maxInbox {
		l.use("cat", bridge.ToolSend, fmt.Sprintf(send, `last","conversation_id":"`+conv))
	}
	list, _ := l.use("cat", bridge.ToolInbox, `{"conversation_id":"`+conv+`"}`).Get("conversations")
	messages, _ := list.At(0).Get("messages")
	if messages.Len() != maxInbox || messages.At(0).GetStr("text") != "last" || messages.At(maxInbox-1).GetStr("text") != "last" {
		t.Errorf("%d messages, from %s", messages.Len(), messages.At(0).JSON())
	}
}

// TestLinkToolWaits: a tool call of a stranger waits for the owner, and its result reaches the caller afterwards
// (MEW-L3).
func TestLinkToolWaits(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "approval", Tools: []string{bridge.ToolDiscover}})
	cat := l.peers["cat"]
	text := `{"id":"%s","kind":"mcp/request","to":["node"],"payload":{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"discover","arguments":{"query":"far"}}}}`
	cat.Send(fmt.Sprintf(text, "r1"))
	l.decide(acl.Approve)
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "r1" || !strings.Contains(string(mewtest.Payload(v, "result").JSON()), string(l.far.ID())) {
		t.Errorf("after the approval: %s", v.JSON())
	}
	cat.Send(fmt.Sprintf(text, "r2"))
	l.decide(acl.Reject)
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "r2" || number(mewtest.Payload(v, "error", "code")) != "-32001" {
		t.Errorf("after the rejection: %s", v.JSON())
	}
}

// TestLinkPauseKeepsToolResult: the outbox keeps the result of a tool call that ends during a pause (MEW-L5).
func TestLinkPauseKeepsToolResult(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open", Tools: []string{bridge.ToolDiscover}})
	cat := l.peers["cat"]
	l.Inject(t.Context(), "cat", []byte(`{"id":"p","kind":"participant/pause","to":["node"],"payload":{}}`))
	l.Inject(t.Context(), "cat", []byte(`{"id":"r1","kind":"mcp/request","to":["node"],"payload":{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"discover","arguments":{"query":"far"}}}}`))
	l.inbox(l.home, owner.ItemAnswered)
	l.Inject(t.Context(), "cat", []byte(`{"id":"q","kind":"participant/resume","to":["node"],"payload":{}}`))
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "r1" || !strings.Contains(string(mewtest.Payload(v, "result").JSON()), string(l.far.ID())) {
		t.Errorf("after the pause: %s", v.JSON())
	}
}
