package a2a

import (
	"slices"
	"sync"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Bounds of the callers that wait at the same time, on a stream or for an answer.
const (
	maxWaiters       = 256
	maxWaitersOfOne  = 16 // of one caller
	maxQueuedReports = 64 // that wait for one slow stream; the rest is lost
)

// waiter waits for changes of one task.
type waiter struct {
	task    string
	caller  string
	changed chan struct{}   // holds a value if the task has changed
	reports chan wire.Value // artifacts and texts of a hook that still works; hints that may be lost
}

// hub passes changes of tasks to those who wait for them.
type hub struct {
	mu      sync.Mutex
	waiters []*waiter
}

// enter adds a waiter; ok is false if too many wait. The caller must call leave.
func (h *hub) enter(task, caller string) (w *waiter, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	mine := 0
	for _, other := range h.waiters {
		if other.caller == caller {
			mine++
		}
	}
	if len(h.waiters) >= maxWaiters || mine >= maxWaitersOfOne {
		return nil, false
	}
	w = &waiter{task: task, caller: caller, changed: make(chan struct{}, 1), reports: make(chan wire.Value, maxQueuedReports)}
	h.waiters = append(h.waiters, w)
	return w, true
}

func (h *hub) leave(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters = slices.DeleteFunc(h.waiters, func(o *waiter) bool { return o == w })
}

// isIdle reports whether nobody waits.
func (h *hub) isIdle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiters) == 0
}

// publish tells the waiters of a task that it has changed, or passes reports of its hook on.
func (h *hub) publish(task string, reports []wire.Value) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.waiters {
		if w.task != task {
			continue
		}
		if reports == nil {
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
		for _, r := range reports {
			select {
			case w.reports <- r:
			default:
			}
		}
	}
}
