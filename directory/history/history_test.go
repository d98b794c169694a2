package history

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestHistory: the counts of each day outlive a restart, and only the last days are kept.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, InitialMmapSize: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		keep := func(h *History, d time.Duration) {
			ctx, stop := context.WithTimeout(t.Context(), d)
			defer stop()
			h.Keep(ctx, db.Records(), "directory", "history", slog.New(slog.DiscardHandler))
		}
		first := &History{}
		for range Days + 5 {
			first.Add(Searched, time.Now())
			keep(first, 3*time.Minute)
			time.Sleep(24*time.Hour - 3*time.Minute)
		}
		first.Add(Registered, time.Now())
		first.Add(Searched, time.Now().Add(-200*24*time.Hour)) // a clock that was wrong
		if n := len(first.added); n > Days {
			t.Errorf("%d days are kept", n)
		}
		keep(first, time.Minute)

		restarted := &History{}
		keep(restarted, time.Minute)
		restarted.Add(Registered, time.Now())
		list := restarted.List(time.Now())
		if len(list) != Days {
			t.Fatalf("%d days", len(list))
		}
		today := list[Days-1]
		if today.Date != time.Now().UTC().Format(time.DateOnly) || today.Counts != [kinds]int{Registered: 2} {
			t.Errorf("today is %+v", today)
		}
		for _, d := range list[1 : Days-1] {
			if d.Counts != [kinds]int{Searched: 1} {
				t.Errorf("%+v, want one search", d)
			}
		}
	})
}

// TestHistoryOfProcesses: two processes that keep one record add their counts up, also if they save at the same moment.
func TestHistoryOfProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, InitialMmapSize: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		start := func(name string) *History {
			h := &History{}
			running.Go(func() {
				h.Keep(ctx, db.Handle(name).Records(), "directory", "history", slog.New(slog.DiscardHandler))
			})
			return h
		}
		processes := []*History{start("a"), start("b"), start("c")}
		for range 5 {
			for i, h := range processes {
				for range i + 1 {
					h.Add(Searched, time.Now())
				}
			}
			time.Sleep(saveEvery)
		}
		time.Sleep(saveEvery + time.Second) // to read what the others saved last
		for i, h := range processes {
			if n := h.List(time.Now())[Days-1].Counts[Searched]; n != 30 {
				t.Errorf("process %d shows %d searches, want 30", i, n)
			}
		}
		stop()
		running.Wait()
	})
}
