package acl

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/store"
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

// TestReadOpened checks that, of all changes about an ask, only the one that stores it as pending opens it.
func TestReadOpened(t *testing.T) {
	now := time.Now()
	q := &Asks{}
	ask, changes := q.Open(Ask{Kind: "message", Subject: "am_chris", Created: now, Expires: now.Add(time.Hour)}, SenderSlot("am_chris"))
	found := 0
	for _, c := range changes {
		if end, ok := readOpened(c); ok {
			found++
			if !end.Equal(ask.Expires) {
				t.Errorf("it ends %s, want %s", end, ask.Expires)
			}
		}
	}
	if found != 1 {
		t.Errorf("%d of %d changes open it", found, len(changes))
	}
	ended := storedAsk{Ask: ask, Slot: "slot"}
	ended.State, ended.Decided = AskApproved, now
	for _, c := range append(append(ended.releaseSlot(nil), ended.change()), store.Change{Record: store.Record{NS: AskNamespace, Key: ask.ID}, Delete: true}, store.Change{Record: store.Record{NS: "inbox"}}) {
		if _, ok := readOpened(c); ok {
			t.Errorf("%+v opens something", c)
		}
	}
}
