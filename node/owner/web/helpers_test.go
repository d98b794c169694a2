package web_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/web"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	hello          = `{"action":"deliver","message":{"body":"hello"}}`
	proposeSeveral = `{"action":"propose","event":{"title":"Coffee","proposed_times":["2036-02-21T10:00:00-08:00","2036-02-21T14:00:00-08:00"],"duration":"30m","location":"TBD"}}`
)

// pendingAsks returns the questions that wait for the member's owner.
func pendingAsks(t *testing.T, m *meshtest.Member) []acl.Ask {
	t.Helper()
	asks, _, err := m.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 1000, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return asks
}

// onlyAsk returns the only pending question.
func onlyAsk(t *testing.T, m *meshtest.Member) acl.Ask {
	t.Helper()
	asks := pendingAsks(t, m)
	if len(asks) != 1 {
		t.Fatalf("%d asks are pending, want 1", len(asks))
	}
	return asks[0]
}

func decide(t *testing.T, m *meshtest.Member, ask acl.Ask, choice acl.Choice) {
	t.Helper()
	if _, err := m.Asks().Decide(t.Context(), ask.ID, ask.Hash, choice, "test", time.Now()); err != nil {
		t.Fatalf("decide %s: %v", choice, err)
	}
}

// inbound returns a message from a principal at an address; an empty address means a native peer.
func inbound(out node.Outgoing, principal, address string) bridge.Inbound {
	id := wire.NewMessageID()
	return bridge.Inbound{
		Principal: principal, Peer: out.To, Address: address, Verified: bridge.VerifiedNone,
		MessageID: id, ConvID: out.Conv, Intent: out.Intent, Payload: out.Payload, Time: time.Now(), Received: time.Now(),
		Raw: []byte(`{"id":"` + string(id) + `"}`), Digest: [32]byte([]byte(id)[:32]),
	}
}

func mustSend(t *testing.T, n *node.Node, out node.Outgoing, wait time.Duration) node.Sent {
	t.Helper()
	sent, err := n.Send(t.Context(), out, wait)
	if err != nil {
		t.Fatalf("Send: %v", err)
	}
	return sent
}

// to returns a message to a peer of the network "wire".
func to(peer string, conv wire.ConversationID, body string) node.Outgoing {
	a := bridge.Address{Kind: "wire", Link: "test", Peer: peer}
	return node.Outgoing{
		To: a.Pseudonym(), Address: a.String(), Conv: conv, Intent: wire.Deliver, Via: "owner",
		Payload: wire.Obj(
			wire.Member{Key: "action", Value: wire.Text("deliver")},
			wire.Member{Key: "message", Value: wire.Obj(wire.Member{Key: "body", Value: wire.Text(body)})},
		),
	}
}

func outgoing(t *testing.T, to wire.AgentID, intent wire.Intent, payload string) node.Outgoing {
	t.Helper()
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return node.Outgoing{To: to, Intent: intent, Payload: v, Via: "owner"}
}

// waitFor polls until done returns true, for work in the background of real servers.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("timed out: %s", what)
		}
	}
}

// unlimited removes the message limits.
func unlimited(cfg *node.Config) {
	cfg.Policy.Mode = acl.Open
	cfg.Rates = acl.Rates{}
}

// withBook stores agreed events, so that the test can see them.
func withBook(cfg *node.Config) {
	cfg.Policy.Mode = acl.Open
	cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.negotiate", Hold: acl.Never}}
	cfg.Agreed = calendar.NewBook(calendar.BookConfig{Records: cfg.Store.Records()})
}

func must(t *testing.T, a meshtest.Answer, status int) {
	t.Helper()
	if a.Status != status {
		t.Fatalf("answer = %d %s, want %d", a.Status, a.Body, status)
	}
}

func mode(m acl.Mode) func(*node.Config) {
	return func(cfg *node.Config) { cfg.Policy.Mode = m }
}

// namedSetup is the process around a node whose owner has named it, without a program.
type namedSetup struct{}

func (namedSetup) Profile() web.Profile {
	return web.Profile{Name: "Sarah's agent", Owner: "Sarah", Description: "Schedules.", Directories: []string{"https://directory.example/v1"}, File: "/data/agentmesh.yaml", Fixed: []string{"name"}}
}
func (namedSetup) SaveProfile(context.Context, web.Profile) error {
	return errors.New("name: not today")
}
func (namedSetup) Programs() web.Programs { return web.Programs{Data: "/my data"} }
func (namedSetup) LookUp(_ context.Context, id wire.AgentID) []owner.Found {
	card := wire.Obj(wire.Member{Key: "agent_id", Value: wire.Text(string(id))}, wire.Member{Key: "name", Value: wire.Text("<b>chris")})
	return []owner.Found{{Directory: "https://directory.example/v1", Listing: wire.Listing{Agents: []wire.Value{card}}, Unproven: []wire.AgentID{id}}}
}
func (namedSetup) EchoAddress() string { return "echo:self/echo" }
