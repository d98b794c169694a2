package store

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// clockTolerance is how far the wall clock may drift from the monotonic clock before it is in doubt.
	clockTolerance = time.Minute
	// clockDoubt is how long a wall clock stays in doubt after a step: long enough for an operator to notice.
	clockDoubt = 3 * time.Hour
)

// WallClock detects steps of the wall clock. Code that deletes expired data must first ask Reliable: with a wrong
// clock, keeping data too long does no harm, but deleted data is lost. A WallClock is safe for concurrent use. A nil
// *WallClock is always reliable.
type WallClock struct {
	log *slog.Logger

	mu         sync.Mutex
	last       time.Time     // the previous reading
	ahead      time.Duration // how far the wall clock drifted from the monotonic clock, except for steps older than clockDoubt
	doubtSince time.Time     // when the doubt began; zero: the clock is reliable
}

// NewWallClock returns a WallClock that trusts the current time. It logs steps to log, which may be nil.
func NewWallClock(log *slog.Logger) *WallClock {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &WallClock{log: log, last: time.Now()}
}

// Reliable reports whether the wall clock has kept pace with the monotonic clock since the start, or was stepped so
// long ago that the step must have been intended.
func (c *WallClock) Reliable() bool {
	if c == nil {
		return true
	}
	return c.judge(time.Now())
}

// judge compares now, which must have a monotonic reading, with the previous reading, and reports whether the wall clock
// is reliable.
func (c *WallClock) judge(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Round(0) strips the monotonic reading, so the first difference is of the wall clock, the second of the monotonic one.
	step := now.Round(0).Sub(c.last.Round(0)) - now.Sub(c.last)
	c.last = now
	c.ahead += step
	switch {
	case c.ahead.Abs() < clockTolerance:
		c.doubtSince = time.Time{}
	case c.doubtSince.IsZero() || step.Abs() >= clockTolerance: // the clock was set, or set again
		c.log.Warn("the clock of this machine was set; nothing that expires is deleted for now", "by", c.ahead.Round(time.Second), "until_believed", clockDoubt)
		c.doubtSince = now
	case now.Sub(c.doubtSince) >= clockDoubt:
		c.ahead, c.doubtSince = 0, time.Time{}
	}
	return c.doubtSince.IsZero()
}

// sweepLimit is the limit of one call of [Store.Sweep].
const sweepLimit = 5000

// Sweep reclaims the space of everything in s that has expired, unless the clock is in doubt.
func (c *WallClock) Sweep(ctx context.Context, s Store) error {
	if !c.Reliable() {
		return nil
	}
	for now := time.Now(); ; {
		if n, err := s.Sweep(ctx, now, sweepLimit); err != nil || n < sweepLimit {
			return err
		}
	}
}
