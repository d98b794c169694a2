package outbox

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/store"
)

var conv = store.ConvKey{Peer: "am_ann", ID: "conv_1"}

func inFlight(n int64) Entry { return Entry{ID: formatID(n), Conv: conv, InFlight: true} }

// TestLoadBehindANewEntry: entries of an earlier process count as possibly sent, even if a new entry was queued before
// they were loaded.
func TestLoadBehindANewEntry(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	s.setState(loading)
	s.Add(inFlight(4))
	s.add([]Entry{inFlight(1), inFlight(2), inFlight(3)}, leftBehind)
	for i, w := range s.queues[newConvKey(conv)].entries {
		if w.first != (i > 0) {
			t.Errorf("entry %d is before its first attempt: %v", w.number, w.first)
		}
	}
}

// TestEntryOfAnotherProcess: an entry of a process that does not have the queue counts as possibly sent if it is in
// flight, and a process without the queue takes no entries.
func TestEntryOfAnotherProcess(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	s.Add(inFlight(1))
	if len(s.queues) > 0 || s.IsDeliverer() {
		t.Error("a scheduler that was not started takes entries")
	}
	s.setState(serving)
	s.AddRemote(inFlight(2), inFlight(3))
	for _, w := range s.queues[newConvKey(conv)].entries {
		if w.first {
			t.Errorf("entry %d is before its first attempt", w.number)
		}
	}
}

// TestStopWhileLoading: the end of the process is not an error of loading the entries, before the first load or later.
func TestStopWhileLoading(t *testing.T) {
	t.Parallel()
	for _, loads := range []int{1, 2} {
		ctx, stop := context.WithCancel(t.Context())
		var log bytes.Buffer
		var s *Scheduler
		s = New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Load: func(ctx context.Context, _ string, _ int) ([]Entry, string, error) {
			if loads--; loads == 0 {
				stop()
				return nil, "", ctx.Err()
			}
			s.Reload()
			return nil, "", nil
		}})
		s.Run(ctx)
		if loads != 0 || log.Len() > 0 {
			t.Errorf("%d loads are left, and the log has: %s", loads, log.String())
		}
	}
}

// TestQueuesOfOneMoment: queues that are due at the same time take turns in the order of their last attempts.
func TestQueuesOfOneMoment(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := queueHeap{}
	for _, turn := range []uint64{3, 1, 2} {
		h = append(h, &queue{last: turn, entries: []queuedEntry{{due: now}}})
	}
	if h.Less(0, 1) || !h.Less(1, 2) || !h.Less(2, 0) {
		t.Error("the order of the last attempts does not decide")
	}
	h[0].entries[0].due = now.Add(-time.Nanosecond)
	if !h.Less(0, 1) {
		t.Error("the queue that is due earlier does not go first")
	}
}

// TestQueueKeepsALateEntry: the second of two units may be reported first, and its attempt may be active when the first
// entry reaches the queue. The end of that attempt removes its own entry, and not the first one.
func TestQueueKeepsALateEntry(t *testing.T) {
	t.Parallel()
	for _, due := range []time.Time{{}, time.Now().Add(time.Hour)} {
		s := New(Config{})
		s.setState(serving)
		s.Add(inFlight(2))
		q := s.queues[newConvKey(conv)]
		s.ready.Pop()
		s.peers[q.key.peer], s.active = &peerLoad{active: 1}, 1
		s.Add(inFlight(1))
		s.finish(q, 2, due, "")
		if len(q.entries) == 0 || q.entries[0].number != 1 || q.entries[0].due.After(time.Now()) || len(s.ready) != 1 {
			t.Errorf("due %v: queue = %+v, want the first entry ready", due, q.entries)
		}
	}
}

// TestReloadFails: if the stored entries cannot be loaded again, the scheduler tries later.
func TestReloadFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		loads, attempts := 0, 0
		s := New(Config{
			Load: func(context.Context, string, int) ([]Entry, string, error) {
				switch loads++; loads {
				case 1:
					return nil, "", nil
				case 2:
					return nil, "", store.ErrUnavailable
				}
				return []Entry{{ID: formatID(1), Conv: conv}}, "", nil
			},
			Attempt: func(context.Context, string, bool) (time.Time, string) {
				attempts++
				return time.Time{}, ""
			},
			Logger: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go s.Run(ctx)
		synctest.Wait()
		s.Reload()
		time.Sleep(loadPause + time.Second)
		synctest.Wait()
		if loads != 3 || attempts != 1 {
			t.Errorf("%d loads and %d attempts, want 3 and 1", loads, attempts)
		}
	})
}

// TestRelease: an entry whose attempt failed because something was missing is due at once when that is there, even if
// it came during the attempt, but not within a second of that attempt. Entries that await something else, or only time,
// wait on, whatever comes during their attempts.
func TestRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const wait = time.Hour
		var mu sync.Mutex
		attempts := map[string][]time.Duration{} // by what the entry awaits: since the start
		awaits := map[string]string{formatID(1): "link", formatID(2): "other", formatID(3): ""}
		begun := time.Now()
		s := New(Config{
			Load: func(context.Context, string, int) (entries []Entry, next string, err error) {
				for id := range awaits {
					entries = append(entries, Entry{ID: id, Conv: store.ConvKey{ID: id}})
				}
				return entries, "", nil
			},
			Attempt: func(_ context.Context, id string, _ bool) (time.Time, string) {
				mu.Lock()
				attempts[awaits[id]] = append(attempts[awaits[id]], time.Since(begun))
				mu.Unlock()
				time.Sleep(time.Second)
				return time.Now().Add(wait), awaits[id]
			},
			Logger: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go s.Run(ctx)
		release := func() { s.Release(func(awaits string) bool { return awaits == "link" }) }
		time.Sleep(time.Second / 2)
		release() // during the first attempts
		time.Sleep(time.Minute - time.Second/2)
		release() // in the pause
		time.Sleep(time.Second * 5 / 4)
		release() // a quarter of a second after the end of an attempt
		time.Sleep(time.Minute)
		synctest.Wait()
		want := map[string][]time.Duration{
			"link": {0, 2 * time.Second, time.Minute, time.Minute + 2*time.Second}, "other": {0}, "": {0},
		}
		if diff := cmp.Diff(want, attempts); diff != "" {
			t.Error(diff)
		}
	})
}
