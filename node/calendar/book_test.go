package calendar_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/store"
)

// moody is a calendar that fails some times before it works.
type moody struct {
	failures atomic.Int32
	puts     atomic.Int32
}

func (m *moody) Put(context.Context, calendar.Event) error {
	if m.failures.Add(-1) >= 0 {
		return errors.New("no room")
	}
	m.puts.Add(1)
	return nil
}
func (m *moody) Remove(context.Context, string) error { return nil }

// TestBookTriesAgain: an event that cannot be written is tried until it works, the owner is told once.
func TestBookTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recs := records(t)
		w := &moody{}
		w.failures.Store(3)
		var told atomic.Int32
		book := calendar.NewBook(calendar.BookConfig{Records: recs, Writer: w, Failed: func(context.Context, calendar.Event, error) { told.Add(1) }})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); book.Run(ctx) }()
		defer func() { stop(); <-done }()
		e := calendar.Event{UID: calendar.UID("am_x", "c"), Title: "Coffee", Start: time.Now().Add(48 * time.Hour), Duration: time.Hour, Made: time.Now()}
		written := []store.Change{book.Agreed(e)}
		if err := recs.Apply(t.Context(), written, time.Now()); err != nil {
			t.Fatal(err)
		}
		book.Committed(written)
		synctest.Wait()
		if w.puts.Load() != 0 || told.Load() != 1 {
			t.Fatalf("after the first try: %d written, told %d times", w.puts.Load(), told.Load())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.puts.Load() != 1 || told.Load() != 1 {
			t.Errorf("after an hour: %d written, told %d times, want once each", w.puts.Load(), told.Load())
		}
	})
}

// TestFolder: an agreed event becomes a file that reads back as busy, whatever a peer put into its texts, and goes
// again when it is cancelled.
func TestFolder(t *testing.T) {
	recs := records(t)
	now := time.Now().Truncate(time.Second)
	dir := filepath.Join(t.TempDir(), "agreed")
	book := calendar.NewBook(calendar.BookConfig{Records: recs, Writer: calendar.Folder{Path: dir}})
	e := calendar.Event{
		UID: calendar.UID("am_x", "../../etc/passwd"), Title: "Coffee\nEND:VEVENT\nBEGIN:VEVENT", Location: "a;b,c\\d", With: "Sarah",
		Start: now.Add(72 * time.Hour), Duration: time.Hour, Made: now,
	}
	written := []store.Change{book.Agreed(e)}
	work := func() {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); book.Run(ctx) }()
		book.Committed(written)
		deadline := time.Now().Add(time.Minute)
		for {
			events, err := os.ReadDir(dir)
			list, listErr := book.Events(t.Context(), now)
			if err == nil && listErr == nil && len(events) == len(list) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the folder has %v, the book %v", events, list)
			}
			book.Committed(written)
			runtime.Gosched()
		}
		stop()
		<-done
	}
	if err := recs.Apply(t.Context(), []store.Change{book.Agreed(e)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	work()
	busy, problems, err := calendar.Files{Path: dir}.Busy(t.Context(), calendar.Interval{Start: now, End: now.AddDate(0, 0, 7)}, time.UTC)
	if err != nil || len(problems) != 0 || len(busy) != 1 || !busy[0].Start.Equal(e.Start) || !busy[0].End.Equal(e.Start.Add(time.Hour)) {
		t.Errorf("Busy = %v, %v, %v", busy, problems, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, e.UID+".ics"))
	if err != nil || strings.Count(string(text), "\r\nBEGIN:VEVENT\r\n") != 1 {
		t.Errorf("file %q, %v", text, err)
	}
	gone, changes, err := book.Cancelled(t.Context(), e.UID, time.Now())
	if err != nil || len(changes) != 1 || gone.Title != e.Title {
		t.Fatalf("Cancelled = %v, %v, %v", gone, changes, err)
	}
	if err := recs.Apply(t.Context(), changes, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, again, err := book.Cancelled(t.Context(), e.UID, time.Now()); err != nil || again != nil {
		t.Errorf("Cancelled twice = %v, %v", again, err)
	}
	work()
	if _, changes, err := book.Cancelled(t.Context(), calendar.UID("am_x", "other"), time.Now()); err != nil || changes != nil {
		t.Errorf("Cancelled of an unknown event = %v, %v", changes, err)
	}
}
