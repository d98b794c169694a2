package mew

import (
	"sync"
	"sync/atomic"
)

// Feed is what the owner sees of a space as it passes: every broadcast envelope, as compact JSON or as it came over a
// link. One that does not keep up loses envelopes, and is told how many.
type Feed struct {
	c    chan []byte
	lost atomic.Int64
	stop func()
}

const feedLength = 256

// feeds are those who watch a space. The lock of the space guards them.
type feeds map[*Feed]struct{}

// newFeed starts a feed among those that mu guards. It must be closed.
func newFeed(mu *sync.Mutex, in feeds) *Feed {
	f := &Feed{c: make(chan []byte, feedLength)}
	f.stop = func() {
		mu.Lock()
		defer mu.Unlock()
		delete(in, f)
	}
	mu.Lock()
	defer mu.Unlock()
	in[f] = struct{}{}
	return f
}

// tell gives an envelope to everybody who watches.
func (fs feeds) tell(raw []byte) {
	for f := range fs {
		select {
		case f.c <- raw:
		default:
			f.lost.Add(1)
		}
	}
}

// Watch starts a feed. It must be closed.
func (s *Space) Watch() *Feed { return newFeed(&s.mu, s.watch.feeds) }

// C delivers envelopes. Nobody may change them.
func (f *Feed) C() <-chan []byte { return f.c }

// Lost returns how many envelopes were lost since it was asked last.
func (f *Feed) Lost() int64 { return f.lost.Swap(0) }

// Close ends the feed.
func (f *Feed) Close() { f.stop() }
