package bolt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/local"
)

// plan checks every precondition of a unit and returns a function that then writes the unit, or nil if there is nothing
// to write. It sees the earlier units of the same commit, and must not write. It may run again in another transaction,
// so it must set its results and not add to them.
type plan func(t *txn) (write func() error, err error)

// txn is the transaction of one group of units.
type txn struct {
	*bbolt.Tx
	counts *liveCounts
	damage *damageLog
	after  []func(*cardindex.Index) // index changes, applied in order after the commit
	change uint64                   // the newest change that was written
	leases *local.Leases
	by     *local.Handle // the handle whose unit is executed
	hints  []local.Hint  // the written entries, if another handle watches
	watch  bool          // another handle may watch
}

// nextRev returns a new revision. It is called once per unit, so that no two units of a commit share a revision.
func (t *txn) nextRev() (store.Rev, error) {
	n, err := bucketMeta.in(t.Tx).b.NextSequence()
	return store.Rev(n), err
}

// note adds a hint about an entry that the unit writes.
func (t *txn) note(ns, key string) {
	if t.watch {
		t.hints = append(t.hints, local.Hint{Hint: store.Hint{NS: ns, Key: key}, By: t.by})
	}
}

func (t *txn) noteConv(key store.ConvKey) { t.note(store.WatchConversations, key.Peer+"/"+key.ID) }

const (
	queued  = iota
	taken   // taken by the writer, which will report the outcome
	skipped // withdrawn by its caller, whose context ended first
)

type unit struct {
	plan  plan
	by    *local.Handle
	state atomic.Int32
	err   chan error
}

// maxGroup bounds the memory and the time of one commit.
const maxGroup = 1024

// maxYields is the number of times in a row that the leader yields without getting a further unit.
const maxYields = 3

// retryEvery is the time between two attempts of a writer to reopen its file.
const retryEvery = time.Second

// writer commits units in groups. It has no goroutine of its own: the waiting caller that succeeds in sending to lead
// becomes the leader and commits a group of queued units. So a single caller commits in its own goroutine, as with
// bbolt's Update. Passing the unit to another goroutine and back would cost as much as half a commit.
type writer struct {
	s     *Store
	queue chan *unit
	lead  chan struct{} // full while a caller is the leader

	mu     sync.RWMutex // guards closed; no unit is queued after closed is set
	closed bool

	// broken is the reason why writes are refused after a failed commit; nil while they are accepted.
	broken atomic.Pointer[error]

	// Only the leader uses the following fields.
	counts *liveCounts
	group  []*unit
	tried  time.Time             // when the file was last reopened, or could not be reopened
	commit func(*bbolt.Tx) error // (*bbolt.Tx).Commit except in tests
}

func newWriter(s *Store, limit int) *writer {
	return &writer{
		s:      s,
		queue:  make(chan *unit, limit),
		lead:   make(chan struct{}, 1),
		counts: newLiveCounts(),
		commit: (*bbolt.Tx).Commit,
	}
}

// do is doFor for a unit of the database itself, about which nobody gets hints.
func (w *writer) do(ctx context.Context, p plan) error { return w.doFor(ctx, nil, p) }

// doFor queues a unit of a handle and waits for its outcome. If ctx ends before the leader takes the unit into a group,
// the unit is not executed. Once the leader has taken the unit, doFor ignores ctx and returns the outcome.
func (w *writer) doFor(ctx context.Context, by *local.Handle, p plan) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	u := &unit{plan: p, by: by, err: make(chan error, 1)}
	if err := w.enqueue(u); err != nil {
		return err
	}
	for {
		select { // first: if the caller could also lead, the select below would choose at random
		case err := <-u.err:
			return err
		default:
		}
		select {
		case err := <-u.err:
			return err
		case w.lead <- struct{}{}:
			w.serve()
			<-w.lead
		case <-ctx.Done():
			if u.state.CompareAndSwap(queued, skipped) {
				return ctx.Err()
			}
			return <-u.err
		}
	}
}

func (w *writer) enqueue(u *unit) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		return errClosed
	}
	select {
	case w.queue <- u:
		return nil
	default:
		return fmt.Errorf("%w: the write queue is full", store.ErrUnavailable)
	}
}

// close commits the queued units and refuses further ones.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.lead <- struct{}{} // never released
	for len(w.queue) > 0 {
		w.serve()
	}
}

// serve commits one group. The caller leads.
func (w *writer) serve() {
	if w.broken.Load() != nil && time.Since(w.tried) >= retryEvery {
		w.reopen()
	}
	// Yield, so that callers that the last commit woke can queue their next unit before this group is closed. With 64
	// callers, a group then has 48 units instead of 40. If no other goroutine is ready to run, yielding costs almost
	// nothing.
	for n, yields := len(w.queue), 0; yields < maxYields; yields++ {
		runtime.Gosched()
		if grown := len(w.queue); grown > n {
			n, yields = grown, 0
		}
	}
	w.group = w.gather(w.group[:0])
	w.commitGroup(w.group)
	clear(w.group)
}

// gather appends the units that are queued now, except those whose caller has given up.
func (w *writer) gather(group []*unit) []*unit {
	for more := true; more && len(group) < maxGroup; {
		select {
		case u := <-w.queue:
			group = append(group, u)
		default:
			more = false
		}
	}
	kept := group[:0]
	for _, u := range group {
		if u.state.CompareAndSwap(queued, taken) {
			kept = append(kept, u)
		}
	}
	return kept
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
	// The write of a unit failed, so the transaction with the writes of all units is lost. Execute the units one by
	// one.
	group[failed].err <- err
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
			u.err <- err
			continue
		}
		w.conclude(alone, errs, err)
	}
}

// conclude reports the outcome of a commit. If the commit failed, it stops writes and tries to recover at once.
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
			u.err <- errs[i]
		} else {
			u.err <- err
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
			w.counts.reset() // the counts include rows that are not written after all
			guard(tx.Rollback)
		}
	}()
	t := &txn{Tx: tx, counts: w.counts, damage: w.s.damage, leases: &w.s.leases, watch: w.s.watchers.Shared()}
	errs = make([]error, len(group))
	wrote := false
	for i, u := range group {
		var write func() error
		errs[i] = guard(func() (err error) {
			t.by = u.by
			write, err = u.plan(t)
			return err
		})
		if errs[i] != nil || write == nil {
			continue
		}
		if err := guard(write); err != nil {
			return nil, i, fmt.Errorf("write: %w", err)
		}
		wrote = true
	}
	if !wrote {
		done = true
		return errs, -1, tx.Rollback()
	}
	start := time.Now()
	if err := guard(func() error { return w.commit(tx) }); err != nil {
		return nil, -1, err
	}
	done = true
	pages := tx.Stats()
	w.s.cfg.Committed(Commit{Units: len(group), Bytes: pages.GetPageAlloc(), Took: time.Since(start)})
	if err := guard(func() error { w.s.applyIndex(t); return nil }); err != nil {
		// The commit is durable, so its callers get success. Reopening the file brings the index up to date.
		w.stop(fmt.Errorf("change card index: %w", err))
	}
	w.s.watchers.Tell(t.hints)
	return errs, -1, nil
}

// guard turns a panic into an error, so that a faulty unit fails alone, and a panic over a damaged page does not end
// the process.
func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return fn()
}

// reopen opens the file again after a failed commit, which may or may not have reached the disk, and brings the index
// to the state of the file. It reports whether writes are accepted again.
func (w *writer) reopen() bool {
	if w.broken.Load() == nil {
		return true
	}
	w.tried = time.Now()
	err := w.s.checkDisk()
	if err == nil {
		err = guard(w.s.reopenFile)
	}
	if err != nil {
		err = fmt.Errorf("%w: reopen: %w", store.ErrUnavailable, err)
		w.broken.Store(&err)
		return false
	}
	w.counts.reset()
	w.broken.Store(nil)
	w.s.log.Info("the file is open again and accepts writes")
	return true
}

var errClosed = fmt.Errorf("%w: %w", store.ErrUnavailable, errors.New("store is closed"))
