package engine

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/agentmesh/agentmesh/store"
)

// Queue collects units of work for group commits. It has no goroutine of its own: one of the waiting callers becomes
// the leader and commits a group of queued units. So a single caller commits in its own goroutine.
type Queue[W any] struct {
	commit func()
	units  chan *Unit[W]
	lead   chan struct{} // full while a caller is the leader

	mu     sync.RWMutex // guards closed; no unit is queued after closed is set
	closed bool
}

// Unit is work that waits in a queue.
type Unit[W any] struct {
	Work  W
	state atomic.Int32
	err   chan error
}

const (
	queued  = iota
	taken   // by the leader, which will report the outcome
	skipped // withdrawn by its caller, whose context ended first
)

// NewQueue makes a queue for at most limit units. The leader calls commit, which takes a group with [Queue.Take],
// commits it and reports the outcome of each unit.
func NewQueue[W any](limit int, commit func()) *Queue[W] {
	return &Queue[W]{commit: commit, units: make(chan *Unit[W], limit), lead: make(chan struct{}, 1)}
}

// Do queues work and returns its outcome. If ctx ends before a leader takes the work, the work is not executed. Once a
// leader has taken it, Do ignores ctx. The error is [store.ErrUnavailable] if the queue is full or closed.
func (q *Queue[W]) Do(ctx context.Context, work W) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	u := &Unit[W]{Work: work, err: make(chan error, 1)}
	if err := q.add(u); err != nil {
		return err
	}
	for {
		select { // first, because the select below chooses at random, and a caller with an outcome need not lead
		case err := <-u.err:
			return err
		default:
		}
		select {
		case err := <-u.err:
			return err
		case q.lead <- struct{}{}:
			q.commit()
			<-q.lead
		case <-ctx.Done():
			if u.state.CompareAndSwap(queued, skipped) {
				return ctx.Err()
			}
			return <-u.err
		}
	}
}

func (q *Queue[W]) add(u *Unit[W]) error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return fmt.Errorf("%w: store is closed", store.ErrUnavailable)
	}
	select {
	case q.units <- u:
		return nil
	default:
		return fmt.Errorf("%w: the write queue is full", store.ErrUnavailable)
	}
}

// Take appends at most max queued units to group. Only the leader may call it, and must then report the outcome of
// each.
func (q *Queue[W]) Take(group []*Unit[W], max int) []*Unit[W] {
	for len(group) < max {
		select {
		case u := <-q.units:
			if u.state.CompareAndSwap(queued, taken) {
				group = append(group, u)
			}
		default:
			return group
		}
	}
	return group
}

// Report makes the call of [Queue.Do] return err. Call it once.
func (u *Unit[W]) Report(err error) { u.err <- err }

// Len returns the number of units in the queue, including those whose callers have given up.
func (q *Queue[W]) Len() int { return len(q.units) }

// Pause waits for the end of a running commit. No other commit begins before resume is called.
func (q *Queue[W]) Pause(ctx context.Context) (resume func(), err error) {
	select {
	case q.lead <- struct{}{}:
		return func() { <-q.lead }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close commits the queued units and refuses further ones.
func (q *Queue[W]) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.lead <- struct{}{} // never released
	for len(q.units) > 0 {
		q.commit()
	}
}

// Guard calls f and turns a panic, or a fault while reading a mapped file, into an error, so that a faulty unit fails
// alone, and damaged data does not end the process.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}
