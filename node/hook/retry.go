package hook

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
)

// RetryFor is how long the node keeps trying to reach a hook for one message.
const RetryFor = 24 * time.Hour

// retryPauses are the pauses between attempts to reach a hook; the last one repeats.
var retryPauses = [...]time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute}

// RetryPause returns how long to wait after the given number of failed attempts, ± 20 %.
func RetryPause(failed int) time.Duration {
	pause := retryPauses[min(max(failed-1, 0), len(retryPauses)-1)]
	return time.Duration(float64(pause) * (0.8 + 0.4*rand.Float64()))
}

// maxRetrySleep is the longest sleep before the store is read again, in case the clock was changed.
const maxRetrySleep = 10 * time.Minute

// Retries wakes the node when messages that wait for their hook are due. The store has the messages. It is safe for
// concurrent use.
type Retries struct {
	wake chan struct{} // has room for one signal
}

// Changed tells Run that another message waits for its hook.
func (r *Retries) Changed() { waiting.Wake(r.wake) }

// Run calls startDue first, after Changed, and when a message is due, but at most once a second, until ctx ends.
// startDue starts what is due, and returns when the next message is due, or the zero time.
func (r *Retries) Run(ctx context.Context, startDue func(ctx context.Context, now time.Time) (next time.Time)) {
	for ctx.Err() == nil {
		sleep := maxRetrySleep
		if next := startDue(ctx, time.Now()); !next.IsZero() {
			sleep = min(max(time.Until(next), time.Second), maxRetrySleep)
		}
		select {
		case <-time.After(sleep):
		case <-ctx.Done():
		case <-r.wake:
			waiting.Pause(ctx, time.Second)
		}
	}
}
