package store

import (
	"testing"
	"time"
)

// TestWallClock checks that a clock that was set is in doubt until it is set back, or for three hours.
func TestWallClock(t *testing.T) {
	c := NewWallClock(nil)
	mono := time.Now()
	// at returns the time after a while, on a wall clock that was set by a step meanwhile.
	at := func(after, step time.Duration) time.Time {
		mono = mono.Add(after)
		c.mu.Lock()
		c.ahead, c.last = c.ahead+step, mono // what a step does to the next reading
		c.mu.Unlock()
		return mono
	}
	for _, tt := range []struct {
		name        string
		after, step time.Duration
		want        bool
	}{
		{"as it was", time.Hour, 0, true},
		{"a correction", time.Second, 30 * time.Second, true},
		{"and its end", time.Second, -30 * time.Second, true},
		{"an hour forward", time.Second, time.Hour, false},
		{"later", time.Hour, 0, false},
		{"and back", time.Second, -time.Hour, true},
		{"an hour back", time.Second, -time.Hour, false},
		{"and forward", time.Second, time.Hour, true},
		{"a day forward, and left so", time.Second, 24 * time.Hour, false},
		{"after two hours", 2 * time.Hour, 0, false},
		{"after three hours", time.Hour, 0, true},
		{"from then on", time.Hour, 0, true},
		{"the next step", time.Second, -24 * time.Hour, false},
	} {
		if got := c.judge(at(tt.after, tt.step)); got != tt.want {
			t.Errorf("%s: judge = %t, want %t", tt.name, got, tt.want)
		}
	}
	if !(*WallClock)(nil).Reliable() {
		t.Error("a nil WallClock is in doubt")
	}
}
