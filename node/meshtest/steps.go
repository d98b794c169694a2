package meshtest

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
)

// PendingAsks returns the questions that wait for the member's owner.
func PendingAsks(t *testing.T, m *Member) []acl.Ask {
	t.Helper()
	asks, _, err := m.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 1000, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return asks
}

// OnlyAsk returns the only pending question.
func OnlyAsk(t *testing.T, m *Member) acl.Ask {
	t.Helper()
	asks := PendingAsks(t, m)
	if len(asks) != 1 {
		t.Fatalf("%d asks are pending, want 1", len(asks))
	}
	return asks[0]
}

// Decide makes the owner's decision about a question.
func Decide(t *testing.T, m *Member, ask acl.Ask, choice acl.Choice) {
	t.Helper()
	if _, err := m.Asks().Decide(t.Context(), ask.ID, ask.Hash, choice, "test", time.Now()); err != nil {
		t.Fatalf("decide %s: %v", choice, err)
	}
}

// Inbound returns an incoming message with the peer, conversation, intent and payload of out, from a principal at an
// address. An empty address means a native peer.
func Inbound(out node.Outgoing, principal, address string) bridge.Inbound {
	id := wire.NewMessageID()
	return bridge.Inbound{
		Principal: principal, Peer: out.To, Address: address, Verified: bridge.VerifiedNone,
		MessageID: id, ConvID: out.Conv, Intent: out.Intent, Payload: out.Payload, Time: time.Now(), Received: time.Now(),
		Raw: []byte(`{"id":"` + string(id) + `"}`), Digest: [32]byte([]byte(id)[:32]),
	}
}

// MustSend sends a message and waits for the outcome of the first attempt.
func MustSend(t *testing.T, n *node.Node, out node.Outgoing, wait time.Duration) owner.Sent {
	t.Helper()
	sent, err := n.Send(t.Context(), out, wait)
	if err != nil {
		t.Fatalf("Send: %v", err)
	}
	return sent
}

// ForeignMessage returns a message to a peer of the network "wire".
func ForeignMessage(peer string, conv wire.ConversationID, body string) node.Outgoing {
	a := bridge.Address{Kind: "wire", Link: "test", Peer: peer}
	return node.Outgoing{
		To: a.Pseudonym(), Address: a.String(), Conv: conv, Intent: wire.Deliver, Via: "owner",
		Payload: wire.Obj(
			wire.Member{Key: "action", Value: wire.Text("deliver")},
			wire.Member{Key: "message", Value: wire.Obj(wire.Member{Key: "body", Value: wire.Text(body)})},
		),
	}
}

// Outgoing returns a message that the owner sends.
func Outgoing(t *testing.T, to wire.AgentID, intent wire.Intent, payload string) node.Outgoing {
	t.Helper()
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return node.Outgoing{To: to, Intent: intent, Payload: v, Via: "owner"}
}

// WaitFor polls until done returns true. It is for the background work of real servers.
func WaitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("timed out: %s", what)
		}
	}
}

// Unlimited accepts messages from everyone, without limits.
func Unlimited(cfg *node.Config) {
	cfg.Policy.Mode = acl.Open
	cfg.Rates = acl.Rates{}
	cfg.Autonomy = &rules.Autonomy{Conversation: -1, Door: -1, Peer: -1, Strangers: -1, Token: -1, Total: -1}
}

// WithBook accepts negotiations from everyone without asking the owner, and stores agreed events, so that the test
// can see them.
func WithBook(cfg *node.Config) {
	cfg.Policy.Mode = acl.Open
	cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.negotiate", Hold: acl.Never}}
	cfg.Agreed = calendar.NewBook(calendar.BookConfig{Records: cfg.Store.Records()})
}

// Must fails the test unless the answer has the status.
func Must(t *testing.T, a Answer, status int) {
	t.Helper()
	if a.Status != status {
		t.Fatalf("answer = %d %s, want %d", a.Status, a.Body, status)
	}
}

// Mode sets the access mode.
func Mode(m acl.Mode) func(*node.Config) {
	return func(cfg *node.Config) { cfg.Policy.Mode = m }
}
