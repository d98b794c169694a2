package mess

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func (p *meshNode) decide(kind string, choice acl.Choice) {
	p.t.Helper()
	var ask acl.Ask
	eventually(p.t.(*testing.T), "a question of kind "+kind, func() bool {
		asks, _, err := p.node.Asks().List(context.Background(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		for _, a := range asks {
			if a.Kind == kind && err == nil {
				ask = a
			}
		}
		return ask.ID != ""
	})
	if _, err := p.node.Asks().Decide(p.t.Context(), ask.ID, ask.Hash, choice, "test", time.Now()); err != nil {
		p.t.Fatalf("%s: %v", kind, err)
	}
}

// approveRoutes makes the owner approve every question whether to offer a thread to an agent of the directory.
func (p *meshNode) approveRoutes() {
	events, stop := p.node.Watch()
	done := make(chan struct{})
	p.t.(*testing.T).Cleanup(func() { close(done); stop() })
	approve := func() {
		asks, _, _ := p.node.Asks().List(context.Background(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		for _, a := range asks {
			if a.Kind == askRoute {
				_, _ = p.node.Asks().Decide(context.Background(), a.ID, a.Hash, acl.Approve, "test", time.Now()) // or it is withdrawn
			}
		}
	}
	go func() {
		for {
			approve()
			select {
			case <-done:
				return
			case <-events:
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
}

func (p *meshNode) allText(ref string) string {
	p.t.Helper()
	messages, err := p.Messages(p.t.Context(), ref)
	if err != nil {
		p.t.Fatal(err)
	}
	var text strings.Builder
	for _, m := range messages {
		text.Write(m.Mess.JSON())
	}
	return text.String()
}

// pair returns a node that asks, and one that works and whose owner decides about strangers.
func pair(t *testing.T, mode acl.Mode) (home, away *meshNode) {
	mesh := meshtest.New(t)
	away = newMeshNodeWith(t, mesh, "away", nil, func(c *node.Config) { c.Policy.Mode = mode })
	away.executor("bob")
	home = newMeshNode(t, mesh, "home", func(c *Config) { c.Mesh = listAgents(c.Mesh, away.node.ID()) })
	home.approveRoutes()
	return home, away
}

// TestPendingApproval: a peer whose owner is asked first answers pending_approval. The thread is held, with the time
// when more may be heard, and continues after the owner's yes (MESS section 12).
func TestPendingApproval(t *testing.T) {
	home, away := pair(t, acl.Approval)
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	th := home.waitStatus(ref, thread.Held)
	if text := home.allText(ref); th.Holder != "" || !strings.Contains(text, `"resume_eta"`) || !strings.Contains(text, `"reason"`) {
		t.Errorf("held by %q: %s", th.Holder, text)
	}
	away.decide("message", acl.Approve)
	there := away.waitMeshThread()
	home.waitStatus(ref, thread.Received)
	away.status("bob", there, "claimed, eta: 5m")
	if th := home.waitStatus(ref, thread.Claimed); th.Holder != string(away.node.ID()) {
		t.Errorf("holder = %q", th.Holder)
	}
	away.status("bob", there, "held, reason: lunch")
	home.waitStatus(ref, thread.Held)
	away.status("bob", there, "in_progress")
	home.waitStatus(ref, thread.InProgress)
	away.do("bob", "- response: {re: "+there+", content: [milk]}")
	home.waitStatus(ref, thread.Completed)
	// A response after the close reaches the same thread (MESS-39).
	away.do("bob", "- response: {re: "+there+", content: [and eggs]}")
	eventually(t, "the late response", func() bool { return strings.Contains(home.allText(ref), "and eggs") })
	home.want(ref, thread.Completed)
	if page, err := home.List(t.Context(), exchange.Owner("test"), "", "", 10); err != nil || len(page.Threads) != 1 {
		t.Errorf("%d threads, %v", len(page.Threads), err)
	}
}

// TestRejectedByPeer: a peer whose owner says no has declined.
func TestRejectedByPeer(t *testing.T) {
	home, away := pair(t, acl.Approval)
	home.executor("carol")
	ref := home.request("client", "{intent: look into the fridge}")
	if err := home.bridge.offerTo(t.Context(), ref, string(away.node.ID()), "", nil); err != nil {
		t.Fatal(err)
	}
	home.waitStatus(ref, thread.Held)
	home.refuse(404, "carol", "- status: {re: "+ref+", code: claimed}")
	away.decide("message", acl.Reject)
	th := home.waitStatus(ref, thread.Received)
	eventually(t, "the peer's no", func() bool { return len(home.thread(ref).Declined) == 1 })
	if th.Holder != "" {
		t.Errorf("holder = %q", th.Holder)
	}
	home.status("carol", ref, "claimed")
}

// TestNoOtherAgentIsAsked: if the agent that the owner chose declines, the thread ends; the next one is not asked.
func TestNoOtherAgentIsAsked(t *testing.T) {
	mesh := meshtest.New(t)
	first, second := newMeshNode(t, mesh, "first", nil), newMeshNode(t, mesh, "second", nil)
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.Mesh = listAgents(c.Mesh, first.node.ID(), second.node.ID())
	})
	ref := home.request("client", "{intent: look into the fridge}")
	home.decide(askRoute, acl.Approve)
	first.status(thread.OwnerID, first.waitMeshThread(), "declined, reason: not today")
	if th := home.waitStatus(ref, thread.Declined); len(th.Declined) != 1 {
		t.Errorf("declined by %v", th.Declined)
	}
}

type countingStore struct {
	store.Store
	reads atomic.Int64 // of what is due
}

func (c *countingStore) Records() store.Records { return countingRecords{c.Store.Records(), c} }

type countingRecords struct {
	store.Records
	c *countingStore
}

func (r countingRecords) Due(ctx context.Context, ns string, until time.Time, skip []string, limit int) ([]store.Record, time.Time, error) {
	r.c.reads.Add(1)
	return r.Records.Due(ctx, ns, until, skip, limit)
}

// TestIdleBridgeSleeps: an idle bridge reads nothing until something happens, and then delivers the notice at once. A
// notice that cannot be delivered is tried again with growing pauses.
func TestIdleBridgeSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mess.db"), bolt.Config{MinFree: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c, lookups := &countingStore{Store: s}, atomic.Int64{}
		l := labOn(t, c)
		b, err := New(Config{
			Exchange: l.Exchange, Store: l.store, Notices: notify.New(notify.Config{Records: s.Records()}),
			Mesh: directoryMesh{bridgetest.NewMesh(nil, s), func(client.Query) ([]wire.Card, error) {
				lookups.Add(1)
				return nil, wire.ErrUnavailable
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		synctest.Wait()
		sleeps := func(after string) {
			t.Helper()
			synctest.Wait()
			before := c.reads.Load()
			time.Sleep(time.Hour)
			if n := c.reads.Load() - before; n != 0 {
				t.Errorf("after %s, an idle hour looked %d times", after, n)
			}
		}
		sleeps("the start")
		l.executor("bob")
		l.request("agent", "{intent: look}")
		synctest.Wait()
		if n := len(l.keys(exchange.NSNotices)); n != 0 {
			t.Errorf("%d notices wait", n)
		}
		sleeps("a request")
		l.request("agent", "{intent: look, requires: [nothing-here]}") // the directory fails
		time.Sleep(time.Hour)
		if n := lookups.Load(); n < 60 || n > 75 {
			t.Errorf("looked %d times in an hour of failures", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestControlOfAnotherProcess: a control message that another process accepted is applied at once.
func TestControlOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mess.db"), bolt.Config{MinFree: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l := labOn(t, s)
		b, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go store.Observe(l.store).Follow(ctx)
		go func() { done <- b.Run(ctx) }()
		synctest.Wait()
		changes := b.Observe(bridge.Inbound{
			Peer: "am_ann", MessageID: "msg_1", ConvID: "conv_1", Intent: Intent, Payload: wire.Obj(wire.Field("mess", wire.Text(""))),
		})
		if err := s.Handle("other").Records().Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(l.keys(nsControl)); n != 0 {
			t.Errorf("%d control messages wait", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
