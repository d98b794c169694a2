package terminal

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
)

// StartProgress prints its first line after progressAfter, and another line every progressEvery.
const (
	progressAfter = 2 * time.Second
	progressEvery = 5 * time.Second
)

// StartProgress tells the user from time to time that an operation is still running, until the caller calls stop. It
// prints nothing after stop has returned. operation describes the operation, such as "writing the backup". If progress
// is not nil, each line also has the text that it returns.
func (u *UI) StartProgress(operation string, progress func() string) (stop func()) {
	begun := time.Now()
	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for wait := progressAfter; waiting.Pause(ctx, wait); wait = progressEvery {
			text := operation
			if progress != nil {
				text += ", " + progress()
			}
			u.Note("still %s, for %s now", text, time.Since(begun).Round(time.Second))
		}
	})
	return func() { end(); running.Wait() }
}

// AwaitAnswer is [UI.StartProgress] for a call that a script may wait for, too: only a person at a terminal gets lines.
func (u *UI) AwaitAnswer(operation string) (stop func()) {
	if !IsTerminal(u.Err) {
		return func() {}
	}
	return u.StartProgress(operation, nil)
}

// CountingReader counts the bytes that are read from it. Its String describes the count.
type CountingReader struct {
	io.Reader
	n atomic.Int64
}

func (c *CountingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func (c *CountingReader) String() string { return fmt.Sprintf("%d MiB so far", c.n.Load()>>20) }
