package door

import (
	"slices"
	"sync"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxQueuedReports = 64        // that wait for one slow stream; the rest is lost
	maxSentTasks     = 256       // whose artifacts are kept while their agent works
	maxSentBytes     = 256 << 10 // of the artifacts of one task, as much as a hook may write
)

// Share is a part of the places of waiting callers, with room for Max of them. If it is Fair, its second half is for
// callers that have no place yet.
type Share struct {
	Key  string
	Max  int
	Fair bool
}

// Hub passes changes of tasks to the callers that wait for them, and keeps what an agent has sent of a task that it
// still works on. The zero value is ready for concurrent use.
type Hub struct {
	// OfTask is how many waiters of one task a change wakes; the others read the task every few seconds. Zero means
	// all.
	OfTask int

	mu      sync.Mutex
	taken   map[string]int       // places, by key of the share
	waiters map[string][]*Waiter // by task, "" while it is not known yet
	sent    map[string]sentTask  // by task
}

type sentTask struct {
	parts parts
	size  int
}

// Waiter waits for changes of one task.
type Waiter struct {
	task    string
	shares  []Share
	changed chan struct{}   // holds a value if the task has changed
	reports chan wire.Value // what an agent sends before its answer; some may be lost
}

// Enter takes a place in each of the shares. It returns nil if one of them is full. Call Leave when the wait is over.
func (h *Hub) Enter(shares []Share) *Waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range shares {
		if n := h.taken[s.Key]; n >= s.Max || s.Fair && n >= s.Max/2 && h.taken[shares[0].Key] > 0 {
			return nil
		}
	}
	if h.taken == nil {
		h.taken, h.waiters = make(map[string]int), make(map[string][]*Waiter)
	}
	for _, s := range shares {
		h.taken[s.Key]++
	}
	w := &Waiter{shares: shares, changed: make(chan struct{}, 1), reports: make(chan wire.Value, maxQueuedReports)}
	h.waiters[""] = append(h.waiters[""], w)
	return w
}

// follow sets the task of a waiter. It returns what was sent of the task before; the waiter gets what comes after.
func (h *Hub) follow(w *Waiter, task string) parts {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(w)
	w.task = task
	h.waiters[task] = append(h.waiters[task], w)
	return h.sent[task].parts
}

func (h *Hub) Leave(w *Waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(w)
	for _, s := range w.shares {
		if h.taken[s.Key]--; h.taken[s.Key] == 0 {
			delete(h.taken, s.Key)
		}
	}
}

func (h *Hub) remove(w *Waiter) {
	h.waiters[w.task] = slices.DeleteFunc(h.waiters[w.task], func(o *Waiter) bool { return o == w })
	if len(h.waiters[w.task]) == 0 {
		delete(h.waiters, w.task)
	}
}

func (h *Hub) sentBy(task string) parts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent[task].parts
}

// Waiters returns how many callers wait for a task that they know.
func (h *Hub) Waiters() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for task, list := range h.waiters {
		if task != "" {
			n += len(list)
		}
	}
	return n
}

// Changed wakes the waiters of a task. If the agent does not work on the task any more, what it has sent is forgotten,
// because the task has all of it now.
func (h *Hub) Changed(task string, works bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !works {
		delete(h.sent, task)
	}
	for i, w := range h.waiters[task] {
		if h.OfTask > 0 && i == h.OfTask {
			return
		}
		waiting.Wake(w.changed)
	}
}

// Report passes events of an agent that works on a task to the waiters of the task.
func (h *Hub) Report(task string, events []wire.Value) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sent == nil {
		h.sent = make(map[string]sentTask)
	}
	s, known := h.sent[task]
	for id := range h.sent {
		if known || len(h.sent) < maxSentTasks {
			break
		}
		delete(h.sent, id)
	}
	for _, event := range events {
		if s.size += len(event.JSON()); s.size <= maxSentBytes {
			s.parts = s.parts.add(event)
		}
		for _, w := range h.waiters[task] {
			select {
			case w.reports <- event:
			default:
			}
		}
	}
	h.sent[task] = s
}
