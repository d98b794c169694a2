package exchange

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// limitedStore is a store that fails after a number of units.
type limitedStore struct {
	store.Store
	units atomic.Int64 // units that still succeed
}

func (o *limitedStore) Records() store.Records { return limitedRecords{o.Store.Records(), o} }

type limitedRecords struct {
	store.Records
	o *limitedStore
}

func (r limitedRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if r.o.units.Add(-1) < 0 {
		return errors.New("the disk is full")
	}
	return r.Records.Apply(ctx, changes, now)
}

// TestCommittedIsNoError: a committed block is not reported as failed because a dependent thread could not be checked;
// that check is repeated.
func TestCommittedIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.store.Close()
		o := &limitedStore{Store: l.store}
		o.units.Store(100)
		l.records = o.Records()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		synctest.Wait() // wait until Run has caught up with the existing threads
		first := l.request("alice", "{id: first, intent: buy onions}")
		second := l.request("alice", "{intent: dice them, constraints: {depends_on: [first]}}")
		o.units.Store(1)
		l.do(thread.OwnerID, "- status: {re: "+first+", code: completed}\n")
		l.want(first, thread.Completed)
		l.want(second, thread.Waiting)
		o.units.Store(100)
		time.Sleep(2 * time.Minute)
		l.want(second, thread.Received)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
