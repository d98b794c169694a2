package exchange

import (
	"container/heap"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

const tidyInterval = time.Hour

// Run does what is due until ctx ends: deadlines, schedules, work that a crash interrupted, removal of old threads.
func (x *Exchange) Run(ctx context.Context) error {
	if err := x.Load(); err != nil {
		return err
	}
	var due sync.WaitGroup
	defer due.Wait()
	due.Go(func() { x.Work.Run(ctx) })
	x.mustRecheck.Store(true) // a waiting thread may wait for one that has ended
	x.tidy(ctx)
	tidyTicker := time.NewTicker(tidyInterval)
	defer tidyTicker.Stop()
	for {
		if x.mustRecheck.Swap(false) {
			if err := x.recheckWaiting(ctx); err != nil && ctx.Err() == nil {
				x.log.Error("waiting threads could not be checked", "error", err)
				x.mustRecheck.Store(true)
			}
		}
		next, err := x.Tick(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			x.log.Error("threads that are due could not be changed", "error", err)
			x.mustRecheck.Store(true)
		}
		wait := time.Minute
		if !next.IsZero() {
			wait = max(min(wait, time.Until(next)), time.Millisecond)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-x.index.alarmSet:
		case <-tidyTicker.C:
			x.tidy(ctx)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// alarmRetry is the delay of due alarms after the store failed.
const alarmRetry = 10 * time.Second

// Tick does what is due at now, and returns the time of the next due work. While the clock is in doubt, nothing counts
// as due: a thread that expired by a wrong clock could not be reopened.
func (x *Exchange) Tick(ctx context.Context, now time.Time) (next time.Time, err error) {
	if err := x.Load(); err != nil {
		return next, err
	}
	if !x.clock.Reliable() {
		return time.Time{}, nil
	}
	dueAlarms, next := x.index.due(now)
	for i, a := range dueAlarms {
		ended, err := x.recheck(ctx, a.ref)
		if err == nil {
			err = x.settleDependents(ctx, ended)
		}
		if thread.IsRefusal(err) { // a retry would fail too, for example because the thread is full
			x.log.Warn("a change that is due in a thread was refused", "thread", a.ref, "error", err)
			continue
		}
		if err != nil {
			at := now.Add(alarmRetry)
			for _, a := range dueAlarms[i:] {
				x.index.reschedule(alarm{at, a.ref})
			}
			return at, err
		}
		if time.Now().Before(a.at) || !x.clock.Reliable() { // the clock was set meanwhile
			x.index.reschedule(a)
		}
	}
	return next, nil
}

// settleAfterCommit checks the threads that depend on a thread that the committed transaction ended, and the new
// threads that are waiting. The transaction is committed, so its sender does not learn of a failure here: the check is
// repeated later.
func (x *Exchange) settleAfterCommit(ctx context.Context, t *tx) {
	ended := t.endedRefs()
	for _, ref := range t.result.Created { // the dependencies of a new thread may have ended meanwhile
		if t.threads[ref].Parked != thread.ParkedDependency {
			continue
		}
		more, err := x.recheck(ctx, ref)
		if err != nil {
			x.scheduleRecheck(err)
		}
		ended = append(ended, more...)
	}
	if err := x.settleDependents(ctx, ended); err != nil {
		x.scheduleRecheck(err)
	}
}

// scheduleRecheck makes [Exchange.Run] check all waiting threads, because a check failed with err.
func (x *Exchange) scheduleRecheck(err error) {
	x.log.Warn("waiting threads will be checked later", "error", err)
	x.mustRecheck.Store(true)
	x.index.wakeRun()
}

// recheckWaiting checks every unclaimed thread that waits: its reason to wait may have ended just before a crash.
func (x *Exchange) recheckWaiting(ctx context.Context) error {
	refs := x.index.refs("state:"+string(thread.Waiting), math.MaxInt, func(e *entry) bool { return !e.isHeld() })
	for _, ref := range refs {
		ended, err := x.recheck(ctx, ref)
		if err == nil {
			err = x.settleDependents(ctx, ended)
		}
		if thread.IsRefusal(err) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Purge removes ended threads that have not changed for the retention time, with their messages, files and records. A
// thread stays while an open thread depends on it.
func (x *Exchange) Purge(ctx context.Context, now time.Time) (removed int, err error) {
	before := now.Add(-x.cfg.Retention)
	refs := x.index.refs(allThreads, math.MaxInt, func(e *entry) bool {
		return !e.isOpen() && e.updated < before.UnixMicro()
	})
	for _, ref := range refs {
		isNeeded := slices.ContainsFunc(x.index.dependents(ref), func(dependent string) bool {
			e := x.index.get(dependent)
			return e != nil && e.isOpen()
		})
		if isNeeded {
			continue
		}
		switch failure := x.remove(ctx, ref, now); {
		case failure == nil:
			removed++
		case ctx.Err() != nil:
			return removed, failure
		case !errors.Is(failure, store.ErrConflict): // such as a damaged record; a conflict means that somebody just changed it
			err = errors.Join(err, failure)
		}
	}
	return removed, err
}

// remove deletes a thread and everything that is stored about it.
func (x *Exchange) remove(ctx context.Context, ref string, now time.Time) error {
	t, err := x.Read(ctx, ref, now)
	if errors.Is(err, store.ErrNotFound) {
		x.index.remove(ref)
		return nil
	}
	if err != nil {
		return err
	}
	deletion := func(ns, key string) store.Change {
		return store.Change{Record: store.Record{NS: ns, Key: key}, IfRev: store.Any, Delete: true}
	}
	changes := []store.Change{{Record: store.Record{NS: NSThreads, Key: ref}, IfRev: t.Rev, Delete: true}}
	for _, owned := range []struct{ ns, prefix string }{{NSMessages, ref + "/"}, {NSFiles, ref + "/"}, {NSUploads, ref + "/"}, {NSSeen, "file/" + ref + "/"}} {
		for rec, err := range recordsBelow(ctx, x.records, owned.ns, owned.prefix, now) {
			if err != nil {
				return err
			}
			changes = append(changes, deletion(owned.ns, rec.Key))
		}
	}
	for peer, p := range t.Peers {
		rec, err := x.records.Get(ctx, NSMeta, convKey(peer, p.Conv), now)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err == nil && string(rec.Body) != ref { // another thread was offered in the conversation
			continue
		}
		changes = append(changes, deletion(NSMeta, convKey(peer, p.Conv)))
	}
	k, rev, err := x.lookUpClientID(ctx, t.Requester, t.ClientID, now)
	if err != nil {
		return err
	}
	if k.Ref == ref {
		changes = append(changes, store.Change{Record: store.Record{NS: NSIDs, Key: IDKey(t.Requester, t.ClientID)}, IfRev: rev, Delete: true})
	}
	if err := x.records.Apply(ctx, changes, now); err != nil {
		return err
	}
	x.index.remove(ref)
	return nil
}

// NextChange returns a channel that closes when a thread changes.
func (x *Exchange) NextChange() <-chan struct{} { return x.changed.Wait() }

// announce tells the writer of the thread folder and the open pages about a committed change. It never blocks.
func (x *Exchange) announce(refs []string) {
	if x.Mirror != nil {
		x.Mirror(refs)
	}
	x.changed.Broadcast()
}

// alarm is a time at which a thread may change by itself.
type alarm struct {
	at  time.Time
	ref string
}

// nextMilli rounds t up to a whole millisecond. The time of a transaction is rounded to milliseconds, so a transaction
// that begins at t could have an earlier time and find nothing due.
func nextMilli(t time.Time) time.Time {
	return t.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}

type alarms []alarm

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a alarms) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }

// Push implements [heap.Interface].
func (a *alarms) Push(x any) { *a = append(*a, x.(alarm)) }

// Pop implements [heap.Interface].
func (a *alarms) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// due removes and returns the alarms that are due, and the time of the next one.
func (x *index) due(now time.Time) (dueAlarms []alarm, next time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.alarms) > 0 && !x.alarms[0].at.After(now) {
		dueAlarms = append(dueAlarms, heap.Pop(&x.alarms).(alarm))
	}
	if len(x.alarms) > 0 {
		next = x.alarms[0].at
	}
	return dueAlarms, next
}

func (x *index) reschedule(a alarm) {
	x.mu.Lock()
	defer x.mu.Unlock()
	heap.Push(&x.alarms, a)
	x.wakeRun()
}

// wakeRun makes [Exchange.Run] look at the alarms again.
func (x *index) wakeRun() {
	waiting.Wake(x.alarmSet)
}
