package mess

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const (
	houseKeeping = time.Hour
	alarmBatch   = 1000
)

// Run lets time do its part until ctx ends: deadlines, schedules, what a crash left half done, and threads that are kept
// no longer.
func (x *Exchange) Run(ctx context.Context) error {
	if err := x.load(); err != nil {
		return err
	}
	if err := x.catchUp(ctx); err != nil && ctx.Err() == nil {
		x.log.Error("threads that wait could not be looked at", "error", err)
	}
	clean := time.NewTicker(houseKeeping)
	defer clean.Stop()
	for {
		next, err := x.Tick(ctx)
		if err != nil && ctx.Err() == nil {
			x.log.Error("deadlines could not be kept", "error", err)
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
			if _, err := x.purge(ctx, time.Now()); err != nil && ctx.Err() == nil {
				x.log.Error("old threads could not be removed", "error", err)
			}
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Tick does what is due now and says when the next thing will be.
func (x *Exchange) Tick(ctx context.Context) (next time.Time, err error) {
	if err := x.load(); err != nil {
		return next, err
	}
	for {
		refs, next := x.index.due(time.Now(), alarmBatch)
		for _, ref := range refs {
			ended, err := x.resettle(ctx, ref)
			if err == nil {
				err = x.ripple(ctx, ended)
			}
			if err != nil {
				return next, err
			}
		}
		if len(refs) < alarmBatch {
			return next, nil
		}
	}
}

// catchUp looks at every parked thread: what it waited for may have ended just before a crash.
func (x *Exchange) catchUp(ctx context.Context) error {
	refs, _ := x.index.page("state:"+string(Waiting), position{}, 1<<30, func(e *entry) bool { return e.holder == "" })
	for _, ref := range refs {
		ended, err := x.resettle(ctx, ref)
		if err == nil {
			err = x.ripple(ctx, ended)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// purge removes threads that ended before the retention, with all that was said in them.
func (x *Exchange) purge(ctx context.Context, now time.Time) (int, error) {
	before := now.Add(-x.cfg.Retention)
	refs, _ := x.index.page(allThreads, position{}, 1000, func(e *entry) bool {
		return !e.status.Open() && e.updated.Before(before)
	})
	for i, ref := range refs {
		if err := x.remove(ctx, ref, now); err != nil {
			return i, err
		}
	}
	return len(refs), nil
}

func (x *Exchange) remove(ctx context.Context, ref string, now time.Time) error {
	changes := []store.Change{{Record: store.Record{NS: nsThreads, Key: ref}, IfRev: store.Any, Delete: true}}
	for _, ns := range []string{nsMessages, nsFiles} {
		for after := ref + "/"; after != ""; {
			page, err := x.records.List(ctx, ns, "", after, 500, now)
			if err != nil {
				return err
			}
			after = page.Next
			for _, rec := range page.Records {
				if len(rec.Key) <= len(ref) || rec.Key[:len(ref)+1] != ref+"/" {
					after = ""
					break
				}
				changes = append(changes, store.Change{Record: store.Record{NS: ns, Key: rec.Key}, IfRev: store.Any, Delete: true})
			}
		}
	}
	if err := x.records.Apply(ctx, changes, now); err != nil {
		return err
	}
	x.index.drop(ref)
	return nil
}
