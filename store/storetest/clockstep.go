//go:build clockstep

package storetest

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for linkname
)

// clockStep is the number of seconds that time.Now adds to the wall clock. While clockSteps is set, bubbles of synctest
// have a monotonic clock too. The script .ci/clock makes a time package that has these variables.
var (
	//go:linkname clockStep time.clockStep
	clockStep atomic.Int64
	//go:linkname clockSteps time.clockSteps
	clockSteps atomic.Bool
)

// SetClock moves the wall clock of this process by offset, in whole seconds. The monotonic clock does not change.
func SetClock(offset time.Duration) { clockStep.Store(int64(offset / time.Second)) }

// StepClock moves the wall clock as SetClock does, until the test ends.
func StepClock(t testing.TB, offset time.Duration) {
	t.Helper()
	SetClock(offset)
	t.Cleanup(func() { SetClock(0) })
}

// ClockSteps calls test in a bubble for each of two mistakes: a clock that is set an hour forward, and a clock that is
// set an hour back. The test makes the mistake and corrects it with [StepClock].
func ClockSteps(t *testing.T, test func(t *testing.T, by time.Duration)) {
	clockSteps.Store(true)
	defer clockSteps.Store(false)
	for name, by := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, by) })
		})
	}
}
