// Package waiting has the tools with which callers of a node wait: signals, feeds, bounded places,
// locks by key, and results that another goroutine passes on.
package waiting

import (
	"context"
	"sync"
	"time"
)

// Pause waits for d. It returns false if ctx ended first.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Wake wakes the reader of a channel that has room for one value. It never blocks: if a value waits there already, the
// reader will wake up anyway.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Signal wakes all callers that wait for it, each time it is given.
type Signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// Wait returns a channel that closes when the signal is given next.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// Broadcast gives the signal.
func (s *Signal) Broadcast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

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
