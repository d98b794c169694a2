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

// Hint names an entry that the handle By changed. A commit of the engine itself, such as that of a sweep, has no handle,
// and no reader gets its hints.
type Hint struct {
	store.Hint
	By *Handle
}

// Remote is the By of hints that come from another process.
var Remote = &Handle{}

// Watchers passes hints about commits on to the readers of [Watchers.Watch]. The zero value is ready to use.
type Watchers struct {
	shared atomic.Bool

	mu   sync.Mutex
	list []*watcher
}

// watcher is one reader.
type watcher struct {
	by         *Handle // the handle of the reader, which gets no hints about its own commits
	namespaces []string
	hints      chan store.Hint
}

// Share records that the data has a second handle. Before this call, no hints are needed.
func (w *Watchers) Share() { w.shared.Store(true) }

// Shared reports whether [Watchers.Share] was called.
func (w *Watchers) Shared() bool { return w.shared.Load() }

// remove ends a watcher, if it has not ended yet.
func (w *Watchers) remove(reader *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.list, reader); i >= 0 {
		w.list = slices.Delete(w.list, i, i+1)
		close(reader.hints)
	}
}

// Close ends every watcher.
func (w *Watchers) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, reader := range w.list {
		close(reader.hints)
	}
	w.list = nil
}

// Lose tells every reader that hints of other processes were lost.
func (w *Watchers) Lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, reader := range w.list {
		reader.send(store.Hint{})
	}
}

// Tell passes on the hints of a commit to every reader except those of the handle that committed.
func (w *Watchers) Tell(hints []Hint) {
	if len(hints) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, reader := range w.list {
		for _, hint := range hints {
			if hint.By != nil && hint.By != reader.by && slices.Contains(reader.namespaces, hint.NS) {
				reader.send(hint.Hint)
			}
		}
	}
}

// send sends a hint to the watcher. If the channel is full, one zero hint replaces everything in it. The caller must
// hold Watchers.mu, so that nobody else sends meanwhile.
func (w *watcher) send(hint store.Hint) {
	select {
	case w.hints <- hint:
		return
	default:
	}
	for {
		select {
		case <-w.hints:
			continue
		default:
		}
		break
	}
	w.hints <- store.Hint{}
}

// Watch implements [store.Watcher] for a handle. The channel is also closed by Close.
func (w *Watchers) Watch(ctx context.Context, by *Handle, namespaces ...string) <-chan store.Hint {
	reader := &watcher{by: by, namespaces: slices.Clone(namespaces), hints: make(chan store.Hint, maxHints)}
	w.mu.Lock()
	w.list = append(w.list, reader)
	w.mu.Unlock()
	context.AfterFunc(ctx, func() { w.remove(reader) })
	return reader.hints
}
