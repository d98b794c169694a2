package acl

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAlarm checks that an alarm without a time never goes off, that an alarm with a time goes off once, and that a
// flood of times makes it go off only once per minCheckGap.
func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAlarm()
		ctx, stop := context.WithCancel(t.Context())
		var woken atomic.Int64
		done := make(chan struct{})
		go func() { defer close(done); a.Watch(ctx, func(context.Context, time.Time) { woken.Add(1) }) }()
		look := func(name string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := woken.Load(); got != want {
				t.Errorf("%s: woken %d times, want %d", name, got, want)
			}
		}
		look("at the start", 1)
		time.Sleep(1000 * time.Hour)
		look("nothing to end", 1)
		a.Advance(time.Now().Add(2 * time.Hour))
		a.Advance(time.Now().Add(time.Hour))
		a.Advance(time.Now().Add(3 * time.Hour))
		time.Sleep(time.Hour - time.Second)
		look("before the end", 1)
		time.Sleep(time.Second)
		look("at the end", 2)
		for range 60 {
			a.Advance(time.Now())
			time.Sleep(time.Second)
		}
		look("a flood of ends", 4)
		stop()
		<-done
	})
}
