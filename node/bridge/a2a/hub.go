package a2a

import (
	"slices"
	"sync"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Bounds of the callers that wait at the same time, on a stream or for an answer.
const (
	maxWaiters       = 256
	maxAnonymous     = 128 // of all callers without a token
	maxWaitersOfOne  = 16  // of one caller, or of the callers without a token at one network address
	maxQueuedReports = 64  // that wait for one slow stream; the rest is lost
)

// waiter waits for changes of one task.
type waiter struct {
	task    string          // "" if it is not known yet
	address string          // the [bridge.Address] of the caller; callers without a token share one
	party   string          // see [caller.party]
	changed chan struct{}   // holds a value if the task has changed
	reports chan wire.Value // what a hook (program of the owner) sends before its answer; some may be lost
}

// hub passes changes of tasks to the waiters.
type hub struct {
	mu      sync.Mutex
	waiters []*waiter
}

// enter adds a waiter for a caller. If too many wait already, ok is false. If ok is true, call leave when the wait is over.
func (h *hub) enter(task string, from caller) (w *waiter, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	address, party := from.address.String(), from.party()
	ofParty, ofAddress, limit := 0, 0, maxWaitersOfOne
	for _, w := range h.waiters {
		if w.party == party {
			ofParty++
		}
		if w.address == address {
			ofAddress++
		}
	}
	if from.name == anonymous && ofAddress >= maxAnonymous/2 {
		limit = 1 // leaves places for network addresses from which nobody waits yet
	}
	if len(h.waiters) >= maxWaiters || ofParty >= limit || ofAddress >= maxAnonymous {
		return nil, false
	}
	w = &waiter{task: task, address: address, party: party, changed: make(chan struct{}, 1), reports: make(chan wire.Value, maxQueuedReports)}
	h.waiters = append(h.waiters, w)
	return w, true
}

// follow sets the task of a waiter that entered without one.
func (h *hub) follow(w *waiter, task string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.task = task
}

func (h *hub) leave(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters = slices.DeleteFunc(h.waiters, func(o *waiter) bool { return o == w })
}

// tasksOf returns the tasks for which callers with this address wait.
func (h *hub) tasksOf(address string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var tasks []string
	for _, w := range h.waiters {
		if w.address == address && w.task != "" && !slices.Contains(tasks, w.task) {
			tasks = append(tasks, w.task)
		}
	}
	return tasks
}

// publish passes reports of a task's hook to the waiters of the task, or, if reports is empty, tells them that the task
// has changed.
func (h *hub) publish(task string, reports []wire.Value) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.waiters {
		if w.task != task {
			continue
		}
		if len(reports) == 0 {
			waiting.Wake(w.changed)
		}
		for _, r := range reports {
			select {
			case w.reports <- r:
			default:
			}
		}
	}
}
