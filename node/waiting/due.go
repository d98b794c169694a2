package waiting

import (
	"context"
	"time"
)

// maxDueSleep is the longest sleep before the store is read again, in case the clock was changed.
const maxDueSleep = 10 * time.Minute

// Due starts work that is due. The work itself is in the store. It is safe for concurrent use.
type Due struct {
	wake chan struct{} // has room for one signal
}

func NewDue() *Due { return &Due{wake: make(chan struct{}, 1)} }

// Changed tells Run that work was added or changed.
func (r *Due) Changed() { Wake(r.wake) }

// Run calls startDue first, after Changed, and when work is due, but at most once a second, until ctx ends. startDue
// starts what is due, and returns when the next work is due, or the zero time.
func (r *Due) Run(ctx context.Context, startDue func(ctx context.Context, now time.Time) (next time.Time)) {
	for ctx.Err() == nil {
		sleep := maxDueSleep
		if next := startDue(ctx, time.Now()); !next.IsZero() {
			sleep = min(max(time.Until(next), time.Second), maxDueSleep)
		}
		select {
		case <-time.After(sleep):
		case <-ctx.Done():
		case <-r.wake:
			Pause(ctx, time.Second)
		}
	}
}
