package exchange

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestDeadlineWithinAMillisecond: a deadline between two milliseconds is met, although units are dated in whole
// milliseconds and one of these may lie before it.
func TestDeadlineWithinAMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		ref := l.request("alice", `{intent: x, needed_by: "`+time.Now().Add(100*time.Millisecond+300*time.Microsecond).UTC().Format(time.RFC3339Nano)+`"}`)
		time.Sleep(time.Second)
		synctest.Wait()
		l.want(ref, thread.Expired)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
