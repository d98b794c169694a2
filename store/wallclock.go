package store

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// clockTolerance is how far the wall clock may move against the monotonic clock without a doubt about it.
	clockTolerance = time.Minute
	// clockDoubt is how long a wall clock that was stepped is doubted. Whoever set it wrong has noticed by then.
	clockDoubt = 3 * time.Hour
)

// WallClock notices steps of the wall clock. What a wrong clock lets expire can be kept until the clock is right again,
// but what was deleted is gone: everything that deletes by time asks first whether the clock is believed. It is safe for
// concurrent use. A nil *WallClock is always believed.
type WallClock struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time     // when it was asked last
	ahead   time.Duration // what the wall clock gained on the monotonic clock since it was believed
	doubted time.Time     // since when it is not believed; zero: it is
}

// NewWallClock believes the wall clock as it is now. A nil logger discards the line about a step.
func NewWallClock(log *slog.Logger) *WallClock {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &WallClock{log: log, last: time.Now()}
}

// Believed reports whether the wall clock runs as it did since the start, or was stepped so long ago that the step must
// have been meant.
func (c *WallClock) Believed() bool {
	if c == nil {
		return true
	}
	return c.believes(time.Now())
}

// believes judges a time with a monotonic reading.
func (c *WallClock) believes(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	step := now.Round(0).Sub(c.last.Round(0)) - now.Sub(c.last)
	c.last = now
	c.ahead += step
	switch {
	case c.ahead.Abs() < clockTolerance:
		c.doubted = time.Time{}
	case c.doubted.IsZero() || step.Abs() >= clockTolerance:
		c.log.Warn("the clock of this machine was set; nothing that expires is deleted for now", "by", c.ahead.Round(time.Second), "until_believed", clockDoubt)
		c.doubted = now
	case now.Sub(c.doubted) >= clockDoubt:
		c.ahead, c.doubted = 0, time.Time{}
	}
	return c.doubted.IsZero()
}

// sweepAtOnce bounds one call of [Store.Sweep].
const sweepAtOnce = 5000

// Sweep reclaims what has expired in s, unless the clock is in doubt.
func (c *WallClock) Sweep(ctx context.Context, s Store) error {
	if !c.Believed() {
		return nil
	}
	for now := time.Now(); ; {
		if took, err := s.Sweep(ctx, now, sweepAtOnce); err != nil || took < sweepAtOnce {
			return err
		}
	}
}
