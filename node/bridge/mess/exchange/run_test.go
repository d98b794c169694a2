package exchange

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestPurgeInOneRound: one call of Purge removes more threads than fit on one page.
func TestPurgeInOneRound(t *testing.T) {
	l := newLab(t)
	var threads []*thread.Thread
	var changes []store.Change
	for i := range 1500 {
		th := &thread.Thread{Ref: thread.NewThreadRef(time.Now(), i+1, ""), Requester: "agent", Status: thread.Failed, Intent: "x", Version: 1}
		threads, changes = append(threads, th), append(changes, store.Change{Record: threadRecord(th)})
	}
	if err := l.records.Apply(t.Context(), changes, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := l.Load(); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Purge(t.Context(), time.Now()); err != nil || n != len(threads) || l.index.length(allThreads) != 0 {
		t.Errorf("%d of %d went, %v", n, len(threads), err)
	}
}

// TestMergeOfRemovedThread: accepting a merge of a thread that no longer exists is refused.
func TestMergeOfRemovedThread(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	a, b := l.request("agent", "{intent: a}"), l.request("agent", "{intent: b}")
	l.do("bob", "- suggestion: {id: both, type: merge, re: ["+a+", "+b+"], proposed: {}}")
	l.do("agent", "- cancel: {re: "+b+"}")
	if _, err := l.Purge(t.Context(), time.Now().Add(l.cfg.Retention+time.Hour)); err != nil {
		t.Fatal(err)
	}
	l.refuse(http.StatusConflict, "agent", "- reply: {re: both, accept: true}")
	l.want(a, thread.Received)
}

// TestDeadlinesOutliveAFailure: work that becomes due while the store fails is done when the store works again, not
// only at the next start.
func TestDeadlinesOutliveAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		b := &failingStore{Store: l.store}
		l.records = b.Records()
		refs := []string{l.request("agent", "{intent: a, constraints: {timing: {expires: 1h}}}"), l.request("agent", "{intent: b, constraints: {timing: {expires: 1h}}}")}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(50 * time.Minute)
		b.down.Store(true)
		time.Sleep(20 * time.Minute)
		b.down.Store(false)
		time.Sleep(time.Minute)
		for _, ref := range refs {
			l.want(ref, thread.Expired)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestClockGoesBackInBetween: the clock is ahead for a moment, and goes back before the due work is done. Nothing
// expires or starts early, and both happen when their time comes (MESS-32).
func TestClockGoesBackInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		expires := l.request("agent", "{intent: a, constraints: {timing: {expires: 1h}}}")
		starts := l.request("agent", "{intent: b, constraints: {timing: {not_before: '"+wire.FormatTime(time.Now().Add(time.Hour))+"'}}}")
		for _, ref := range []string{expires, starts} { // the worker read them while the clock was ahead
			rec, err := l.records.Get(t.Context(), NSThreads, ref, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if later, err := l.workThread(t.Context(), rec, false); err != nil || later.Pause != threadPause {
				t.Errorf("%s waits %v, %v", ref, later, err)
			}
		}
		l.want(expires, thread.Received)
		l.want(starts, thread.Waiting)
		time.Sleep(59 * time.Minute)
		l.workDue()
		l.want(expires, thread.Received)
		l.want(starts, thread.Waiting)
		time.Sleep(2 * time.Minute)
		l.workDue()
		l.want(expires, thread.Expired)
		l.want(starts, thread.Received)
	})
}

// TestFullThreadHoldsNoDeadlineUp: a thread that its participants have filled does not keep others from their
// deadlines.
func TestFullThreadHoldsNoDeadlineUp(t *testing.T) {
	l := newLab(t)
	fill := func(ref string) {
		t.Helper()
		th := l.thread(ref)
		th.Serial = thread.MaxMessages
		th.Version++
		if err := l.records.Apply(t.Context(), []store.Change{{Record: threadRecord(th), IfRev: th.Rev}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		l.index.publish(th)
	}
	first := l.request("agent", "{id: first, intent: dig}")
	fill(l.request("agent", "{intent: plant, constraints: {depends_on: [first]}}"))
	waits := l.request("agent", "{intent: water, constraints: {depends_on: [first]}}")
	l.executor("bob")
	l.status("bob", first, "claimed")
	l.status("bob", first, "completed")
	l.want(waits, thread.Received)
	var refs []string
	for range 10 {
		refs = append(refs, l.request("agent", "{intent: look, constraints: {timing: {expires: 1s}}}"))
	}
	for i, ref := range refs {
		if i%2 == 0 {
			fill(ref)
		}
	}
	time.Sleep(time.Until(l.thread(refs[9]).Deadline) + time.Millisecond)
	l.workDue()
	for i, ref := range refs {
		if i%2 == 1 {
			l.want(ref, thread.Expired)
		}
	}
}

// TestDeclineSettlesLater: a thread ends because nobody can do it, but the store fails before the thread that waits for
// it is settled. The end stands, so the check is repeated by itself.
func TestDeclineSettlesLater(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	ref := l.request("agent", "{id: a, intent: dig}")
	waits := l.request("agent", "{intent: plant, constraints: {depends_on: [a]}}")
	l.records = (&failingStore{Store: l.store, unread: waits, failReads: 1}).Records()
	if _, err := l.try("bob", "- status: {re: "+ref+", code: declined, reason: busy}"); err != nil {
		t.Errorf("a committed change fails: %v", err)
	}
	l.want(ref, thread.Declined)
	l.want(waits, thread.Waiting)
	if len(l.mustRecheck) == 0 {
		t.Fatal("the waiting thread is not checked again")
	}
	if err := l.recheckWaiting(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.want(waits, thread.Failed)
}

// TestExpirySettlesLater: a thread expires, but the store fails before the thread that waits for it is settled. The end
// stands, so the check is repeated by itself.
func TestExpirySettlesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		ref := l.request("agent", "{id: a, intent: dig, constraints: {timing: {expires: 1h}}}")
		waits := l.request("agent", "{intent: plant, constraints: {depends_on: [a]}}")
		l.records = (&failingStore{Store: l.store, unread: waits, failReads: 1}).Records()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		time.Sleep(time.Hour + time.Second)
		l.workDue()
		l.want(ref, thread.Expired)
		l.want(waits, thread.Waiting)
		if len(l.mustRecheck) == 0 {
			t.Error("the waiting thread is not checked again")
		}
		go func() { done <- l.Run(ctx) }()
		synctest.Wait()
		l.want(waits, thread.Failed)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
