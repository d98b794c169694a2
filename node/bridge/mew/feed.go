package mew

import (
	"sync/atomic"
)

// Feed is what the owner sees of a space as it passes: every broadcast envelope. One that does not keep up loses
// envelopes, and is told how many.
type Feed struct {
	c     chan []byte
	lost  atomic.Int64
	space *Space
}

const feedLength = 256

// Watch starts a feed. It must be closed.
func (s *Space) Watch() *Feed {
	f := &Feed{c: make(chan []byte, feedLength), space: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch.feeds == nil {
		s.watch.feeds = make(map[*Feed]struct{})
	}
	s.watch.feeds[f] = struct{}{}
	return f
}

// C delivers envelopes as compact JSON. Nobody may change them.
func (f *Feed) C() <-chan []byte { return f.c }

// Lost returns how many envelopes were lost since it was asked last.
func (f *Feed) Lost() int64 { return f.lost.Swap(0) }

// Close ends the feed.
func (f *Feed) Close() {
	f.space.mu.Lock()
	defer f.space.mu.Unlock()
	delete(f.space.watch.feeds, f)
}
