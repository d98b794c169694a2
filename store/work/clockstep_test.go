//go:build clockstep

package work_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/storetest"
	"github.com/agentmesh/agentmesh/store/work"
)

// TestClockStep: after a step of an hour, whatever the kind of its queue, each record is worked on once, within a minute
// of its time, and none before: a time of the wall clock by the new clock, the end of a pause as if there was no step. What
// ends because of the time waits until the clock is believed.
func TestClockStep(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		file, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "work.db"), bolt.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		s, clock := store.Observe(file), store.NewWallClock(nil)
		w := work.New(s, clock, slog.New(slog.DiscardHandler))
		var mu sync.Mutex
		done := make(map[string][]time.Time) // by namespace
		queues := map[string]work.Queue{
			"plain": {Max: 1}, "bounded": {Max: 4, PerParty: 1, MaxPause: time.Hour}, "ends": {Max: 4, Ends: true},
		}
		for ns, q := range queues {
			q.NS = ns
			q.Do = func(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
				mu.Lock()
				done[ns] = append(done[ns], time.Now().Round(0))
				mu.Unlock()
				return work.Later{}, s.Records().Apply(ctx, []store.Change{{Record: rec, IfRev: rec.Rev, Delete: true}}, time.Now())
			}
			w.Add(q)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		defer running.Wait()
		defer stop()
		began := time.Now().Round(0)
		var changes []store.Change
		for ns := range queues {
			for key, after := range map[string]time.Duration{"soon": 10 * time.Minute, "late": 50 * time.Minute} {
				changes = append(changes, store.Change{Record: store.Record{NS: ns, Key: key, Due: began.Add(after)}})
			}
		}
		if err := s.Records().Apply(t.Context(), changes, began); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		clock.Reliable()
		storetest.StepClock(t, by)
		time.Sleep(8 * time.Hour) // longer than a clock is in doubt
		synctest.Wait()
		for ns, q := range queues {
			if len(done[ns]) != 2 {
				t.Errorf("%s: worked on %d times, want once for each of two records", ns, len(done[ns]))
				continue
			}
			for i, after := range []time.Duration{10 * time.Minute, 50 * time.Minute} {
				due := began.Add(after)
				if q.MaxPause > 0 {
					due = due.Add(by)
				} else if stepped := began.Add(5*time.Minute + by); due.Before(stepped) {
					due = stepped
				}
				if late := done[ns][i].Sub(due); late < 0 || late > time.Minute && !q.Ends {
					t.Errorf("%s: record %d was worked on %v after its time", ns, i, late)
				}
				if waited := done[ns][i].Sub(began.Add(5*time.Minute + by)); q.Ends && waited < 3*time.Hour {
					t.Errorf("%s: record %d was ended %v after the step", ns, i, waited)
				}
			}
		}
	})
}
