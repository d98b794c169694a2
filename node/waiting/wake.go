package waiting

import (
	"context"
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
