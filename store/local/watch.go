package local

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/agentmesh/agentmesh/store"
)

// maxHints is the number of hints that may wait for a reader of [Watchers.Watch].
const maxHints = 256

// Watchers passes hints about commits on to the readers of [Watchers.Watch]. The zero value is ready to use.
type Watchers struct {
	n atomic.Int32 // length of list

	mu   sync.Mutex
	list []*watcher
}

type watcher struct {
	namespaces []string
	hints      chan store.Hint
}

// Any reports whether somebody watches.
func (w *Watchers) Any() bool { return w.n.Load() > 0 }

func (w *Watchers) add(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, one)
	w.n.Store(int32(len(w.list)))
}

// remove ends a watcher, if it has not ended yet.
func (w *Watchers) remove(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := slices.Index(w.list, one); at >= 0 {
		w.list = slices.Delete(w.list, at, at+1)
		w.n.Store(int32(len(w.list)))
		close(one.hints)
	}
}

// Close ends every watcher.
func (w *Watchers) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.list {
		close(one.hints)
	}
	w.list = nil
	w.n.Store(0)
}

// Tell passes on the hints of a commit. It drops a hint for a watcher that is too far behind.
func (w *Watchers) Tell(hints []store.Hint) {
	if len(hints) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.list {
		for _, hint := range hints {
			if !slices.Contains(one.namespaces, hint.NS) {
				continue
			}
			select {
			case one.hints <- hint:
			default:
			}
		}
	}
}

// Watch implements [store.Watcher]. The channel is also closed by Close.
func (w *Watchers) Watch(ctx context.Context, namespaces ...string) <-chan store.Hint {
	one := &watcher{namespaces: slices.Clone(namespaces), hints: make(chan store.Hint, maxHints)}
	w.add(one)
	context.AfterFunc(ctx, func() { w.remove(one) })
	return one.hints
}
