//go:build clockstep

package exchange

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestClockStep: while the clock is wrong no thread reaches its deadline; when it is right again, threads expire on
// time. Keys, calls and threads are not limited for longer than without the step.
func TestClockStep(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		l := newLab(t)
		x := New(Config{Store: l.store, CallsPerMinute: 10, ThreadsPerHour: 60})
		l.Exchange = x
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- x.Run(ctx) }()
		needed := time.Now().Add(50 * time.Minute)
		ref := l.request("alice", `{intent: x, needed_by: "`+needed.UTC().Format(time.RFC3339Nano)+`"}`)
		l.executor("bob")
		key, err := x.Executors.GiveKey(ctx, "bob", nil)
		if err != nil {
			t.Fatal(err)
		}
		call := func() bool { _, err := x.Executors.Authenticate("Bearer "+key, x.ID()); return err == nil }
		first := l.request("alice", "{id: first, intent: x}")
		waits := l.request("alice", `{intent: x, needed_by: "`+needed.UTC().Format(time.RFC3339Nano)+`", constraints: {depends_on: [first]}}`)
		time.Sleep(10 * time.Minute)

		storetest.StepClock(t, by)
		time.Sleep(20 * time.Minute)
		l.status("bob", first, "completed")
		l.want(waits, thread.Received)
		calls, threads := 0, 0
		for range 100 {
			if call() {
				calls++
			}
			if x.newThreads.charge(actor("bob")) == nil {
				threads++
			}
		}
		storetest.StepClock(t, 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		l.want(ref, thread.Received)
		if ok := call(); !ok || calls != 10 {
			t.Errorf("after %d calls and a minute one more is allowed: %t", calls, ok)
		}
		if err := x.newThreads.charge(actor("bob")); err != nil || threads != 60 {
			t.Errorf("after %d threads and a minute: %v", threads, err)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		l.want(ref, thread.Expired)
		l.want(waits, thread.Expired)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
