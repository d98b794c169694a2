//go:build clockstep

package relay

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestClockStep: while the clock is wrong, the relay ends no vote, deletes no message, and does not lock agents
// out.
func TestClockStep(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		r, err := New(t.Context(), Config{
			Records: openStore(t).Records(), Extensions: Extensions{History: true, Voting: true, Keep: 24 * time.Hour, VoteDuration: 24 * time.Hour},
		})
		if err != nil {
			t.Fatal(err)
		}
		p := &proposal{ID: "p1", By: "first-agent", At: time.Now(), Quorum: 2}
		if err := r.store(t.Context(), nil, p.change()); err != nil {
			t.Fatal(err)
		}
		spent := rate.NewWindows(10, 100)
		e := &entry{ts: time.Now().UnixMilli(), seq: 1, raw: []byte("{}")}
		if err := r.history.append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		for i := range maxTrimmed { // so many that a further message would delete some
			r.history.insert(&entry{ts: e.ts, seq: uint64(2 + i), raw: e.raw})
		}
		time.Sleep(24*time.Hour - 30*time.Minute)

		storetest.StepClock(t, by)
		for range 2 {
			time.Sleep(10 * time.Minute)
			r.maintain(t.Context())
		}
		if err := r.history.append(t.Context(), &entry{ts: time.Now().UnixMilli(), seq: maxTrimmed + 2, raw: e.raw}); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			spent.Take(time.Now())
		}
		storetest.StepClock(t, 0)
		r.maintain(t.Context())
		if got := stored(t, r, p.ID); got.By == "" || got.Status != "" {
			t.Errorf("the vote is %+v, want it open", got)
		}
		if n := len(r.history.list); n != maxTrimmed+2 {
			t.Errorf("%d messages are kept, want %d", n, maxTrimmed+2)
		}
		if wait := spent.Peek(time.Now()); wait > 62*time.Second {
			t.Errorf("an agent that sent too much waits %s, want a minute", wait)
		}
		time.Sleep(62 * time.Second)
		if wait := spent.Take(time.Now()); wait > 0 {
			t.Errorf("a minute later it waits %s", wait)
		}
		time.Sleep(10 * time.Minute)
		r.maintain(t.Context())
		if got := stored(t, r, p.ID); got.By != "" && got.Status == "" {
			t.Error("the vote is open after its end")
		}
	})
}
