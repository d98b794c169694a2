package mess

import "sync"

// watchers are the pages that are open: each is told that some thread changed, and looks for itself.
type watchers struct {
	mu    sync.Mutex
	wakes map[chan struct{}]struct{}
}

// watch returns a channel that has something whenever a thread has changed since it was read last.
func (w *watchers) watch() (wake chan struct{}, stop func()) {
	wake = make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wakes == nil {
		w.wakes = map[chan struct{}]struct{}{}
	}
	w.wakes[wake] = struct{}{}
	return wake, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.wakes, wake)
	}
}

// changed tells the mirror and the open pages of a committed change. It never blocks.
func (x *Exchange) changed(refs []string) {
	if x.mirror != nil {
		x.mirror(refs)
	}
	x.open.mu.Lock()
	defer x.open.mu.Unlock()
	for wake := range x.open.wakes {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}
