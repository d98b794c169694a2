package exchange

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

const tidyInterval = time.Hour

// Run does what is due until ctx ends: deadlines, schedules, work that a crash interrupted, removal of old threads, and
// the queues of the bridge.
func (x *Exchange) Run(ctx context.Context) error {
	if err := x.Load(); err != nil {
		return err
	}
	var due sync.WaitGroup
	defer due.Wait()
	due.Go(func() { x.Work.Run(ctx) })
	waiting.Wake(x.mustRecheck) // a waiting thread may wait for one that has ended
	x.tidy(ctx)
	tidyTicker := time.NewTicker(tidyInterval)
	defer tidyTicker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tidyTicker.C:
			x.tidy(ctx)
		case <-x.mustRecheck:
			err := x.recheckWaiting(ctx)
			if err == nil || ctx.Err() != nil {
				continue
			}
			x.log.Error("waiting threads could not be checked", "error", err)
			time.AfterFunc(recheckPause, func() { waiting.Wake(x.mustRecheck) })
		}
	}
}

const (
	recheckPause = 10 * time.Second // after the waiting threads could not be checked
	threadPause  = time.Minute      // before another look at a thread that is due and did not change
)

// dueTime returns when a thread changes by itself, or the zero time. The time of a transaction is rounded to
// milliseconds, so dueTime rounds up: a transaction could otherwise have an earlier time and find nothing due.
func dueTime(t *thread.Thread) (at time.Time) {
	if t.Parked == thread.ParkedSchedule {
		at = t.NotBefore
	}
	if t.IsExpirable() && !t.Deadline.IsZero() && (at.IsZero() || t.Deadline.Before(at)) {
		at = t.Deadline
	}
	if at.IsZero() {
		return at
	}
	return at.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}

// workThread does what is due in a thread.
func (x *Exchange) workThread(ctx context.Context, rec store.Record, _ bool) (later work.Later, err error) {
	ended, err := x.recheck(ctx, rec.Key)
	if err := x.settleDependents(ctx, ended); err != nil { // the thread is not due any more
		x.scheduleRecheck(err)
	}
	switch {
	case thread.IsRefusal(err): // a retry fails too, until the thread changes: for example because the thread is full
		x.log.Warn("a change that is due in a thread was refused", "thread", rec.Key, "error", err)
		return work.Later{Pause: threadPause}, nil
	case err == nil && (time.Now().Before(rec.Due) || !x.clock.Reliable()): // the clock was set meanwhile
		return work.Later{Pause: threadPause}, nil
	}
	return later, err
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
	waiting.Wake(x.mustRecheck)
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
	for _, owned := range []struct{ ns, prefix string }{{NSMessages, ref + "/"}, {NSFiles, ref + "/"}, {NSSeen, "file/" + ref + "/"}} {
		for rec, err := range recordsBelow(ctx, x.records, owned.ns, owned.prefix, now) {
			if err != nil {
				return err
			}
			changes = append(changes, deletion(owned.ns, rec.Key))
		}
	}
	for peer, p := range t.Peers {
		s, err := ReadShared(ctx, x.records, peer, p.Conv)
		if err != nil {
			return err
		}
		if s.Ref == ref && s.There == "" { // a link remembers the thread there as long as it may be listed
			changes = append(changes, deletion(NSShared, s.Key))
		}
	}
	k, rev, err := x.lookUpClientID(ctx, t.Requester, t.ClientID, now)
	if err != nil {
		return err
	}
	if k.Ref == ref {
		changes = append(changes, store.Change{Record: store.Record{NS: NSIDs, Key: wire.HashOf(t.Requester, t.ClientID)}, IfRev: rev, Delete: true})
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
