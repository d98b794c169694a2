package waiting

import "sync"

// Results passes one value for each key to the caller that expects it. It is safe for concurrent use, and the zero
// value is ready to use.
type Results[T any] struct {
	mu      sync.Mutex
	waiting map[string]chan T
}

// Expect returns a channel that receives the next value for key. It replaces an earlier caller that expects the same
// key. The caller must call forget, which may be called twice.
func (r *Results[T]) Expect(key string) (value <-chan T, forget func()) {
	ch := make(chan T, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = make(map[string]chan T)
	}
	r.waiting[key] = ch
	return ch, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.waiting[key] == ch {
			delete(r.waiting, key)
		}
	}
}

// Give passes value to the caller that expects key, and reports whether there is one.
func (r *Results[T]) Give(key string, value T) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch := r.waiting[key]
	if ch == nil {
		return false
	}
	delete(r.waiting, key)
	ch <- value // does not block: the channel has room for one value, and gets one
	return true
}
