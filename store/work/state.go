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

// maxWaiting bounds the result of [Worker.Waiting].
const maxWaiting = 10_000

// Waiting returns how many records of a namespace wait, at most maxWaiting.
func (w *Worker) Waiting(ctx context.Context, ns string) (int, error) {
	w.mu.Lock()
	term := w.queue(ns).Term
	w.mu.Unlock()
	return w.records.Count(ctx, ns, term, maxWaiting, time.Now())
}

// Late returns how long the first due record of a namespace has waited beyond its time. It skips at most minRows records
// that were due at once, because they have no time.
func (w *Worker) Late(ctx context.Context, ns string) (time.Duration, error) {
	now := time.Now()
	rows, _, err := w.records.Due(ctx, ns, now, nil, minRows)
	for _, r := range rows {
		if r.Due.After(store.DueNow) {
			return now.Sub(r.Due), err
		}
	}
	return 0, err
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
