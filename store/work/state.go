package work

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// IsRunning reports whether this process works on a namespace.
func (w *Worker) IsRunning(ns string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue(ns).running
}

// IsBusy reports whether a call of a namespace runs, or may be due, or whether Run has not begun.
func (w *Worker) IsBusy(ns string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queue(ns)
	return !q.running || q.look || len(q.calls) > 0 || !q.next.IsZero() && !q.next.After(now)
}

// State describes a queue.
type State struct {
	Waiting int           // records, at most maxWaiting
	Running int           // calls
	Late    time.Duration // how long the first due record has waited beyond its time
}

// maxWaiting bounds State.Waiting.
const maxWaiting = 10_000

// State returns the state of the queue of a namespace.
func (w *Worker) State(ctx context.Context, ns string) (s State, err error) {
	now := time.Now()
	w.mu.Lock()
	q := w.queue(ns)
	w.mu.Unlock()
	s.Running = w.Running(ns)
	if s.Waiting, err = w.records.Count(ctx, ns, q.Term, maxWaiting, now); err != nil {
		return s, err
	}
	rows, _, err := w.records.Due(ctx, ns, now, nil, 1)
	if len(rows) > 0 && rows[0].Due.After(store.DueNow) {
		s.Late = now.Sub(rows[0].Due)
	}
	return s, err
}

// Running returns how many calls of a namespace run.
func (w *Worker) Running(ns string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue(ns).calls)
}

// Namespaces returns the namespaces of the queues.
func (w *Worker) Namespaces() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queues {
		all = append(all, q.NS)
	}
	return all
}
