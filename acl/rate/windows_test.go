package rate_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
)

// TestWindows checks that in no minute and in no hour more passes than the limits allow, and that a sender that waits
// as long as required need not wait again.
func TestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perMinute, perHour = 10, 100
		a := rate.NewWindows(perMinute, perHour)
		var passed []time.Time
		for end := time.Now().Add(5 * time.Hour); time.Now().Before(end); {
			wait := a.Take(time.Now())
			if wait == 0 {
				passed = append(passed, time.Now())
				time.Sleep(time.Duration(rand.Int64N(int64(3 * time.Second))))
				continue
			}
			if wait < 0 || wait > 61*time.Minute {
				t.Fatalf("wait %v", wait)
			}
			time.Sleep(wait)
			if again := a.Peek(time.Now()); again > 0 {
				t.Fatalf("after %v it must wait %v more", wait, again)
			}
		}
		for i, at := range passed {
			if i >= perMinute && at.Sub(passed[i-perMinute]) < time.Minute {
				t.Fatalf("%d passed within %v", perMinute+1, at.Sub(passed[i-perMinute]))
			}
			if i >= perHour && at.Sub(passed[i-perHour]) < time.Hour {
				t.Fatalf("%d passed within %v", perHour+1, at.Sub(passed[i-perHour]))
			}
		}
		if n := len(passed); n < 4*perHour {
			t.Errorf("%d passed in five hours, want nearly %d", n, 5*perHour)
		}
		time.Sleep(2 * time.Hour)
		if a.Count(time.Now()) != 0 {
			t.Error("something is left of long ago")
		}
		first := time.Now()
		a.Take(first)
		time.Sleep(10 * time.Second)
		a.Take(time.Now())
		a.Return(first)
		a.Return(first.Add(-2 * time.Hour))
		if n := a.Count(time.Now()); n != 1 {
			t.Errorf("%d are left of two after one was returned, want 1", n)
		}
		none := rate.NewWindows(0, -1)
		for range 10_000 {
			if wait := none.Take(time.Now()); wait != 0 {
				t.Fatalf("without a limit: wait %v", wait)
			}
		}
	})
}
