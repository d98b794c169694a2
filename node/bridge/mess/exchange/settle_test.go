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

// TestReleasedThreadIsSettled: a thread that the owner releases with a status is offered, or waits for dependencies, as
// after any other approval. If the owner releases it from that wait too, it is offered.
func TestReleasedThreadIsSettled(t *testing.T) {
	for name, lax := range map[string]bool{"block": false, "lax block": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.WantsNotices = func(string) bool { return true }
			l.executor("bob")
			l.request("agent", "{id: first, intent: a}")
			held := func(request string) (ref string) {
				res, err := l.Do(t.Context(), actor("agent"), mustParse(t, "- request: "+request), Options{Hold: true})
				if err != nil {
					t.Fatal(err)
				}
				l.want(res.Created[0], thread.Held)
				return res.Created[0]
			}
			release := func(ref string) *thread.Thread {
				b := mustParse(t, "- status: {re: "+ref+", code: received}")
				if _, err := l.Do(t.Context(), actor(thread.OwnerID), b, Options{Lax: lax}); err != nil {
					t.Fatal(err)
				}
				return l.thread(ref)
			}
			free := held("{intent: b}")
			if th := release(free); th.Status != thread.Received || !th.Offered {
				t.Errorf("released: %s, offered: %v", th.Status, th.Offered)
			}
			if n := countOffers(t, l, thread.OwnerID, free); n != 1 {
				t.Errorf("%d offers, want one", n)
			}
			for _, c := range [][2]string{{"{intent: c, constraints: {depends_on: [first]}}", thread.ParkedDependency}, {"{intent: d, constraints: {timing: {not_before: '2099-01-01T00:00:00Z'}}}", thread.ParkedSchedule}} {
				ref := held(c[0])
				if th := release(ref); th.Status != thread.Waiting || th.Parked != c[1] || countOffers(t, l, thread.OwnerID, ref) != 0 {
					t.Errorf("%s is %s, parked for %q", c[0], th.Status, th.Parked)
				}
				if th := release(ref); th.Status != thread.Received || !th.Offered || countOffers(t, l, thread.OwnerID, ref) != 1 {
					t.Errorf("%s is %s, offered: %v", c[0], th.Status, th.Offered)
				}
				messages, err := l.Messages(t.Context(), ref)
				if err != nil || len(messages) != 5 || messages[2].From != thread.OwnerID || messages[3].From != thread.ExchangeID {
					t.Errorf("%d messages, not the release and then the new state: %v", len(messages), err)
				}
			}
		})
	}
}

func countOffers(t *testing.T, l *lab, to, ref string) (n int) {
	t.Helper()
	for e, err := range store.DecodeAll(t.Context(), l.records, NSNotices, "", time.Now(), DecodeNotice) {
		if err != nil {
			t.Fatal(err)
		}
		if e.To == to && e.Ref == ref && e.Kind == NoticeOffer {
			n++
		}
	}
	return n
}

// conflictingRecords is a store in which every unit conflicts with another one.
type conflictingRecords struct{ store.Records }

func (conflictingRecords) Apply(context.Context, []store.Change, time.Time) error {
	return store.ErrConflict
}

// TestRefusalThatIsNotStored: a refused message that could not be stored is not reported as stored.
func TestRefusalThatIsNotStored(t *testing.T) {
	l := newLab(t)
	ref := l.request("agent", "{intent: a}")
	m := thread.Message{From: "bob", Mess: mustParse(t, "- status: {re: "+ref+", code: completed}").Tree()}
	l.records = conflictingRecords{l.records}
	if err := l.StoreRefusal(t.Context(), ref, m, "no", nil); !errors.Is(err, store.ErrConflict) {
		t.Errorf("reported %v", err)
	}
}
