package view

import (
	"sync"
	"sync/atomic"
)

// Feed is what the owner sees of a space as it passes: every broadcast envelope, as compact JSON or as it came over a
// link. A reader that does not keep up loses envelopes, and is told how many.
type Feed struct {
	c    chan []byte
	lost atomic.Int64
	from *Feeds
}

const feedLength = 256

// Feeds are the open feeds of a space. The zero value is ready.
type Feeds struct {
	mu   sync.Mutex
	open map[*Feed]struct{}
}

// Watch starts a feed. It must be closed.
func (fs *Feeds) Watch() *Feed {
	f := &Feed{c: make(chan []byte, feedLength), from: fs}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.open == nil {
		fs.open = make(map[*Feed]struct{})
	}
	fs.open[f] = struct{}{}
	return f
}

// Tell gives an envelope to every feed.
func (fs *Feeds) Tell(raw []byte) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for f := range fs.open {
		select {
		case f.c <- raw:
		default:
			f.lost.Add(1)
		}
	}
}

// C delivers envelopes. Nobody may change them.
func (f *Feed) C() <-chan []byte { return f.c }

// Lost returns how many envelopes were lost since it was asked last.
func (f *Feed) Lost() int64 { return f.lost.Swap(0) }

// Close ends the feed.
func (f *Feed) Close() {
	f.from.mu.Lock()
	defer f.from.mu.Unlock()
	delete(f.from.open, f)
}
