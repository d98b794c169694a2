package mess

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
)

// holdingMesh is a mesh in which our messages wait while lost is set.
type holdingMesh struct {
	bridge.Mesh
	on *atomic.Bool
}

func (m holdingMesh) Send(ctx context.Context, out bridge.Outgoing) (owner.Sent, error) {
	if m.on.Load() {
		return owner.Sent{}, errors.New("the other side is away")
	}
	return m.Mesh.Send(ctx, out)
}

func (p *meshNode) countTitles(kind, text string) (n int) {
	p.t.Helper()
	list, _, err := p.node.Notices.List(p.t.Context(), "", 1000, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, notice := range list {
		if notice.Kind == kind && strings.Contains(notice.Title, text) {
			n++
		}
	}
	return n
}

// TestLateClaimThroughTheMesh: a claim of a thread that has ended meanwhile is refused. The refusal ends the thread
// there, and the notice names it; the cancel that follows has no further effect.
func TestLateClaimThroughTheMesh(t *testing.T) {
	t.Parallel()
	var lost atomic.Bool
	mesh := meshtest.New(t)
	away := newMeshNode(t, mesh, "away", nil)
	away.executor("bob")
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.Mesh = holdingMesh{listAgents(c.Mesh, away.node.ID()), &lost}
	})
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	home.decide(askRoute, acl.Approve)
	there := away.waitMeshThread()
	lost.Store(true) // the two messages cross
	home.do("client", "- cancel: {re: look}")
	away.status("bob", there, "claimed")
	th := away.waitStatus(there, thread.Cancelled)
	if th.Holder != "bob" || !strings.Contains(away.allText(there), "too late") {
		t.Errorf("%+v says %s", th, away.allText(there))
	}
	eventually(t, "one notice with the ref", func() bool { return away.countTitles("undelivered", there) == 1 })
	away.refuse(409, "bob", "- status: {re: "+there+", code: completed}")
	lost.Store(false)
	eventually(t, "the end of what is to be told", func() bool {
		page, err := home.store.Records().List(t.Context(), exchange.NSNotices, "", "", 10, time.Now())
		return err == nil && len(page.Records) == 0
	})
	home.want(ref, thread.Cancelled)
	eventually(t, "the end of the conversation", func() bool {
		convs, err := home.node.Store.Steps().Conversations(t.Context(), "", 0, 10, time.Now())
		if err != nil || len(convs.Conversations) != 1 {
			t.Fatalf("%d conversations, %v", len(convs.Conversations), err)
		}
		conv, err := conversations.Decode(convs.Conversations[0])
		return err == nil && conv.State == conversations.Failed
	})
	if n := home.countTitles("undelivered", ""); n != 0 {
		t.Errorf("home is told of %d messages that could not be delivered", n)
	}
}
