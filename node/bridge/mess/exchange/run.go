package exchange

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	houseKeeping = time.Hour
	alarmBatch   = 1000
)

// Run lets time do its part until ctx ends: deadlines, schedules, what a crash left half done, and threads that are kept
// no longer.
func (x *Exchange) Run(ctx context.Context) error {
	if err := x.Load(); err != nil {
		return err
	}
	x.behind.Store(true) // a thread that waits may wait for what has ended
	x.tidy(ctx)
	clean := time.NewTicker(houseKeeping)
	defer clean.Stop()
	for {
		if x.behind.Swap(false) {
			if err := x.catchUp(ctx); err != nil && ctx.Err() == nil {
				x.log.Error("threads that wait could not be looked at", "error", err)
				x.behind.Store(true)
			}
		}
		next, err := time.Time{}, error(nil)
		if x.clock.Reliable() { // a thread that ended stays so when the clock is right again
			next, err = x.Tick(ctx)
		}
		if err != nil && ctx.Err() == nil {
			x.log.Error("deadlines could not be kept", "error", err)
			x.behind.Store(true)
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
		case <-clean.C:
			x.tidy(ctx)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Tick does what is due now and says when the next thing will be.
func (x *Exchange) Tick(ctx context.Context) (next time.Time, err error) {
	return x.tick(ctx, time.Now())
}

// alarmAgain is how long what is due waits where the store fails.
const alarmAgain = 10 * time.Second

func (x *Exchange) tick(ctx context.Context, now time.Time) (next time.Time, err error) {
	if err := x.Load(); err != nil {
		return next, err
	}
	for {
		rung, next := x.index.due(now, alarmBatch)
		for i, a := range rung {
			ended, err := x.resettle(ctx, a.ref)
			if err == nil {
				err = x.ripple(ctx, ended)
			}
			if stuck(err) {
				x.log.Warn("a thread cannot go on by itself", "thread", a.ref, "error", err)
				continue
			}
			if err != nil {
				at := now.Add(alarmAgain)
				for _, a := range rung[i:] {
					x.index.again(alarm{at, a.ref})
				}
				return at, err
			}
			if time.Now().Before(a.at) { // the clock went back meanwhile, and nothing is due yet
				x.index.again(a)
			}
		}
		if len(rung) < alarmBatch {
			return next, nil
		}
	}
}

// settleAfter lets go on what waits for the threads of a unit, and looks whether what the unit opened must wait. The unit
// stands, so its sender is told of it whatever happens here: where this fails it is caught up with.
func (x *Exchange) settleAfter(ctx context.Context, t *tx) {
	ended := t.ended()
	for _, ref := range t.result.Created { // what it waits for may have ended meanwhile
		if t.threads[ref].Parked != thread.ParkedDependency {
			continue
		}
		more, err := x.resettle(ctx, ref)
		if err != nil {
			x.fallBehind(err)
		}
		ended = append(ended, more...)
	}
	if err := x.ripple(ctx, ended); err != nil {
		x.fallBehind(err)
	}
}

// fallBehind has Run look at every thread that waits.
func (x *Exchange) fallBehind(err error) {
	x.log.Warn("threads that wait are looked at later", "error", err)
	x.behind.Store(true)
	x.index.ring()
}

// stuck says whether an error is about one thread and will not pass: it is full, for example.
func stuck(err error) bool {
	e, refused := errors.AsType[*wire.Error](err)
	return refused && !e.Retry
}

// catchUp looks at every parked thread: what it waited for may have ended just before a crash.
func (x *Exchange) catchUp(ctx context.Context) error {
	refs, _ := x.index.page("state:"+string(thread.Waiting), position{}, 1<<30, func(e *entry) bool { return e.holder == "" })
	for _, ref := range refs {
		ended, err := x.resettle(ctx, ref)
		if err == nil {
			err = x.ripple(ctx, ended)
		}
		if stuck(err) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Purge removes threads that ended before the retention, with all that was said in them and is kept about them. What an
// open thread depends on stays as long as that.
func (x *Exchange) Purge(ctx context.Context, now time.Time) (removed int, err error) {
	before := now.Add(-x.cfg.Retention)
	for after := (position{}); ; {
		refs, next := x.index.page(allThreads, after, 1000, func(e *entry) bool {
			return !e.status.Open() && e.updated.Before(before)
		})
		for _, ref := range refs {
			isNeeded := slices.ContainsFunc(x.index.dependants(ref), func(on string) bool { // by an open thread
				e := x.index.get(on)
				return e != nil && e.status.Open()
			})
			if isNeeded {
				continue
			}
			err := x.remove(ctx, ref, now)
			if errors.Is(err, store.ErrConflict) {
				continue // somebody just changed it
			}
			if err != nil {
				return removed, err
			}
			removed++
		}
		if after = next; after.ref == "" {
			return removed, nil
		}
	}
}

func (x *Exchange) remove(ctx context.Context, ref string, now time.Time) error {
	t, err := x.Read(ctx, ref, now)
	if errors.Is(err, store.ErrNotFound) {
		x.index.drop(ref)
		return nil
	}
	if err != nil {
		return err
	}
	gone := func(ns, key string) store.Change {
		return store.Change{Record: store.Record{NS: ns, Key: key}, IfRev: store.Any, Delete: true}
	}
	changes := []store.Change{{Record: store.Record{NS: NSThreads, Key: ref}, IfRev: t.Rev, Delete: true}}
	for _, below := range []struct{ ns, prefix string }{{NSMessages, ref + "/"}, {NSFiles, ref + "/"}, {NSUploads, ref + "/"}, {NSSeen, "file/" + ref + "/"}} {
		for after := below.prefix; after != ""; {
			page, err := x.records.List(ctx, below.ns, "", after, 500, now)
			if err != nil {
				return err
			}
			after = page.Next
			for _, rec := range page.Records {
				if !strings.HasPrefix(rec.Key, below.prefix) {
					after = ""
					break
				}
				changes = append(changes, gone(below.ns, rec.Key))
			}
		}
	}
	for peer, p := range t.Peers {
		rec, err := x.records.Get(ctx, NSMeta, convKey(peer, p.Conv), now)
		if err == nil && string(rec.Body) != ref { // it goes on with the successor
			continue
		}
		changes = append(changes, gone(NSMeta, convKey(peer, p.Conv)))
	}
	if t.ClientID != "" {
		key := IDKey(t.Requester, t.ClientID)
		rec, err := x.records.Get(ctx, NSIDs, key, now)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		var k known
		if err == nil && json.Unmarshal(rec.Body, &k) == nil && k.Ref == ref {
			changes = append(changes, store.Change{Record: store.Record{NS: NSIDs, Key: key}, IfRev: rec.Rev, Delete: true})
		}
	}
	if err := x.records.Apply(ctx, changes, now); err != nil {
		return err
	}
	x.index.drop(ref)
	return nil
}

// watchers are the pages that are open: each is told that some thread changed, and looks for itself.
type watchers struct {
	mu    sync.Mutex
	wakes map[chan struct{}]struct{}
}

// Watch returns a channel that has something whenever a thread has changed since it was read last.
func (x *Exchange) Watch() (wake <-chan struct{}, stop func()) {
	w, own := &x.open, make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wakes == nil {
		w.wakes = map[chan struct{}]struct{}{}
	}
	w.wakes[own] = struct{}{}
	return own, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.wakes, own)
	}
}

// changed tells the mirror and the open pages of a committed change. It never blocks.
func (x *Exchange) changed(refs []string) {
	if x.Mirror != nil {
		x.Mirror(refs)
	}
	x.open.mu.Lock()
	defer x.open.mu.Unlock()
	for wake := range x.open.wakes {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// alarm is a time at which a thread may change by itself.
type alarm struct {
	at  time.Time
	ref string
}

// nextMilli is the first whole millisecond that is not before at. A unit dates itself in such, and in the one before it nothing
// is due yet.
func nextMilli(at time.Time) time.Time {
	return at.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}

// alarms is a heap, the earliest first.
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

// due takes the alarms that went off, at most limit, and says when the next one will.
func (x *index) due(now time.Time, limit int) (rung []alarm, next time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.alarms) > 0 && len(rung) < limit && !x.alarms[0].at.After(now) {
		rung = append(rung, heap.Pop(&x.alarms).(alarm))
	}
	if len(x.alarms) > 0 {
		next = x.alarms[0].at
	}
	return rung, next
}

// again sets an alarm anew.
func (x *index) again(a alarm) {
	x.mu.Lock()
	defer x.mu.Unlock()
	heap.Push(&x.alarms, a)
	x.ring()
}

// ring has who sleeps until the next alarm look when that is.
func (x *index) ring() {
	select {
	case x.alarmSet <- struct{}{}:
	default:
	}
}
