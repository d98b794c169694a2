package waiting

import (
	"sync"
	"sync/atomic"
)

// Feeds passes each value to all open feeds without blocking. The zero value is ready for concurrent use.
type Feeds[T any] struct {
	mu   sync.Mutex
	open map[*Feed[T]]struct{}
}

// Feed delivers values. A reader that is too slow loses values; [Feed.Lost] returns their number.
type Feed[T any] struct {
	c    chan T
	lost atomic.Int64
	from *Feeds[T]
}

// Watch opens a feed with room for some values that wait for its reader, who must close it.
func (fs *Feeds[T]) Watch(room int) *Feed[T] {
	f := &Feed[T]{c: make(chan T, room), from: fs}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.open == nil {
		fs.open = make(map[*Feed[T]]struct{})
	}
	fs.open[f] = struct{}{}
	return f
}

// Tell gives a value to every feed.
func (fs *Feeds[T]) Tell(v T) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for f := range fs.open {
		select {
		case f.c <- v:
		default:
			f.lost.Add(1)
		}
	}
}

// C delivers the values.
func (f *Feed[T]) C() <-chan T { return f.c }

// Lost returns how many values were lost since the last call of Lost.
func (f *Feed[T]) Lost() int64 { return f.lost.Swap(0) }

// Close ends the feed. It does not close the channel.
func (f *Feed[T]) Close() {
	f.from.mu.Lock()
	defer f.from.mu.Unlock()
	delete(f.from.open, f)
}
