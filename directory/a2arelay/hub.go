package a2arelay

import (
	"slices"
	"sync"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxWaiters       = 2048
	maxWaitersOfOne  = 16 // of one client address; each network around it may have twice as many as the next narrower one
	maxWaitersOfTask = 8
)

type waiter struct {
	task string
	from caller
	wake chan struct{} // holds a value after the task has changed
}

// hub wakes the waiters of a task that changed. The zero value is ready to use.
type hub struct {
	mu      sync.Mutex
	waiters map[string][]*waiter // by task
	total   int
	sources map[wire.AgentID]int // number of waiters, by HMAC of the address or network
}

// enter adds a waiter. It returns nil if too many wait. The caller must call leave.
func (h *hub) enter(task string, from caller) *waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiters == nil {
		h.waiters, h.sources = make(map[string][]*waiter), make(map[wire.AgentID]int)
	}
	sources := from.sources()
	for i, source := range sources {
		if h.sources[source] >= maxWaitersOfOne<<i {
			return nil
		}
	}
	if h.total >= maxWaiters || h.total >= maxWaiters/2 && h.sources[from.source] > 0 || len(h.waiters[task]) >= maxWaitersOfTask {
		return nil // the second half of the places is for sources that have no waiter
	}
	w := &waiter{task, from, make(chan struct{}, 1)}
	h.waiters[task] = append(h.waiters[task], w)
	h.total++
	for _, source := range sources {
		h.sources[source]++
	}
	return w
}

func (h *hub) leave(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters[w.task] = slices.DeleteFunc(h.waiters[w.task], func(o *waiter) bool { return o == w })
	if len(h.waiters[w.task]) == 0 {
		delete(h.waiters, w.task)
	}
	h.total--
	for _, source := range w.from.sources() {
		if h.sources[source]--; h.sources[source] == 0 {
			delete(h.sources, source)
		}
	}
}

// publish wakes the waiters of a task that changed.
func (h *hub) publish(task string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.waiters[task] {
		waiting.Wake(w.wake)
	}
}
