package link

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// testLab is a space, a node with a link to the space, another node, and the directory that lists both.
type testLab struct {
	*testLink
	t    *testing.T
	home *meshtest.Member // the node with the link
	far  *meshtest.Member // another node
}

func newLab(t *testing.T, policy bridge.LinkPolicy, nodeMay ...string) *testLab {
	t.Helper()
	if len(nodeMay) == 0 {
		nodeMay = allKinds
	}
	r := start(t, newClubConfig(t, nodeMay, "cat", "dog"))
	return newLabOn(t, r, meshtest.New(t), linkOf(r, policy))
}

// newLabOn makes the nodes of a lab in a mesh, with these links.
func newLabOn(t *testing.T, r *rig, m *meshtest.Mesh, links ...bridge.Link) *testLab {
	t.Helper()
	return newLabWith(t, r, m, func(c *node.Config) { c.HoldFor = 5 * time.Minute }, links...)
}

// newLabWith is newLabOn with another configuration of the node.
func newLabWith(t *testing.T, r *rig, m *meshtest.Mesh, set func(*node.Config), links ...bridge.Link) *testLab {
	t.Helper()
	home := m.Node("home", set)
	mesh, err := home.Attach(LinkKind(), links)
	if err != nil {
		t.Fatal(err)
	}
	far := m.Node("far", nil)
	k := newTestLinkWith(t, r, Config{
		Links: links, Mesh: mesh, Records: home.Store.Records(), Steps: home.Store.Steps(),
	}, func(made *Bridge) { home.Connect(LinkKind(), made) }, "cat", "dog")
	return &testLab{testLink: k, t: t, home: home, far: far}
}

// inbox waits for the only item of a member and returns it.
func (l *testLab) inbox(m *meshtest.Member, state owner.ItemState) node.Item {
	l.t.Helper()
	items, _, err := m.WaitInbox(l.t.Context(), owner.Query{State: string(state), Limit: 10, Wait: 20 * time.Second})
	if err != nil || len(items) != 1 {
		l.t.Fatalf("%d items in the inbox of %s, %v, want 1", len(items), m.Name, err)
	}
	return items[0]
}

// ask waits for the only question to the owner and returns it.
func (l *testLab) ask() acl.Ask {
	l.t.Helper()
	var found acl.Ask
	l.await("asked", func() bool {
		asks, _, err := l.home.Asks().List(l.t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err != nil || len(asks) > 1 {
			l.t.Fatalf("%d questions, %v", len(asks), err)
		}
		if len(asks) == 1 {
			found = asks[0]
		}
		return len(asks) == 1
	})
	return found
}

func (l *testLab) decide(c acl.Choice) {
	l.t.Helper()
	ask := l.ask()
	if _, err := l.home.Asks().Decide(l.t.Context(), ask.ID, ask.Hash, c, "test", time.Now()); err != nil {
		l.t.Fatalf("decide: %v", err)
	}
}

// TestLinkChat: a chat to the node becomes a mesh.message, and the owner's answer becomes a chat in the same
// conversation. The link acknowledges the chat as received, then as read (MEW-L3).
func TestLinkChat(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	cat.Send(`{"id":"c1","kind":"chat","to":["node"],"payload":{"text":"hello"}}`)
	if ack := cat.FromNode("chat/acknowledge"); mewtest.About(ack) != "c1" || mewtest.Payload(ack, "status").JSON() == nil || mewtest.Text(mewtest.Payload(ack, "status")) != "received" {
		t.Errorf("acknowledged with %s, want received", ack.JSON())
	}
	item := l.inbox(l.home, owner.ItemNew)
	if item.Address != "mew:home/cat" || item.Intent != wire.Deliver || item.Verified != bridge.VerifiedNone {
		t.Errorf("item %+v, want a mesh.message of mew:home/cat", item)
	}
	var payload struct {
		Message  struct{ Body string }
		Metadata struct {
			Bridge struct {
				Link, Kind, Peer string
				EnvelopeID       string `json:"envelope_id"`
				Verified         bool
			}
		}
	}
	if err := json.Unmarshal(item.Payload, &payload); err != nil || payload.Message.Body != "hello" || payload.Metadata.Bridge.EnvelopeID != "c1" {
		t.Errorf("payload %s, %v", item.Payload, err)
	}
	if _, err := l.home.Acknowledge(t.Context(), item.ID); err != nil {
		t.Fatal(err)
	}
	if ack := cat.FromNode("chat/acknowledge"); mewtest.About(ack) != "c1" || mewtest.Text(mewtest.Payload(ack, "status")) != "read" {
		t.Errorf("acknowledged with %s, want read", ack.JSON())
	}
	sent, err := l.home.Send(t.Context(), node.Outgoing{
		To: item.Peer, Address: item.Address, Conv: item.Conversation, Intent: wire.Deliver, Via: "owner",
		Payload: mewtest.Parse(t, `{"action":"deliver","message":{"subject":"re","body":"hi"}}`),
	}, 20*time.Second)
	if err != nil || sent.State != owner.SendDelivered {
		t.Fatalf("Send: %+v, %v", sent, err)
	}
	chat := cat.FromNode("chat")
	if mewtest.Text(mewtest.Payload(chat, "text")) != "re\n\nhi" || chat.GetStr("context") != string(item.Conversation) {
		t.Errorf("the space got %s", chat.JSON())
	}
	// An answer, by correlation or by context, arrives in the same conversation.
	cat.Send(`{"id":"c2","kind":"chat","to":["node"],"correlation_id":["` + chat.GetStr("id") + `"],"payload":{"text":"two"}}`)
	if again := l.inbox(l.home, owner.ItemNew); again.Conversation != item.Conversation {
		t.Errorf("the answer is in %s, want %s", again.Conversation, item.Conversation)
	}
}

// TestLinkAsksForStrangers: a space is a stranger by default, whatever the node's own access mode is (MEW-L2).
func TestLinkAsksForStrangers(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "approval"})
	l.peers["cat"].Send(`{"id":"c1","kind":"chat","to":["node"],"payload":{"text":"hello"}}`)
	if ask := l.ask(); ask.Subject != "mew:home" || !strings.Contains(ask.Rule, "approval") {
		t.Errorf("the owner is asked about %s by %s", ask.Subject, ask.Rule)
	}
	l.decide(acl.Approve)
	if ack := l.peers["cat"].FromNode("chat/acknowledge"); mewtest.Text(mewtest.Payload(ack, "status")) != "received" {
		t.Errorf("after the approval: %s", ack.JSON())
	}
	l.peers["dog"].Send(`{"id":"d1","kind":"chat","to":["node"],"payload":{"text":"me too"}}`)
	l.ask() // the first approval was for one message, because nobody proves who wrote it (AM-97)
	if status := l.home.Call("POST", "/peers/mew:home", map[string]string{"action": "approve"}, nil); status != http.StatusOK {
		t.Fatalf("approve the link: %d", status)
	}
	l.peers["dog"].Send(`{"id":"d2","kind":"chat","to":["node"],"payload":{"text":"and me"}}`)
	for mewtest.About(l.peers["dog"].FromNode("chat/acknowledge")) != "d2" { // the rule is for the whole link
	}
}

// TestLinkBlocks: the owner can block one participant, also while a message of it waits, or the whole space, without an
// earlier rule about it.
func TestLinkBlocks(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "approval"})
	block := func(name string) {
		t.Helper()
		if status := l.home.Call("POST", "/peers/"+url.PathEscape(name), map[string]string{"action": "block"}, nil); status != http.StatusOK {
			t.Errorf("block %s: %d", name, status)
		}
	}
	say := func(peer, text string) {
		l.Inject(t.Context(), peer, []byte(`{"id":"`+text+`","kind":"chat","to":["node"],"payload":{"text":"`+text+`"}}`))
	}
	count := func(state owner.ItemState) int {
		t.Helper()
		items, _, err := l.home.Inbox(t.Context(), state, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(items)
	}
	say("cat", "waits")
	ask := l.ask()
	block("mew:home/cat")
	if _, err := l.home.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); err == nil || count(owner.ItemNew) != 0 {
		t.Errorf("a message of a blocked participant was released, %v", err)
	}
	say("cat", "refused")
	say("dog", "held")
	if n := count(owner.ItemHeld); n != 2 {
		t.Errorf("%d messages wait, want the first one of cat and that of dog", n)
	}
	block("mew:home")
	say("dog", "refused too")
	if n := count(owner.ItemHeld); n != 2 {
		t.Errorf("%d messages wait after the block of the space", n)
	}
}

// TestLinkCancelsOneChat: a chat/cancel takes back only the chats that it names, not the others that wait in the same
// conversation.
func TestLinkCancelsOneChat(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "approval"})
	cat := l.peers["cat"]
	waiting := func() (texts []string) {
		items, _, err := l.home.Inbox(t.Context(), owner.ItemHeld, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			texts = append(texts, mewtest.Text(mewtest.Get(mewtest.Get(mewtest.Parse(t, string(item.Payload)), "message"), "body")))
		}
		slices.Sort(texts)
		return texts
	}
	for _, text := range []string{"one", "two", "three", "four"} {
		cat.Send(`{"id":"` + text + `","kind":"chat","to":["node"],"context":"c","payload":{"text":"` + text + `"}}`)
	}
	l.await("asked about all", func() bool { return len(waiting()) == 4 })
	for _, tt := range []struct{ cancel, left string }{
		{`["one"]`, "[four three two]"}, // the question about it is the first one
		{`["three","two"]`, "[four]"},
		{`["three"]`, "[four]"}, // again, so there is nothing to take back
	} {
		cat.Send(`{"kind":"chat/cancel","to":["node"],"correlation_id":` + tt.cancel + `,"payload":{}}`)
		cat.Control("participant/request-status", `{}`, "participant/status")
		l.await("rid of "+tt.cancel, func() bool { return len(waiting()) <= strings.Count(tt.left, " ")+1 })
		if got := fmt.Sprint(waiting()); got != tt.left {
			t.Errorf("after the cancellation of %s %s wait, want %s", tt.cancel, got, tt.left)
		}
	}
	if ask := l.ask(); ask.Waiting != 0 || !strings.Contains(string(ask.Body), "four") {
		t.Errorf("the owner is asked about %s and %d more", ask.Body, ask.Waiting)
	}
}

// TestLinkSendWaits: a caller that sends to a participant and waits gets the participant's answer, not only the news
// that the space accepted the message.
func TestLinkSendWaits(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "approval"}) // an expected answer does not wait for the owner
	cat := l.peers["cat"]
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		chat := cat.FromNode("chat")
		cat.Send(`{"kind":"chat","to":["node"],"correlation_id":["` + chat.GetStr("id") + `"],"payload":{"text":"very well"}}`)
	}()
	var sent struct {
		State string `json:"state"`
		Reply struct {
			Payload struct {
				Message struct {
					Body string `json:"body"`
				} `json:"message"`
			} `json:"payload"`
		} `json:"reply"`
	}
	status := l.home.Call("POST", "/send", map[string]any{
		"to": "mew:home/cat", "intent": "mesh.message", "wait_seconds": 20,
		"payload": json.RawMessage(`{"action":"deliver","message":{"body":"how are you?"}}`),
	}, &sent)
	<-answered
	if status != 200 || sent.State != "delivered" || sent.Reply.Payload.Message.Body != "very well" {
		t.Errorf("%d: %+v, want the answer", status, sent)
	}
}

// deafConn is a connection that loses what arrives while deaf is set.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Read(p []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(p); err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

// makeDeaf lets the newest connection to r, and no later one, lose what arrives once the caller calls deafen.
func makeDeaf(r *rig) (deafen func()) {
	dial := r.Dial
	var newest atomic.Pointer[atomic.Bool]
	r.Dial = func(ctx context.Context, u *url.URL) (net.Conn, error) {
		conn, err := dial(ctx, u)
		deaf := new(atomic.Bool)
		newest.Store(deaf)
		return deafConn{conn, deaf}, err
	}
	return func() { newest.Load().Store(true) }
}

// TestLinkRepeatsChat: if a connection breaks before the echo of a chat comes, the outbox sends the chat again. A node
// that has received both takes them for one message.
func TestLinkRepeatsChat(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds, "cat", "dog", "away-node"))
	deafen := makeDeaf(r)
	l := newLabOn(t, r, meshtest.New(t), linkOf(r, bridge.LinkPolicy{Access: "open"}))
	away := newTestLink(t, r, Config{
		Links: []bridge.Link{{Name: "away", Kind: Kind, URL: r.URL(""), Space: "lab"}}, Mesh: bridgetest.Mesh{}, Records: r.Store.Records(),
	})
	repeated := away.newChat("node")
	deafen()
	first := make(chan error, 1)
	go func() {
		_, err := away.Deliver(t.Context(), repeated)
		first <- err
	}()
	l.inbox(l.home, owner.ItemNew)
	away.Disconnect()
	if err := <-first; err == nil {
		t.Error("without an echo, the chat counts as delivered")
	}
	away.Reconnect()
	last := away.newChat("node")
	for _, d := range []bridge.Delivery{repeated, last} {
		if _, err := away.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	var items []node.Item
	l.await("in the inbox", func() bool {
		var err error
		items, _, err = l.home.Inbox(t.Context(), owner.ItemNew, "", 10)
		return err == nil && strings.Contains(string(items[len(items)-1].Payload), last.ID)
	})
	if len(items) != 2 {
		t.Errorf("two chats are %d messages in the inbox", len(items))
	}
}
