package view

import (
	"sync"
	"sync/atomic"
)

// Feed delivers the broadcast envelopes of a space to the owner, as compact JSON. A reader that is too slow loses
// envelopes; [Feed.Lost] returns their number.
type Feed struct {
	c    chan []byte
	lost atomic.Int64
	from *Feeds
}

const feedLength = 256

// Feeds holds the open feeds of a space. The zero value is ready.
type Feeds struct {
	mu   sync.Mutex
	open map[*Feed]struct{}
}

// Watch starts a feed. The caller must close it.
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

// Tell gives an envelope to every feed. The envelope must have no line breaks, because feeds become event streams.
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

// C delivers envelopes. The reader must not change them.
func (f *Feed) C() <-chan []byte { return f.c }

// Lost returns how many envelopes were lost since the last call of Lost.
func (f *Feed) Lost() int64 { return f.lost.Swap(0) }

// Close ends the feed.
func (f *Feed) Close() {
	f.from.mu.Lock()
	defer f.from.mu.Unlock()
	delete(f.from.open, f)
}
