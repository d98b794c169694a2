//go:build clockstep

package directory

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/directory/probe"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestClockStep: while the clock is wrong, no card is deleted that is live under the right time, and a client that used
// up an allowance does not wait longer than without the step.
func TestClockStep(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		const perHour = 20
		w := newWorld(t, func(c *Config) { c.Quotas = Quotas{PerToken: -1, PerHost: -1, PerHour: perHour} })
		clock := store.NewWallClock(nil)
		w.register(alice, testCard("am_0"))
		record := w.record("am_0")
		time.Sleep(time.Until(record.ExpiresAt) - 30*time.Minute)
		register := func(id string) int {
			return w.do("POST", "/v1/agents", string(testCard(id).JSON()), withBearer(bob)...).Code
		}
		for i := range perHour / 2 {
			if status := register(fmt.Sprint("am_1", i)); status != http.StatusCreated {
				t.Fatalf("registration %d: %d", i, status)
			}
		}
		storetest.StepClock(t, by)
		refused := false
		for i := range 2 * perHour {
			refused = register(fmt.Sprint("am_2", i)) == http.StatusTooManyRequests || refused
		}
		if !refused {
			t.Error("no registration was refused")
		}
		for range 2 {
			time.Sleep(10 * time.Minute)
			if err := clock.Sweep(t.Context(), w.store); err != nil {
				t.Fatal(err)
			}
		}
		storetest.StepClock(t, 0)
		if status := w.do("GET", "/v1/agents/am_0", "").Code; status != http.StatusOK {
			t.Errorf("a card that ends in ten minutes: %d", status)
		}
		register("am_early")
		time.Sleep(4 * time.Minute) // a token comes back in three
		if status := register("am_late"); status != http.StatusCreated {
			t.Errorf("a registration minutes later: %d", status)
		}
		time.Sleep(7 * time.Minute)
		if err := clock.Sweep(t.Context(), w.store); err != nil {
			t.Fatal(err)
		}
		if status := w.do("GET", "/v1/agents/am_0", "").Code; status == http.StatusOK {
			t.Error("a card that has ended is listed")
		}
	})
}

// TestClockStepOfProbes: a host gets its full pause and no longer one, however the clock is set.
func TestClockStepOfProbes(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		l := probe.NewQueue()
		next := func(when, id string, want int) {
			t.Helper()
			l.Add(probe.Target{ID: id, Host: "host.example"})
			if ready, _ := l.Next(time.Now(), 10); len(ready) != want {
				t.Errorf("%s: %d cards are probed, want %d", when, len(ready), want)
			}
		}
		next("at first", "am_1", 1)
		storetest.StepClock(t, by)
		next("within the pause, after the step", "am_2", 0)
		time.Sleep(probe.HostPause)
		next("after the pause", "am_2", 1)
		storetest.StepClock(t, 0)
		next("within the pause, after the correction", "am_3", 0)
		time.Sleep(probe.HostPause)
		next("after the pause", "am_3", 1)
	})
}
