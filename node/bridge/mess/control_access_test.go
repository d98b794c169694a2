package mess

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// closeWith closes the conversation in which a thread was sent, with a block in the close.
func (p *meshNode) closeWith(ref string, to wire.AgentID, list string) {
	p.t.Helper()
	v, err := wire.Parse([]byte(`{"action":"close","status":"failed","reason":"no_longer_needed","mess":` + list + `}`))
	if err != nil {
		p.t.Fatal(err)
	}
	conv := p.thread(ref).Peers[string(to)].Conv
	if err := p.bridge.send(p.t.Context(), bridge.Outgoing{To: to, Conv: wire.ConversationID(conv), Intent: Intent, Payload: v}); err != nil {
		p.t.Fatal(err)
	}
}

// TestCloseOpensNoThread: a close opens no thread, because no access rule holds it: a peer whose requests the owner
// wants to see first could otherwise have them carried out unseen.
func TestCloseOpensNoThread(t *testing.T) {
	home, away := pair(t, acl.Approval)
	ref := home.request("client", "{intent: look into the fridge}")
	home.waitStatus(ref, thread.Held)
	home.closeWith(ref, away.node.ID(), `[{"request":{"intent":"empty the fridge"}}]`)
	eventually(t, "the close", func() bool { // the close withdraws the question
		asks, _, err := away.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 1, time.Now())
		return err == nil && len(asks) == 0
	})
	eventually(t, "the end of what was said aside", func() bool {
		page, err := away.bridge.records.List(t.Context(), nsControl, "", "", 1, time.Now())
		return err == nil && len(page.Records) == 0
	})
	if page, err := away.List(t.Context(), exchange.Owner("test"), "", "", 10); err != nil || len(page.Threads) != 0 {
		t.Errorf("%d threads, %v", len(page.Threads), err)
	}
}

// TestOnePeerHoldsNobodyUp: a control message that cannot be applied now delays neither the messages of others nor the
// notices of the exchange.
func TestOnePeerHoldsNobodyUp(t *testing.T) {
	mesh := meshtest.New(t)
	away := newMeshNode(t, mesh, "away", nil)
	away.executor("bob")
	buckets := rate.NewBuckets(rate.PerHour(1), 1, 10)
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.Exchange.LimitThreads(buckets, 1)
		c.Mesh = listAgents(c.Mesh, away.node.ID())
	})
	home.executor("carol")
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	if err := home.bridge.offerTo(t.Context(), ref, string(away.node.ID()), "", nil); err != nil {
		t.Fatal(err)
	}
	there := away.waitMeshThread()
	away.status("bob", there, "claimed")
	home.waitStatus(ref, thread.Claimed)
	if _, ok := buckets.Take(string(away.node.ID()), time.Now()); !ok { // the only thread that it may open in an hour
		t.Fatal("the peer opened a thread")
	}
	away.closeWith(there, home.node.ID(), `[{"status":{"re":"look","code":"delegated","delegated_to":"carol"}}]`)
	eventually(t, "what the peer said", func() bool {
		page, err := home.bridge.records.List(t.Context(), nsControl, "", "", 1, time.Now())
		return err == nil && len(page.Records) == 1
	})
	second := home.request("another", "{intent: paint the fridge, requires: [painting]}")
	home.decide(askRoute, acl.Approve)
	eventually(t, "the offer of another thread", func() bool { return len(home.thread(second).Peers) == 1 })
	home.want(ref, thread.Claimed)
}
