// Package events passes the events of a node to its watchers in this process.
//
// A watcher that reconnects may ask for the events after the last one that it has seen, as far as the hub still has
// them. A slow watcher delays nobody: it loses events and gets a reset instead.
package events

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
)

const (
	maxKept    = 1024 // the newest events, which a stream that reconnects can still get
	maxQueued  = 64   // events that wait for one watcher; if more come, one reset replaces them
	maxStreams = 64   // event streams of the owner API that are open at once
)

// Hub passes every event to all watchers. It is safe for concurrent use.
type Hub struct {
	epoch   string        // distinguishes event ids of this process from those of others
	streams chan struct{} // has an element for each open event stream

	mu       sync.Mutex
	seq      uint64
	ring     []owner.Event // the newest events; an event is at its seq modulo the length
	watchers map[*Watcher]struct{}
	closed   bool
}

// Watcher is one watcher of a [Hub]. C is closed when the watch ends.
type Watcher struct{ C chan owner.Event }

// New returns a hub without watchers. now distinguishes its event ids from those of other processes.
func New(now time.Time) *Hub {
	return &Hub{
		epoch: strconv.FormatInt(now.UnixMilli(), 36), streams: make(chan struct{}, maxStreams), ring: make([]owner.Event, maxKept),
		watchers: make(map[*Watcher]struct{}),
	}
}

// ID returns the id of an event. A stream that reconnects sends the id to continue after that event.
func (h *Hub) ID(seq uint64) string { return h.epoch + "-" + strconv.FormatUint(seq, 10) }

// Watch adds a watcher. last is the id of the last event that the caller has seen, or "" if it has seen none. missed
// holds the events after that event. If the hub does not have all of them, missed is empty and complete is false. After
// [Hub.Close], C is closed at once and complete is true.
func (h *Hub) Watch(last string) (w *Watcher, missed []owner.Event, complete bool) {
	w = &Watcher{C: make(chan owner.Event, maxQueued)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(w.C)
		return w, nil, true
	}
	h.watchers[w] = struct{}{}
	if last == "" {
		return w, nil, true
	}
	epoch, number, _ := strings.Cut(last, "-")
	after, err := strconv.ParseUint(number, 10, 64)
	if err != nil || epoch != h.epoch || after > h.seq || h.seq-after > maxKept {
		return w, nil, false
	}
	for seq := after + 1; seq <= h.seq; seq++ {
		missed = append(missed, h.ring[seq%maxKept])
	}
	return w, missed, true
}

// Unwatch ends a watch. It may be called twice.
func (h *Hub) Unwatch(w *Watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.watchers[w]; ok {
		delete(h.watchers, w)
		close(w.C)
	}
}

// Close closes the channels of all watchers.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		delete(h.watchers, w)
		close(w.C)
	}
}

// Publish sends the events to all watchers without blocking.
func (h *Hub) Publish(list ...owner.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ev := range list {
		h.seq++
		ev.Seq = h.seq
		h.ring[h.seq%maxKept] = ev
		for w := range h.watchers {
			w.give(ev)
		}
	}
}

// give sends an event to the watcher. If the channel is full, one reset replaces everything in it. The caller must hold
// Hub.mu, so that nobody else sends meanwhile.
func (w *Watcher) give(ev owner.Event) {
	select {
	case w.C <- ev:
		return
	default:
	}
	for {
		select {
		case <-w.C:
		default:
			w.C <- owner.Event{Topic: owner.TopicReset}
			return
		}
	}
}

// Enter takes a place for an event stream of the owner API. ok is false if all places are taken. The owner and the
// owner's agent share the places.
func (h *Hub) Enter() (leave func(), ok bool) {
	select {
	case h.streams <- struct{}{}:
		return sync.OnceFunc(func() { <-h.streams }), true
	default:
		return nil, false
	}
}
