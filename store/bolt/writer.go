package bolt

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// driver implements [engine.Driver] for the calls of a handle.
type driver struct {
	s  *Store
	by *local.Handle
}

func (d driver) Do(ctx context.Context, call engine.Call) error {
	return d.s.writer.queue.Do(ctx, work{call, d.by})
}

func (d driver) View(ctx context.Context, fn func(engine.Reader) error) error {
	return d.s.view(ctx, func(tx *bbolt.Tx) error { return fn(reads{tx}) })
}

// reads implements [engine.Reader].
type reads struct{ *bbolt.Tx }

func (r reads) Row(kind engine.Kind, key []byte) (row engine.Row, err error) {
	row = engine.Row{Kind: kind, Key: key}
	var seq []byte
	switch kind {
	case engine.KindCard:
		if seq, err = bucketIDs.in(r.Tx).get(key); seq != nil {
			row.Value, err = bucketCards.in(r.Tx).get(seq)
		}
	case engine.KindConv:
		if seq, err = bucketConvKeys.in(r.Tx).get(key); seq != nil {
			row.Value, err = bucketConvs.in(r.Tx).get(convRowKey(seq, convRow, nil))
		}
	case engine.KindEntry:
		row.Value, err = bucketConvs.in(r.Tx).get(convRowKey(key[:8], convEntry, key[8:]))
	case engine.KindReplay:
		row.Key, row.Value, err = findReplay(r.Tx, key)
	case engine.KindRecord:
		row.Value, err = bucketRecords.in(r.Tx).get(key)
	}
	row.Num = number(seq)
	return row, err
}

// txn is the transaction of one group of units. It implements [engine.Tx].
type txn struct {
	reads
	counts       *liveCounts
	countChanges countChanges
	tally        tally   // changes that the units made
	fill         float64 // how full bbolt leaves a page that it splits, if more than that of the bucket
	damage       *engine.DamageLog
	indexChanges []func(*cardindex.Index) // applied in order after the commit
	lastChange   uint64                   // number of the newest card change
	leases       *local.Leases
	by           *local.Handle // the handle whose unit is executed
	hints        []local.Hint  // notices for other handles about the written entries
	watch        bool          // another handle may watch
}

// NextRev implements [engine.Tx].
func (t *txn) NextRev() store.Rev { return store.Rev(bucketMeta.in(t).next()) }

// Note implements [engine.Tx].
func (t *txn) Note(ns, key string) {
	if t.watch {
		t.hints = append(t.hints, local.Hint{Hint: store.Hint{NS: ns, Key: key}, By: t.by})
	}
}

// work is a call with the handle of its caller.
type work struct {
	call engine.Call
	by   *local.Handle
}

type unit = engine.Unit[work]

const (
	maxGroup = 1024 // bounds the memory and the time of one commit
	maxQueue = 8192 // units that may wait
)

// maxYields is how often in a row the leader (the caller that commits for all) yields without getting a further unit;
// then it commits.
const maxYields = 3

// retryEvery is the time between two attempts of a writer to reopen its file.
const retryEvery = time.Second

// writer commits units in groups, see [engine.Queue].
type writer struct {
	s     *Store
	queue *engine.Queue[work]

	// broken is the reason why writes are refused after a failed commit; nil while they are accepted.
	broken atomic.Pointer[error]

	counts *liveCounts

	// Only the leader uses the following fields.
	group  []*unit
	tried  time.Time             // when the file was last reopened, or could not be reopened
	commit func(*bbolt.Tx) error // (*bbolt.Tx).Commit except in tests
}

func newWriter(s *Store) *writer {
	w := &writer{s: s, counts: &liveCounts{s: s}, commit: (*bbolt.Tx).Commit}
	w.queue = engine.NewQueue[work](maxQueue, w.serve)
	w.counts.reset()
	return w
}

// do executes a call that belongs to no handle. No handle gets hints about it.
func (w *writer) do(ctx context.Context, check func(*txn) (write func(store.Rev) error, err error)) error {
	call := engine.Call{Check: func(tx engine.Tx) (func(store.Rev) error, error) { return check(tx.(*txn)) }}
	return driver{w.s, nil}.Do(ctx, call)
}

// serve commits one group. The caller is the leader.
func (w *writer) serve() {
	if w.broken.Load() != nil && time.Since(w.tried) >= retryEvery {
		w.reopen()
	}
	// Yield, so that callers that the last commit woke can queue their next unit before this group is closed.
	for n, yields := w.queue.Len(), 0; yields < maxYields; yields++ {
		runtime.Gosched()
		if grown := w.queue.Len(); grown > n {
			n, yields = grown, 0
		}
	}
	w.group = w.queue.Take(w.group[:0], maxGroup)
	w.commitGroup(w.group)
	clear(w.group)
}

// commitGroup executes a group of units and reports its outcome to each caller.
func (w *writer) commitGroup(group []*unit) {
	if len(group) == 0 {
		return
	}
	if err := w.s.checkWritable(); err != nil {
		report(group, nil, err)
		return
	}
	errs, failed, err := w.attempt(group)
	if failed < 0 {
		w.conclude(group, errs, err)
		return
	}
	// The write of a unit failed, so the writes of all units are lost. Execute the units one by one.
	group[failed].Report(err)
	for i, u := range group {
		if i == failed {
			continue
		}
		alone := []*unit{u}
		if err := w.s.checkWritable(); err != nil {
			report(alone, nil, err)
			continue
		}
		errs, failed, err := w.attempt(alone)
		if failed == 0 {
			u.Report(err)
			continue
		}
		w.conclude(alone, errs, err)
	}
}

// conclude reports the outcome of a commit. After a failed commit, it stops writes and tries to recover at once.
func (w *writer) conclude(group []*unit, errs []error, commitErr error) {
	if commitErr == nil {
		report(group, errs, nil)
		return
	}
	err := w.stop(fmt.Errorf("commit: %w", commitErr))
	report(group, nil, err)
	w.reopen()
}

// stop refuses writes until the file is reopened.
func (w *writer) stop(cause error) error {
	err := fmt.Errorf("%w: %w", store.ErrUnavailable, cause)
	w.broken.Store(&err)
	w.s.log.Error("writes stop until the file is reopened", slog.Any("err", cause))
	return err
}

// report sends each caller of group err or, if err is nil, its element of errs.
func report(group []*unit, errs []error, err error) {
	for i, u := range group {
		if err == nil && errs != nil {
			u.Report(errs[i])
		} else {
			u.Report(err)
		}
	}
}

// attempt executes a group in one transaction. errs holds the refusals of the units, which are reported only after the
// commit, because they may depend on what another unit wrote. failed is the index of the unit whose write failed, or
// -1. err is the error of that unit or, if failed is -1, the error of the commit.
func (w *writer) attempt(group []*unit) (errs []error, failed int, err error) {
	tx, err := w.s.db.Begin(true)
	if err != nil {
		return nil, -1, err
	}
	done := false
	defer func() {
		if !done {
			engine.Guard(tx.Rollback)
		}
	}()
	t := &txn{reads: reads{tx}, counts: w.counts, countChanges: make(countChanges), tally: make(tally), damage: w.s.damage, leases: &w.s.leases, watch: w.s.watchers.Shared()}
	errs = make([]error, len(group))
	wrote := false
	for i, u := range group {
		var write func() error
		errs[i] = engine.Guard(func() (err error) { // Guard turns a panic into an error
			t.by = u.Work.by
			write, err = u.Work.call.Plan(t)
			return err
		})
		if errs[i] != nil || write == nil {
			continue
		}
		if err := engine.Guard(write); err != nil {
			return nil, i, fmt.Errorf("write: %w", err)
		}
		wrote = true
	}
	if !wrote {
		done = true
		return errs, -1, tx.Rollback()
	}
	start, number := time.Now(), tx.ID()
	if err := engine.Guard(func() error {
		if err := t.saveTally(); err != nil {
			return err
		}
		return w.commit(tx)
	}); err != nil {
		return nil, -1, err
	}
	done = true
	w.counts.commit(number, t.countChanges)
	pages := tx.Stats()
	w.s.cfg.Committed(Commit{Units: len(group), Bytes: pages.GetPageAlloc(), Took: time.Since(start)})
	if err := engine.Guard(func() error { w.s.applyIndex(t); return nil }); err != nil {
		// The commit is durable, so its callers get success. Reopening the file builds the index again.
		w.stop(fmt.Errorf("change card index: %w", err))
	}
	w.s.watchers.Tell(t.hints)
	return errs, -1, nil
}

// reopen opens the file again after a failed commit, which may have reached the disk.
func (w *writer) reopen() {
	w.tried = time.Now()
	err := w.s.checkDisk()
	if err == nil {
		err = engine.Guard(w.s.reopenFile)
	}
	if err != nil {
		err = fmt.Errorf("%w: reopen: %w", store.ErrUnavailable, err)
		w.broken.Store(&err)
		return
	}
	w.counts.reset()
	w.broken.Store(nil)
	w.s.log.Info("the file is open again and accepts writes")
}
