// Package waiting has the tools with which callers of a node wait: signals, feeds, bounded places,
// locks by key, and results that another goroutine passes on.
package waiting

import "sync"

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
