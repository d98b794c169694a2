package probe

import (
	"fmt"
	"testing"
	"time"
)

// TestOneQuestionAMinute: a host gets one probe per minute, however many cards name it and however often they are
// registered.
func TestOneQuestionAMinute(t *testing.T) { // THREATS 17, AM-63
	l := NewQueue()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	var victim []time.Time
	others := 0
	for second := range 3600 {
		at := now.Add(time.Duration(second) * time.Second)
		if second%60 == 0 {
			for i := range 1000 {
				l.Add(Target{ID: fmt.Sprintf("am_%d", i), Host: "victim.example"})
			}
			l.Add(Target{ID: fmt.Sprintf("am_other%d", second), Host: fmt.Sprintf("host%d.example", second)})
		}
		ready, _ := l.Next(at, 8)
		for _, a := range ready {
			if a.Host == "victim.example" {
				victim = append(victim, at)
			} else {
				others++
			}
		}
		if l.Len() > MaxOfHost+1 {
			t.Fatalf("%d cards wait", l.Len())
		}
	}
	if len(victim) != 60 || others != 60 {
		t.Errorf("in an hour the victim was asked %d times, want 60; others %d times, want 60", len(victim), others)
	}
	for i := 1; i < len(victim); i++ {
		if victim[i].Sub(victim[i-1]) < HostPause {
			t.Errorf("asked at %v and at %v", victim[i-1], victim[i])
		}
	}
}

func TestProbeQueueIsBounded(t *testing.T) {
	l := NewQueue()
	now := time.Now()
	for i := range 2 * maxHosts {
		l.Add(Target{ID: fmt.Sprint(i), Host: fmt.Sprint(i)})
		if i%maxQueue == 0 {
			for ready, _ := l.Next(now, 1000); len(ready) > 0; ready, _ = l.Next(now, 1000) {
			}
		}
	}
	if l.Len() > maxQueue || len(l.paused) > maxHosts || len(l.byHost) > maxQueue || len(l.queued) > maxQueue {
		t.Errorf("%d wait, %d hosts pause, %d are counted", l.Len(), len(l.paused), len(l.byHost))
	}
	if got, again := l.Next(now.Add(HostPause), 5); len(got) != 5 || !again.Equal(now.Add(HostPause)) {
		t.Errorf("when the pauses are over, %d are asked", len(got))
	}
}

// TestIdleSleeps: the prober wakes when a probe is due or a card was added, and not earlier.
func TestIdleSleeps(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	l := NewQueue()
	if ready, again := l.Next(now, 8); len(ready) != 0 || !again.IsZero() {
		t.Errorf("nothing waits: %v, %v", ready, again)
	}
	l.Add(Target{ID: "am_1", Host: "a.example"})
	l.Add(Target{ID: "am_2", Host: "a.example"})
	l.Add(Target{ID: "am_3", Host: "b.example"})
	<-l.added
	if ready, again := l.Next(now, 1); len(ready) != 1 || !again.Equal(now) {
		t.Errorf("one at a time: %v, %v", ready, again)
	}
	if ready, again := l.Next(now, 8); len(ready) != 1 || !again.Equal(now.Add(HostPause)) {
		t.Errorf("the host pauses: %v, %v", ready, again)
	}
	select {
	case <-l.added:
		t.Error("woken without a new card")
	default:
	}
	if ready, again := l.Next(now.Add(HostPause), 8); len(ready) != 1 || !again.IsZero() {
		t.Errorf("the last one: %v, %v", ready, again)
	}
}
