package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestConversationsTakeTurns: among many conversations with one peer, no conversation is delivered to its end while
// others have not begun, and a postponed one takes its turn when it is due.
func TestConversationsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const convs, each = 8, 10
		hold := make(chan struct{})
		failed := false
		w := &wireTransport{}
		w.deliver = func(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
			<-hold
			time.Sleep(time.Second)
			if d.Message.Conversation == "conv_0" && !failed {
				failed = true
				return bridge.Delivered{}, &client.SendError{Retry: true}
			}
			return bridge.Delivered{}, nil
		}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		for n := range each {
			for conv := range convs {
				mustSend(t, l.Node, to("ann", wire.ConversationID(fmt.Sprintf("conv_%d", conv)), fmt.Sprint(n)), 0)
			}
		}
		close(hold)
		time.Sleep(convs*each*time.Second + time.Minute)
		synctest.Wait()
		if len(w.seen) != convs*each+1 {
			t.Fatalf("%d deliveries, want %d", len(w.seen), convs*each+1)
		}
		seen := map[wire.ConversationID]int{}
		for i, d := range w.seen {
			conv := d.Message.Conversation
			seen[conv]++
			for other := range convs {
				behind := seen[wire.ConversationID(fmt.Sprintf("conv_%d", other))]
				if other > 0 && conv != "conv_0" && seen[conv]-behind > 2 {
					t.Fatalf("delivery %d: %s is at its message %d, conv_%d at %d", i, conv, seen[conv], other, behind)
				}
			}
			if conv == "conv_0" && seen[conv] == 2 && w.at[i].Sub(w.at[0]) > 10*time.Second {
				t.Errorf("the message that was postponed for five seconds had its turn after %v", w.at[i].Sub(w.at[0]))
			}
		}
	})
}

// TestOrderWithinConversations: a message that waits delays the later messages of its own conversation and no others
// (AM-46).
func TestOrderWithinConversations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tries := 0
		w := &wireTransport{}
		w.deliver = func(_ context.Context, d bridge.Delivery) (bridge.Delivered, error) {
			mu.Lock()
			defer mu.Unlock()
			if d.Message.Conversation == "conv_slow" {
				if tries++; tries <= 2 {
					return bridge.Delivered{}, &client.SendError{Retry: true}
				}
			}
			return bridge.Delivered{}, nil
		}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		for _, body := range []string{"1", "2", "3"} {
			mustSend(t, l.Node, to("ann", "conv_slow", body), 0)
		}
		mustSend(t, l.Node, to("ann", "conv_other", "a"), time.Minute)
		synctest.Wait()
		if got := w.deliveries(); !slices.Contains(got, "a") || slices.Contains(got, "2") {
			t.Errorf("at first: %v, want a beside 1", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		got := slices.DeleteFunc(w.deliveries(), func(s string) bool { return s == "a" })
		if diff := cmp.Diff([]string{"1", "1", "1", "2", "3"}, got); diff != "" {
			t.Errorf("order: %s", diff)
		}
	})
}

// TestOnePeerDoesNotStarveOthers: forty conversations with a peer that hangs do not delay messages to other peers.
func TestOnePeerDoesNotStarveOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wireTransport{}
		w.deliver = func(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
			if d.Address == "wire:test/hangs" {
				<-ctx.Done()
				return bridge.Delivered{}, &client.SendError{Retry: true}
			}
			return bridge.Delivered{}, nil
		}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		for i := range 40 {
			mustSend(t, l.Node, to("hangs", wire.ConversationID(fmt.Sprint("conv_", i)), "x"), 0)
		}
		if sent := mustSend(t, l.Node, to("ann", "conv_1", "hello"), time.Second); sent.State != owner.SendDelivered {
			t.Errorf("message to another peer is %s, want delivered", sent.State)
		}
		if n := len(w.deliveries()); n > 5 {
			t.Errorf("%d attempts at once, want 4 to the peer that hangs", n)
		}
	})
}

// unreadableQueue is a store that several processes may share. It cannot list what waits in a conversation while left
// is positive; every failed call decrements left.
type unreadableQueue struct {
	store.Store
	left *atomic.Int32
}

func (q unreadableQueue) Records() store.Records { return unreadableRecords{q.Store.Records(), q.left} }

func (q unreadableQueue) Leases() store.Leases { return sharedLeases{q.Store.Leases()} }

type unreadableRecords struct {
	store.Records
	left *atomic.Int32
}

func (r unreadableRecords) Due(ctx context.Context, ns string, until time.Time, skip []string, limit int) ([]store.Record, time.Time, error) {
	if ns == "outbox" && r.left.Add(-1) >= 0 {
		return nil, time.Time{}, store.ErrUnavailable
	}
	return r.Records.Due(ctx, ns, until, skip, limit)
}

type sharedLeases struct{ store.Leases }

func (sharedLeases) TTL() time.Duration { return time.Minute }

// TestUnreadableQueue: while the node cannot read what is due, it pauses between its attempts.
func TestUnreadableQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wireTransport{deliver: takes}
		l := loneNode(t, t.TempDir(), w, func(cfg *node.Config) {
			left := new(atomic.Int32)
			left.Store(3)
			cfg.Store = unreadableQueue{cfg.Store, left}
		})
		defer l.stop()
		began := time.Now()
		mustSend(t, l.Node, to("ann", "conv_one", "hello"), 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(w.at) != 1 || w.at[0].Sub(began) < 7*time.Second {
			t.Errorf("deliveries at %v since %v, want one after pauses of 1, 2 and 4 s", w.at, began)
		}
	})
}

// countless is a store that cannot count records. asked counts how often it was asked.
type countless struct {
	store.Store
	asked *atomic.Int32
}

func (c countless) Records() store.Records { return countlessRecords{c.Store.Records(), c.asked} }

type countlessRecords struct {
	store.Records
	asked *atomic.Int32
}

func (c countlessRecords) Count(context.Context, string, string, int, time.Time) (int, error) {
	c.asked.Add(1)
	return 0, store.ErrUnavailable
}

// TestStatusStopsAtAnError: if the store does not answer, each question to it may take seconds, so the status asks one.
func TestStatusStopsAtAnError(t *testing.T) {
	var asked atomic.Int32
	l := loneNode(t, t.TempDir(), nil, func(cfg *node.Config) { cfg.Store = countless{cfg.Store, &asked} })
	if _, err := l.OwnerAPI().Status(t.Context()); !errors.Is(err, store.ErrUnavailable) || asked.Load() != 1 {
		t.Errorf("the status asked %d times: %v", asked.Load(), err)
	}
}
