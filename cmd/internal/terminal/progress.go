package terminal

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// How long something may take before the user is told that it goes on, and how often.
const (
	progressAfter = 2 * time.Second
	progressEvery = 5 * time.Second
)

// Working tells the user from time to time that something long goes on. The returned function ends it; after that
// nothing more is said. done, where it is not nil, says how far it came.
func (u *UI) Working(what string, done func() string) (stop func()) {
	begun := time.Now()
	ended := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		timer := time.NewTimer(progressAfter)
		defer timer.Stop()
		for {
			select {
			case <-ended:
				return
			case <-timer.C:
			}
			text := what
			if done != nil {
				text += ", " + done()
			}
			u.Note("still %s, for %s now", text, time.Since(begun).Round(time.Second))
			timer.Reset(progressEvery)
		}
	})
	return sync.OnceFunc(func() { close(ended); running.Wait() })
}

// Counted is a reader that knows how much was read of it.
type Counted struct {
	io.Reader
	n atomic.Int64
}

func (c *Counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func (c *Counted) String() string { return fmt.Sprintf("%d MiB so far", c.n.Load()>>20) }
