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
)

// A plan checks every precondition of a unit and returns what then writes it; nil when there is nothing to write.
// It sees the units before it in the same commit and must not write. It may run again in another transaction,
// so it sets results, it does not add to them.
type plan func(t *txn) (write func() error, err error)

// txn is the transaction of one group.
type txn struct {
	*bbolt.Tx
	counts *liveCounts
	damage *damageLog
	after  []func(*index) // index changes, applied in order once the commit stands
	change uint64         // newest change written
}

// nextRev numbers a revision. It is asked once a unit, so that no two units of a commit share one.
func (t *txn) nextRev() (store.Rev, error) {
	n, err := bucketMeta.in(t.Tx).b.NextSequence()
	return store.Rev(n), err
}

const (
	queued  = iota
	taken   // by the writer: the outcome will be told
	skipped // by its caller, whose context ended first
)

type unit struct {
	plan  plan
	state atomic.Int32
	err   chan error
}

// maxGroup bounds the memory and the time of one commit.
const maxGroup = 1024

// yields is how many times in a row a leader lets others run without a further unit coming.
const yields = 3

// retryEvery is how long a writer that could not reopen its file waits before it tries again.
const retryEvery = time.Second

// writer commits units in groups. It has no goroutine: among the callers that wait, the one that gets hold of lead
// does the work for all that has queued. So a lone sender commits where it stands, as with bbolt's Update, and
// pays for no handing over to another thread and back, which costs as much as half a commit.
type writer struct {
	s     *Store
	queue chan *unit
	lead  chan struct{} // full while somebody leads

	mu     sync.RWMutex // guards closed, and that nothing is queued behind it
	closed bool

	// broken is why writes are refused since a commit failed; nil while they are taken.
	broken atomic.Pointer[error]

	// Owned by who leads.
	counts *liveCounts
	group  []*unit
	tried  time.Time             // when the file was last reopened, or could not be
	commit func(*bbolt.Tx) error // (*bbolt.Tx).Commit but in tests
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

// do queues a unit and waits for its outcome. When ctx ends before the unit was taken into a group, it is not
// done; after that its outcome is told as it is.
func (w *writer) do(ctx context.Context, p plan) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	u := &unit{plan: p, err: make(chan error, 1)}
	if err := w.enqueue(u); err != nil {
		return err
	}
	for {
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
		return fmt.Errorf("%w: write queue is full", store.ErrUnavailable)
	}
}

// close does what is queued and takes nothing more.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.lead <- struct{}{} // for good
	for len(w.queue) > 0 {
		w.serve()
	}
}

// serve commits one group. Who calls it leads.
func (w *writer) serve() {
	if w.broken.Load() != nil && time.Since(w.tried) >= retryEvery {
		w.reopen()
	}
	// Senders that the last commit woke get their turn to queue before this group is closed: with 64 of them a group
	// has 48 units instead of 40. Where nobody else is ready to run it costs next to nothing.
	for n, still := len(w.queue), 0; still < yields; still++ {
		runtime.Gosched()
		if more := len(w.queue); more > n {
			n, still = more, 0
		}
	}
	w.group = w.gather(w.group[:0])
	w.round(w.group)
	clear(w.group)
}

// gather adds what is queued right now and takes each unit from its caller.
func (w *writer) gather(group []*unit) []*unit {
	for more := true; more && len(group) < maxGroup; {
		select {
		case u := <-w.queue:
			group = append(group, u)
		default:
			more = false
		}
	}
	mine := group[:0]
	for _, u := range group {
		if u.state.CompareAndSwap(queued, taken) {
			mine = append(mine, u)
		}
	}
	return mine
}

// round does a group of units and tells each its outcome.
func (w *writer) round(group []*unit) {
	if len(group) == 0 {
		return
	}
	if err := w.s.writable(); err != nil {
		tell(group, nil, err)
		return
	}
	errs, spoiler, err := w.attempt(group)
	if spoiler < 0 {
		w.outcome(group, errs, err)
		return
	}
	// A unit broke in its writes: the transaction is gone, and with it the work of its neighbours. They go
	// again, one by one.
	group[spoiler].err <- err
	for i, u := range group {
		if i == spoiler {
			continue
		}
		one := []*unit{u}
		if err := w.s.writable(); err != nil {
			tell(one, nil, err)
			continue
		}
		errs, spoiler, err := w.attempt(one)
		if spoiler == 0 {
			u.err <- err
			continue
		}
		w.outcome(one, errs, err)
	}
}

// outcome tells what a commit came to and, where it failed, stops writes and tries to recover at once.
func (w *writer) outcome(group []*unit, errs []error, commitErr error) {
	if commitErr == nil {
		tell(group, errs, nil)
		return
	}
	err := w.stop(fmt.Errorf("commit: %w", commitErr))
	tell(group, nil, err)
	w.reopen()
}

// stop refuses writes until the file is reopened.
func (w *writer) stop(cause error) error {
	err := fmt.Errorf("%w: %w", store.ErrUnavailable, cause)
	w.broken.Store(&err)
	w.s.log.Error("writes stop until the file is reopened", slog.Any("err", cause))
	return err
}

func tell(group []*unit, errs []error, err error) {
	for i, u := range group {
		if err == nil && errs != nil {
			u.err <- errs[i]
		} else {
			u.err <- err
		}
	}
}

// attempt runs a group in one transaction. errs are the refusals, told only once the commit stands: they may rest
// on what a neighbour wrote. spoiler is the unit that broke in its writes, or -1; err is then its error, else
// the commit's.
func (w *writer) attempt(group []*unit) (errs []error, spoiler int, err error) {
	tx, err := w.s.db.Begin(true)
	if err != nil {
		return nil, -1, err
	}
	done := false
	defer func() {
		if !done {
			w.counts.reset() // they count what is now not written
			guard(tx.Rollback)
		}
	}()
	t := &txn{Tx: tx, counts: w.counts, damage: w.s.damage}
	errs = make([]error, len(group))
	wrote := false
	for i, u := range group {
		var write func() error
		errs[i] = guard(func() (err error) {
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
	if err := guard(func() error { w.s.applied(t); return nil }); err != nil {
		// The commit stands and is told. Reopening brings the index to it, as after one that failed.
		w.stop(fmt.Errorf("change card index: %w", err))
	}
	return errs, -1, nil
}

// guard turns a panic into an error: a unit's mistake must not cost its neighbours, nor a damaged page the process.
func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return fn()
}

// reopen opens the file anew after a failed commit, which may or may not have reached the disk, and brings the
// index to what is really there. It says whether writes are taken again.
func (w *writer) reopen() bool {
	if w.broken.Load() == nil {
		return true
	}
	w.tried = time.Now()
	err := w.s.lowDisk()
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
	w.s.log.Info("file reopened, writes go on")
	return true
}

var errClosed = fmt.Errorf("%w: %w", store.ErrUnavailable, errors.New("store is closed"))
