package notify_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/work"
)

// recorder is a target that records its batches and fails as the test wants.
type recorder struct {
	mu   sync.Mutex
	got  []notify.Batch
	at   []time.Time
	fail func(n int) error // gets the number of the call, from 1
}

func (r *recorder) Name() string { return "recorder" }

func (r *recorder) Send(ctx context.Context, b notify.Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got, r.at = append(r.got, b), append(r.at, time.Now())
	if r.fail != nil {
		return r.fail(len(r.got))
	}
	return nil
}

func (r *recorder) batches() []notify.Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}

// runningBox is a box whose Run is active, in a synctest bubble.
type runningBox struct {
	*notify.Box
	recs store.Records
	stop func()
}

func startBox(t *testing.T, s store.Store, cfg notify.Config) runningBox {
	t.Helper()
	s = store.Observe(s)
	cfg.Records = s.Records()
	b := runningBox{Box: notify.New(cfg), recs: s.Records()}
	w := work.New(s, nil, slog.New(slog.DiscardHandler))
	w.Add(b.Queue())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	b.stop = func() { cancel(); running.Wait() }
	return b
}

func (b runningBox) publish(t *testing.T, kind string) {
	t.Helper()
	change := b.Change(notify.Notice{Kind: kind, Title: kind + " happened", At: time.Now()})
	if err := b.recs.Apply(t.Context(), []store.Change{change}, time.Now()); err != nil {
		t.Fatal(err)
	}
	b.OnCommit([]store.Change{change})
}

// bubble runs f in a synctest bubble with an empty database.
func bubble(t *testing.T, f func(t *testing.T, db store.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "notices.db"), bolt.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		f(t, store.Observe(s))
	})
}

// TestToldInBatches: notices within ten seconds make one batch, and no notice is sent twice.
func TestToldInBatches(t *testing.T) {
	bubble(t, func(t *testing.T, db store.Store) {
		r := &recorder{}
		b := startBox(t, db, notify.Config{Target: r})
		defer b.stop()
		for range 3 {
			b.publish(t, "closed")
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		b.publish(t, "approval")
		time.Sleep(time.Hour)
		got := r.batches()
		if len(got) != 2 || len(got[0].Notices) != 3 || len(got[1].Notices) != 1 {
			t.Fatalf("batches = %+v, want 3 and 1", got)
		}
		if title := got[0].Title(); title != "AgentMesh: 3 notices" {
			t.Errorf("title = %q", title)
		}
		if s, err := b.Status(t.Context(), time.Now()); err != nil || s.Waiting != 0 || s.Last.IsZero() || s.Error != "" {
			t.Errorf("status = %+v, %v", s, err)
		}
	})
}

// TestFailureIsRetried: the box calls a failing target again after growing pauses and reports the failure in its
// status. A restart loses neither the notice nor the pause.
func TestFailureIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T, db store.Store) {
		r := &recorder{fail: func(n int) error {
			if n < 4 {
				return errors.New("no route\x1b[2J to owner")
			}
			return nil
		}}
		changed := 0
		cfg := notify.Config{Target: r, Changed: func() { changed++ }}
		b := startBox(t, db, cfg)
		start := time.Now()
		b.publish(t, "approval")
		time.Sleep(11 * time.Second)
		s, err := b.Status(t.Context(), time.Now())
		if err != nil || s.Failures != 1 || s.Error != "no route[2J to owner" || s.Waiting != 1 || s.Next.IsZero() {
			t.Fatalf("status = %+v, %v", s, err)
		}
		b.stop()
		b = startBox(t, db, cfg)
		defer b.stop()
		synctest.Wait()
		if n := len(r.batches()); n != 1 {
			t.Errorf("%d attempts right after the restart, want only the earlier one", n)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		var waits []time.Duration
		for _, at := range r.at {
			waits = append(waits, at.Sub(start).Round(time.Second))
		}
		want := "[10s 40s 2m40s 12m40s]"
		if fmt.Sprint(waits) != want {
			t.Errorf("attempts after %v, want %v", waits, want)
		}
		if first, last := r.got[0].ID, r.got[3].ID; first != last {
			t.Errorf("the batch is %s and then %s", first, last)
		}
		if changed != 2 {
			t.Errorf("%d status changes, want 2", changed)
		}
	})
}

// TestBatchIDs: a further attempt has the id of the first one, unless the batch has grown, because a receiver drops
// repeats.
func TestBatchIDs(t *testing.T) {
	bubble(t, func(t *testing.T, db store.Store) {
		r := &recorder{fail: func(n int) error {
			if n <= 3 {
				return errors.New("down")
			}
			return nil
		}}
		b := startBox(t, db, notify.Config{Target: r})
		defer b.stop()
		for range 61 {
			b.publish(t, "approval")
		}
		time.Sleep(time.Minute) // two attempts
		b.publish(t, "approval")
		time.Sleep(20 * time.Minute)
		b.publish(t, "approval")
		time.Sleep(20 * time.Minute)
		got := r.batches()
		if len(got) != 5 {
			t.Fatalf("%d attempts, want 5", len(got))
		}
		if got[0].ID != got[1].ID || got[1].ID == got[2].ID || got[2].ID != got[3].ID || got[3].ID == got[4].ID {
			t.Errorf("ids: %s, %s, %s, %s, %s", got[0].ID, got[1].ID, got[2].ID, got[3].ID, got[4].ID)
		}
	})
}

// TestSteadyFlood: further notices of a kind that is only counted do not postpone the batch.
func TestSteadyFlood(t *testing.T) {
	bubble(t, func(t *testing.T, db store.Store) {
		r := &recorder{}
		b := startBox(t, db, notify.Config{Target: r, Urgent: []string{"approval"}})
		defer b.stop()
		for range 60 {
			b.publish(t, "closed")
		}
		time.Sleep(time.Minute)
		b.publish(t, "closed")
		b.publish(t, "approval")
		for range 12 {
			time.Sleep(5 * time.Second)
			b.publish(t, "closed")
		}
		got := r.batches()
		if len(got) < 2 || len(got) > 8 {
			t.Fatalf("%d batches, want at most one in ten seconds", len(got))
		}
		if !slices.ContainsFunc(got, func(b notify.Batch) bool { return b.Urgent }) {
			t.Error("the urgent notice still waits after a minute")
		}
	})
}

// TestHangingTarget: a target that accepts the call but does not answer blocks the box for a minute only.
func TestHangingTarget(t *testing.T) {
	bubble(t, func(t *testing.T, db store.Store) {
		b := startBox(t, db, notify.Config{Target: hanging{}})
		defer b.stop()
		b.publish(t, "approval")
		time.Sleep(2 * time.Minute)
		if s, err := b.Status(t.Context(), time.Now()); err != nil || s.Failures != 1 {
			t.Errorf("status = %+v, %v", s, err)
		}
	})
}

type hanging struct{}

func (hanging) Name() string { return "hanging" }
func (hanging) Send(ctx context.Context, _ notify.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestKindsAndQuiet: the target gets only the configured kinds; in quiet hours it gets urgent ones, and the rest
// afterwards.
func TestKindsAndQuiet(t *testing.T) {
	quiet, err := notify.ParseQuiet("22:00-07:00", time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, func(t *testing.T, db store.Store) { // begins at midnight UTC
		r := &recorder{}
		b := startBox(t, db, notify.Config{
			Target: r, Quiet: quiet, Kinds: []string{"approval", "handoff"}, Urgent: []string{"handoff"},
		})
		defer b.stop()
		start := time.Now()
		b.publish(t, "closed")
		b.publish(t, "approval")
		time.Sleep(time.Hour)
		b.publish(t, "handoff")
		time.Sleep(12 * time.Hour)
		synctest.Wait()
		got := r.batches()
		if len(got) != 2 {
			t.Fatalf("batches = %+v, want 2", got)
		}
		if n := got[0].Notices[0]; n.Kind != "handoff" || !got[0].Urgent || r.at[0].Sub(start) > 2*time.Hour {
			t.Errorf("first = %+v at %v", got[0], r.at[0])
		}
		if n := got[1].Notices[0]; len(got[1].Notices) != 1 || n.Kind != "approval" || got[1].Urgent || r.at[1].Hour() != 7 {
			t.Errorf("second = %+v at %v", got[1], r.at[1])
		}
	})
}

// TestUrgentIsListed: an urgent notice that waits behind more notices than a batch lists is listed, not only counted, and
// the batch is urgent.
func TestUrgentIsListed(t *testing.T) {
	bubble(t, func(t *testing.T, db store.Store) {
		r := &recorder{}
		b := startBox(t, db, notify.Config{Target: r, Urgent: []string{"handoff"}})
		defer b.stop()
		for range 55 {
			b.publish(t, "message")
		}
		time.Sleep(time.Second) // lists have the oldest first
		b.publish(t, "handoff")
		time.Sleep(time.Hour)
		got := r.batches()
		if len(got) != 1 || !got[0].Urgent || got[0].Notices[0].Kind != "handoff" || len(got[0].Notices)+got[0].More != 56 {
			t.Errorf("batches = %+v", got)
		}
	})
}

// TestQuietOverClockChanges: the shown time decides, also in nights that are an hour shorter or longer, and if the
// quiet hours end in an hour that does not exist.
func TestQuietOverClockChanges(t *testing.T) {
	for _, c := range []struct {
		hours, zone string
		at, end     string // UTC
	}{
		{"22:00-07:00", "Europe/Berlin", "2026-03-28T21:00:00Z", "2026-03-29T05:00:00Z"}, // 02:00 becomes 03:00
		{"22:00-07:00", "Europe/Berlin", "2026-10-24T20:00:00Z", "2026-10-25T06:00:00Z"}, // 03:00 becomes 02:00
		{"22:00-02:30", "Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T01:00:00Z"}, // 02:30 does not exist
		{"01:00-02:30", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"}, // 02:30 comes twice
		{"22:00-07:00", "America/New_York", "2026-11-01T03:00:00Z", "2026-11-01T12:00:00Z"},
		{"09:00-17:00", "Asia/Kolkata", "2026-05-01T04:00:00Z", "2026-05-01T11:30:00Z"},
		{"00:00-23:59", "UTC", "2026-05-01T04:00:00Z", "2026-05-01T23:59:00Z"},
		{"22:00-07:00", "UTC", "2026-05-01T12:00:00Z", "2026-05-01T12:00:00Z"}, // not in quiet hours
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		q, err := notify.ParseQuiet(c.hours, zone)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.End(at).UTC().Format(time.RFC3339); got != c.end {
			t.Errorf("%s %s from %s: ends %s, want %s", c.hours, c.zone, c.at, got, c.end)
		}
	}
	for _, bad := range []string{"22:00", "22:00-22:00", "25:00-07:00", "22-07"} {
		if _, err := notify.ParseQuiet(bad, time.UTC); err == nil {
			t.Errorf("ParseQuiet(%q): no error", bad)
		}
	}
}

// TestFloodOfNotices: a hundred thousand notices of one kind make few records and few batches. Other kinds get
// through, and one record has the number.
func TestFloodOfNotices(t *testing.T) {
	bubble(t, func(t *testing.T, db store.Store) {
		r := &recorder{}
		b := startBox(t, db, notify.Config{Target: r})
		defer b.stop()
		const many = 100_000
		var changes []store.Change
		ids := make(map[string]bool)
		for range many {
			change := b.Change(notify.Notice{Kind: "approval", Title: "a message waits", At: time.Now()})
			if !ids[change.Record.Key] || change.IfRev == store.Absent {
				changes = append(changes, change)
			} else {
				changes[len(changes)-1] = change // the same record with a higher count
			}
			ids[change.Record.Key] = true
		}
		if len(changes) != 61 {
			t.Fatalf("%d records, want 60 and one with the count", len(changes))
		}
		if err := db.Records().Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
		b.OnCommit(changes)
		b.publish(t, "key-change")
		time.Sleep(time.Hour)
		got := r.batches()
		if len(got) != 1 || len(got[0].Notices) != 50 || got[0].More != 12 {
			t.Fatalf("%d batches, the first with %d notices and %d more", len(got), len(got[0].Notices), got[0].More)
		}
		list, _, err := b.List(t.Context(), "", 100, time.Now())
		if err != nil || len(list) != 62 {
			t.Fatalf("List = %d, %v", len(list), err)
		}
		var counted int
		for _, n := range list {
			counted += n.Count
		}
		if counted != many-60 {
			t.Errorf("%d are counted, want %d", counted, many-60)
		}
	})
}

// TestCommand: a program gets one line of JSON or of text for each notice, and the log has one line for each.
func TestCommand(t *testing.T) {
	for _, format := range []notify.Format{notify.JSON, notify.Text} {
		file := filepath.Join(t.TempDir(), "got")
		var log bytes.Buffer
		db := database(t)
		b := startBox(t, db, notify.Config{
			Target: notify.Command{Argv: []string{os.Args[0]}, Env: []string{"NOTICES_TO=" + file}, Format: format},
			Batch:  time.Nanosecond, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		b.publish(t, "closed")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for s := (notify.Status{Waiting: 1}); s.Waiting > 0; {
			var err error
			if s, err = b.Status(ctx, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		b.stop()
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var n notify.Notice
		switch {
		case format == notify.Text && string(data) != "closed happened\n":
			t.Errorf("text = %q", data)
		case format == notify.JSON && (json.Unmarshal(data, &n) != nil || n.Kind != "closed"):
			t.Errorf("JSON = %q", data)
		}
		if n := strings.Count(log.String(), "msg=notice "); n != 1 {
			t.Errorf("%d log lines, want 1: %s", n, &log)
		}
	}
}

// TestNoticeIsLoggedOnce: the box also observes its own writes, and does not take the removal of a todo mark for a new
// notice.
func TestNoticeIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "notices.db"), bolt.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		s, r := store.Observe(db), &recorder{}
		var log bytes.Buffer
		b := startBox(t, s, notify.Config{Target: r, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		s.OnCommit(b.OnCommit)
		change := b.Change(notify.Notice{Kind: "closed", Title: "closed", At: time.Now()})
		if err := s.Records().Apply(t.Context(), []store.Change{change}, time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		b.stop()
		if n := strings.Count(log.String(), "msg=notice"); n != 1 || len(r.batches()) != 1 {
			t.Errorf("%d lines and %d batches, want one of each:\n%s", n, len(r.batches()), log.String())
		}
	})
}
