package calendar_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/store"
)

// flakyWriter is a calendar that fails some times before it works.
type flakyWriter struct {
	failures atomic.Int32
	puts     atomic.Int32
	removes  atomic.Bool // the event is cancelled, and its removal fails
}

func (m *flakyWriter) Put(context.Context, calendar.Event) error {
	if m.failures.Add(-1) >= 0 {
		return errors.New("no room")
	}
	m.puts.Add(1)
	return nil
}

func (m *flakyWriter) Remove(context.Context, string) error { return errors.New("no answer") }

// TestBookTriesAgain: the book tries to write an event until it succeeds, and reports the failure once. The
// failure to remove the cancelled event is reported as such.
func TestBookTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := database(t)
		recs := db.Records()
		w := &flakyWriter{}
		w.failures.Store(3)
		var failed atomic.Int32
		book := calendar.NewBook(calendar.BookConfig{Records: recs, Writer: w, Failed: func(_ context.Context, _ calendar.Event, isCancelled bool, _ error) {
			if failed.Add(1); isCancelled != w.removes.Load() {
				t.Errorf("a failed removal: %v, want %v", isCancelled, w.removes.Load())
			}
		}})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); runBook(ctx, db, book) }()
		defer func() { stop(); <-done }()
		e := calendar.Event{UID: calendar.UID("am_x", "c"), Title: "Coffee", Start: time.Now().Add(48 * time.Hour), Duration: time.Hour, Made: time.Now()}
		written := []store.Change{book.Add(e)}
		if err := recs.Apply(t.Context(), written, time.Now()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if w.puts.Load() != 0 || failed.Load() != 1 {
			t.Fatalf("after the first try: %d written, %d failures reported", w.puts.Load(), failed.Load())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.puts.Load() != 1 || failed.Load() != 1 {
			t.Errorf("after an hour: %d written, %d failures reported, want one each", w.puts.Load(), failed.Load())
		}
		w.removes.Store(true)
		_, cancelled, err := book.Cancel(t.Context(), e.UID, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := recs.Apply(t.Context(), cancelled, time.Now()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if failed.Load() != 2 {
			t.Errorf("after a removal that failed: %d failures reported, want 2", failed.Load())
		}
	})
}

// TestBookWithoutWriter: if no calendar is configured for writing, the log does not say that an event was written.
func TestBookWithoutWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		db := database(t)
		recs := db.Records()
		book := calendar.NewBook(calendar.BookConfig{Records: recs, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		e := calendar.Event{UID: calendar.UID("am_x", "c"), Title: "Coffee", Start: time.Now().Add(48 * time.Hour), Duration: time.Hour, Made: time.Now()}
		if err := recs.Apply(t.Context(), []store.Change{book.Add(e)}, time.Now()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		runBook(ctx, db, book)
		if log.Len() > 0 {
			t.Errorf("the log says: %s", &log)
		}
	})
}

// TestEmptyLists: without events and problems, the owner API writes an empty list, not null.
func TestEmptyLists(t *testing.T) {
	book := calendar.NewBook(calendar.BookConfig{Records: records(t)})
	events, err := book.Events(t.Context(), now)
	if err != nil || events == nil {
		t.Errorf("events = %#v, %v", events, err)
	}
	view, err := planner(t, calendar.Config{Sources: []calendar.Source{book}}).Look(t.Context(), now)
	if err != nil || view.Problems == nil {
		t.Errorf("problems = %#v, %v", view.Problems, err)
	}
}

// TestEventsInOrder: the events are listed by their times. Their UIDs, which are the keys of the records, are hashes.
func TestEventsInOrder(t *testing.T) {
	recs, now := records(t), time.Now()
	book := calendar.NewBook(calendar.BookConfig{Records: recs})
	for i := range 8 {
		e := calendar.Event{UID: calendar.UID("am_x", string(rune('a'+i))), Start: now.AddDate(0, 0, i), Duration: time.Hour, Made: now}
		if err := recs.Apply(t.Context(), []store.Change{book.Add(e)}, now); err != nil {
			t.Fatal(err)
		}
	}
	events, err := book.Events(t.Context(), now)
	if err != nil || len(events) != 8 {
		t.Fatalf("%d events, %v, want 8", len(events), err)
	}
	if !slices.IsSortedFunc(events, func(a, b calendar.Event) int { return a.Start.Compare(b.Start) }) {
		t.Errorf("events = %v, want them in chronological order", events)
	}
}

// TestFolder: an agreed event becomes a file that reads back as busy time, whatever text a peer put into it. A
// cancelled event disappears.
func TestFolder(t *testing.T) {
	db := database(t)
	recs := db.Records()
	now := time.Now().Truncate(time.Second)
	dir := filepath.Join(t.TempDir(), "agreed")
	book := calendar.NewBook(calendar.BookConfig{Records: recs, Writer: calendar.Folder{Path: dir}})
	e := calendar.Event{
		UID: calendar.UID("am_x", "../../etc/passwd"), Title: "Coffee\nEND:VEVENT\nBEGIN:VEVENT", Location: "a;b,c\\d", With: "Sarah",
		Start: now.Add(72 * time.Hour), Duration: time.Hour, Made: now,
	}
	work := func() {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); runBook(ctx, db, book) }()
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
			runtime.Gosched()
		}
		stop()
		<-done
	}
	if err := recs.Apply(t.Context(), []store.Change{book.Add(e)}, time.Now()); err != nil {
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
	gone, changes, err := book.Cancel(t.Context(), e.UID, time.Now())
	if err != nil || len(changes) != 1 || gone.Title != e.Title {
		t.Fatalf("Cancel = %v, %v, %v", gone, changes, err)
	}
	if err := recs.Apply(t.Context(), changes, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, again, err := book.Cancel(t.Context(), e.UID, time.Now()); err != nil || again != nil {
		t.Errorf("second Cancel = %v, %v", again, err)
	}
	work()
	if _, changes, err := book.Cancel(t.Context(), calendar.UID("am_x", "other"), time.Now()); err != nil || changes != nil {
		t.Errorf("Cancel of an unknown event = %v, %v", changes, err)
	}
}
