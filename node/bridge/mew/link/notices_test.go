package link

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	chatTo = `{"id":"%s","kind":"chat","to":["node"],"context":"%s","payload":{"text":"hello"}}`
	callTo = `{"id":"%s","kind":"mcp/request","to":["node"],"payload":{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"%s","arguments":{"query":"far"}}}}`
	pingTo = `{"id":"%s","kind":"mcp/request","to":["node"],"payload":{"jsonrpc":"2.0","id":7,"method":"ping"}}`
)

// fromNode returns the envelopes of one kind that the node sent, among those before a fence.
func fromNode(t *testing.T, before []string, kind string) (out []wire.Value) {
	t.Helper()
	for _, s := range before {
		if v := mewtest.Parse(t, s); v.GetStr("from") == "node" && v.GetStr("kind") == kind {
			out = append(out, v)
		}
	}
	return out
}

// settle waits until the node has handled what a participant sent: it answers a request in order.
func (l *testLab) settle(p *mewtest.Player, id string) {
	l.t.Helper()
	p.Send(`{"id":"` + id + `","kind":"participant/request-status","to":["node"],"payload":{}}`)
	for mewtest.About(p.FromNode("participant/status")) != id {
	}
}

// TestLinkLimits: two participants who write all the time use up the rate of their link, and nothing else. Other agents
// still reach the node, and each of the two gets one notice (MEW-Q4).
func TestLinkLimits(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open", Tools: bridge.Tools(), Limits: bridge.LinkLimits{Messages: 1}})
	cat, dog := l.peers["cat"], l.peers["dog"]
	for n := range 3 {
		cat.Send(fmt.Sprintf(chatTo, fmt.Sprint("c", n), fmt.Sprint("t", n)))
		dog.Send(fmt.Sprintf(chatTo, fmt.Sprint("d", n), fmt.Sprint("t", n)))
	}
	for name, p := range map[string]*mewtest.Player{"cat": cat, "dog": dog} {
		v := p.FromNode("participant/status")
		for to, _ := v.Get("to"); mewtest.Text(to.At(0)) != name; to, _ = v.Get("to") { // everybody sees everything
			v = p.FromNode("participant/status")
		}
		if mewtest.Text(mewtest.Payload(v, "status")) != "rate_limited" || !strings.HasPrefix(mewtest.About(v), name[:1]) || mewtest.Payload(v, "messages_in_context").IsNull() || number(mewtest.Payload(v, "retry_after")) == "" {
			t.Errorf("%s got %s", name, v.JSON())
		}
	}
	cat.Send(fmt.Sprintf(callTo, "r1", "discover"), fmt.Sprintf(pingTo, "r2"), fmt.Sprintf(proposalText, "p1", "", "discover"))
	l.settle(cat, "done")
	l.await("settled", func() bool { return len(l.l.queues[0])+len(l.l.queues[1])+len(l.l.queues[2])+len(l.l.queues[3]) == 0 })
	for _, kind := range []string{"mcp/response", "mcp/reject", "participant/status"} {
		if more := fromNode(t, cat.Fence(), kind); len(more) > 0 {
			t.Errorf("cat got another notice: %s", more[0].JSON())
		}
	}
	for n := range 25 { // the limit of one stranger in an hour, if no other stranger writes
		sent, err := l.far.Send(t.Context(), node.Outgoing{
			To: l.home.ID(), Conv: "conv_unrelated", Intent: wire.Deliver, Via: "owner",
			Payload: mewtest.Parse(t, `{"action":"deliver","message":{"body":"an unrelated word"}}`),
		}, 20*time.Second)
		if err != nil || sent.State != owner.SendDelivered {
			t.Fatalf("message %d of an unrelated agent: %+v, %v", n, sent, err)
		}
	}
}

// TestLinkLimitedRequest: over the limit, a request gets an error and a proposal is rejected, at most once a minute.
func TestLinkLimitedRequest(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open", Tools: bridge.Tools(), Limits: bridge.LinkLimits{ToolCalls: 1, Messages: 3}})
	cat, dog := l.peers["cat"], l.peers["dog"]
	cat.Send(fmt.Sprintf(callTo, "r1", "discover"))
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "r1" || mewtest.Payload(v, "result").IsNull() {
		t.Errorf("the first call: %s", v.JSON())
	}
	cat.Send(fmt.Sprintf(callTo, "r2", "discover"), fmt.Sprintf(callTo, "r3", "discover"))
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "r2" || number(mewtest.Payload(v, "error", "code")) != "-32001" || number(mewtest.Payload(v, "id")) != "7" {
		t.Errorf("the second call: %s", v.JSON())
	}
	cat.Send(fmt.Sprintf(pingTo, "r4"))
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "r4" || mewtest.Payload(v, "result").IsNull() {
		t.Errorf("a ping, which is not a tool call: %s", v.JSON())
	}
	cat.Send(fmt.Sprintf(pingTo, "r5"))
	cat.FromNode("mcp/response")
	dog.Send(fmt.Sprintf(proposalText, "p1", "", "discover"))
	if v := dog.FromNode("mcp/reject"); mewtest.About(v) != "p1" || mewtest.Text(mewtest.Payload(v, "reason")) != "busy" {
		t.Errorf("a proposal: %s", v.JSON())
	}
	if v := dog.FromNode("participant/status"); mewtest.About(v) != "p1" || mewtest.Text(mewtest.Payload(v, "status")) != "rate_limited" {
		t.Errorf("a proposal: %s", v.JSON())
	}
}

// cannotStore holds values that the gateway passes on and that no message of the mesh can hold.
var cannotStore = []string{`9007199254740993`, `9007199254740993.0`, `9.007199254740993e15`, `1e999`, strings.Repeat(`{"a":`, 40) + `1` + strings.Repeat(`}`, 40)}

// TestLinkRejectsWhatItCannotTake: a proposal or a call that cannot become a message gets an answer.
func TestLinkRejectsWhatItCannotTake(t *testing.T) {
	config := newClubConfig(t, allKinds, "cat", "dog")
	config.Participants[2].Name = "dog 2"
	r := start(t, config)
	l := newLabOn(t, r, meshtest.New(t), linkOf(r, bridge.LinkPolicy{Access: "open", Tools: bridge.Tools()}))
	cat, dog := l.peers["cat"], l.peers["dog"]
	reject := func(id string) {
		t.Helper()
		if v := cat.FromNode("mcp/reject"); mewtest.About(v) != id || mewtest.Text(mewtest.Payload(v, "reason")) != "policy" {
			t.Errorf("the proposal is answered with %s", v.JSON())
		}
	}
	cat.Send(fmt.Sprintf(proposalText, "p1", "", strings.Repeat("x", wire.MaxMessage)))
	reject("p1")
	dog.Send(fmt.Sprintf(proposalText, "p2", "", "discover"))
	reject("p2")
	for i, params := range cannotStore {
		cat.Send(fmt.Sprintf(`{"id":"q%d","kind":"mcp/proposal","to":["node"],"payload":{"method":"x","params":%s}}`, i, params))
		reject(fmt.Sprint("q", i))
	}
	dog.Send(fmt.Sprintf(callTo, "r1", "discover"))
	if v := dog.FromNode("mcp/response"); mewtest.Payload(v, "error").IsNull() {
		t.Errorf("a call is answered with %s", v.JSON())
	}
}

func TestLinkTellsOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notices := newNotices()
		for after, want := range []bool{true, false, true} {
			if shouldTell(notices, "chat", "cat") != want {
				t.Errorf("after %d half minutes: %v", after, !want)
			}
			time.Sleep(30 * time.Second)
		}
	})
}

// TestLinkTellsThatTheOwnerDecides: the sender of a tool call that waits for the owner gets a notice for each call; the
// sender of chats gets one.
func TestLinkTellsThatTheOwnerDecides(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "approval", Tools: bridge.Tools()})
	cat, dog := l.peers["cat"], l.peers["dog"]
	cat.Send(fmt.Sprintf(callTo, "r1", "discover"))
	v := cat.FromNode("participant/status")
	if mewtest.About(v) != "r1" || mewtest.Text(mewtest.Payload(v, "status")) != "pending_approval" || !strings.Contains(mewtest.Text(mewtest.Payload(v, "reason")), "owner") {
		t.Errorf("the caller got %s", v.JSON())
	}
	l.decide(acl.Approve)
	if v := cat.FromNode("mcp/response"); mewtest.About(v) != "r1" || mewtest.Payload(v, "result").IsNull() {
		t.Errorf("after the approval: %s", v.JSON())
	}
	dog.Send(fmt.Sprintf(chatTo, "c1", "t1"))
	v = dog.FromNode("participant/status")
	for mewtest.About(v) == "r1" {
		v = dog.FromNode("participant/status")
	}
	if mewtest.About(v) != "c1" || mewtest.Text(mewtest.Payload(v, "status")) != "pending_approval" {
		t.Errorf("the sender of the chat got %s", v.JSON())
	}
}

// TestLinkReadsLargeWelcome: a space may be large, so a link reads a welcome of up to 4 MiB, and nothing else of that
// size (MEW-Q4).
func TestLinkReadsLargeWelcome(t *testing.T) {
	describe := func(kind string, size int) []byte {
		return fmt.Appendf(nil, `{"protocol":"mew/v0.4","id":"w","from":"system:gateway","kind":"%s","payload":{"you":{"id":"node","capabilities":[]},"participants":[{"id":"cat","capabilities":[{"kind":"chat","payload":{"x":"%s"}}]}],"active_streams":[]}}`, kind, strings.Repeat("x", size))
	}
	for size, want := range map[int]bool{1 << 10: true, 3 << 20: true, 4 << 20: false} {
		if _, ok := parseFromGateway(describe(envelope.KindWelcome, size)); ok != want {
			t.Errorf("a welcome of %d bytes is read: %v", size, ok)
		}
	}
	if _, ok := parseFromGateway(describe(envelope.KindChat, 3<<20)); ok {
		t.Error("a chat of 3 MiB is read")
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, websocket.Options{QueueBytes: 8 << 20})
		if err != nil {
			t.Error(err)
			return
		}
		if err := conn.Send(websocket.Text(describe(envelope.KindWelcome, 3<<20))); err != nil {
			t.Error(err)
		}
		conn.Read() // until the other side leaves
		conn.Drain()
	}))
	defer srv.Close()
	r := start(t, newClubConfig(t, allKinds))
	b, err := New(Config{
		Links:  []bridge.Link{{Name: "home", Kind: Kind, URL: "ws" + strings.TrimPrefix(srv.URL, "http")}},
		Tokens: map[string]client.Credential{"home": "token"}, Records: r.Store.Records(), Steps: r.Store.Steps(), Dial: mewtest.PlainDial,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Test(t.Context(), "home"); err != nil {
		t.Errorf("a space whose welcome has 3 MiB cannot be joined: %v", err)
	}
}
