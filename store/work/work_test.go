package work_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/work"
)

const ns = "test"

// bench is a worker with one queue, whose calls are recorded.
type bench struct {
	t     *testing.T
	s     store.Store
	w     *work.Worker
	start time.Time
	log   bytes.Buffer

	mu    sync.Mutex
	calls []string // "key" or "key fresh", with the seconds since the start
	most  map[string]int
	runs  map[string]int // that run now, by party
	do    func(ctx context.Context, rec store.Record) (work.Later, error)
}

func newBench(t *testing.T, q work.Queue, do func(ctx context.Context, rec store.Record) (work.Later, error)) *bench {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "work.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	b := &bench{t: t, s: store.Observe(s), start: time.Now(), most: make(map[string]int), runs: make(map[string]int), do: do}
	b.open(q)
	return b
}

// open makes a new worker, as after a restart.
func (b *bench) open(q work.Queue) {
	b.w = work.New(b.s, nil, slog.New(slog.NewTextHandler(&b.log, nil)))
	q.NS, q.Do = ns, b.call
	b.w.Add(q)
}

func (b *bench) call(ctx context.Context, rec store.Record, fresh bool) (work.Later, error) {
	b.mu.Lock()
	line := fmt.Sprintf("%s@%.0f", rec.Key, time.Since(b.start).Seconds())
	if fresh {
		line += " fresh"
	}
	b.calls = append(b.calls, line)
	for _, party := range []string{rec.Party, "all"} {
		b.runs[party]++
		b.most[party] = max(b.most[party], b.runs[party])
	}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.runs[rec.Party]--
		b.runs["all"]--
		b.mu.Unlock()
	}()
	return b.do(ctx, rec)
}

func (b *bench) run() (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.w.Run(ctx) }()
	return func() { cancel(); <-done }
}

// put stores a record that is due after a time; a negative time is DueNow.
func (b *bench) put(key string, after time.Duration, party, lane string) {
	b.t.Helper()
	rec := store.Record{NS: ns, Key: key, Party: party, Lane: lane, Due: time.Now().Add(after)}
	if after < 0 {
		rec.Due = store.DueNow
	}
	b.apply(store.Change{Record: rec})
}

func (b *bench) apply(c store.Change) {
	b.t.Helper()
	if err := b.s.Records().Apply(b.t.Context(), []store.Change{c}, time.Now()); err != nil {
		b.t.Fatal(err)
	}
}

// remove settles a record.
func (b *bench) remove(rec store.Record) error {
	return b.s.Records().Apply(context.Background(), []store.Change{{Record: rec, IfRev: rec.Rev, Delete: true}}, time.Now())
}

func (b *bench) want(what string, calls ...string) {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.calls, calls) {
		b.t.Errorf("%s: calls = %q, want %q", what, b.calls, calls)
	}
}

// TestDueInOrder: records are worked on when they are due, a lane in the order of its keys, and a record that waits before
// the worker runs is not fresh.
func TestDueInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		b = newBench(t, work.Queue{Max: 1}, func(_ context.Context, rec store.Record) (work.Later, error) {
			time.Sleep(time.Second)
			return work.Later{}, b.remove(rec)
		})
		b.put("a", -1, "", "lane")
		defer b.run()()
		synctest.Wait()
		b.put("b", -1, "", "lane")
		b.put("c", 10*time.Second, "", "")
		b.put("d", 5*time.Second, "", "")
		time.Sleep(time.Hour)
		b.want("", "a@0", "b@1 fresh", "d@5 fresh", "c@10 fresh")
	})
}

// TestPlaces: no more calls run than Max and PerParty allow, and a party that hangs does not hold up another one.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		b = newBench(t, work.Queue{Max: 8, PerParty: 2}, func(_ context.Context, rec store.Record) (work.Later, error) {
			if rec.Party == "hangs" {
				time.Sleep(time.Minute)
			}
			return work.Later{}, b.remove(rec)
		})
		for i := range 100 {
			b.put(fmt.Sprintf("h%03d", i), -1, "hangs", "")
		}
		defer b.run()()
		synctest.Wait()
		for i := range 20 {
			b.put(fmt.Sprintf("q%03d", i), -1, "quick", "")
		}
		synctest.Wait()
		b.mu.Lock()
		quick := 0
		for _, line := range b.calls {
			if strings.HasPrefix(line, "q") {
				quick++
			}
		}
		b.mu.Unlock()
		if quick != 20 {
			t.Errorf("%d of 20 records of the quick party were worked on beside a party that hangs", quick)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if b.most["hangs"] != 2 || b.most["all"] > 8 || len(b.calls) != 120 {
			t.Errorf("most calls: %v; %d calls, want 120", b.most, len(b.calls))
		}
	})
}

// TestGate: a record waits in memory until its gate opens, with the other records of its party; a gate that opens during
// a call counts; a restart and a change of the record try at once.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		var opened atomic.Bool
		var slow atomic.Int64
		q := work.Queue{Max: 1}
		b = newBench(t, q, func(_ context.Context, rec store.Record) (work.Later, error) {
			isClosed := !opened.Load()
			time.Sleep(time.Duration(slow.Load()))
			if isClosed && rec.Party == "lab" {
				return work.Later{Gate: "link:lab", Pause: time.Hour}, nil
			}
			return work.Later{}, b.remove(rec)
		})
		b.put("a", -1, "lab", "")
		stop := b.run()
		synctest.Wait()
		b.put("c", -1, "other", "")
		time.Sleep(10 * time.Minute)
		b.want("closed", "a@0", "c@0 fresh")
		stop()
		b.calls = nil
		b.open(q)
		defer b.run()()
		b.want("after a restart", "a@600")
		rec, err := b.s.Records().Get(t.Context(), ns, "a", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.apply(store.Change{Record: rec, IfRev: rec.Rev})
		b.want("after a change", "a@600", "a@660")
		time.Sleep(time.Minute)
		slow.Store(int64(10 * time.Second))
		b.apply(store.Change{Record: rec, IfRev: store.Any})
		time.Sleep(5 * time.Second)
		b.w.Open(ns, func(gate string) bool { return gate == "link:other" })
		time.Sleep(time.Minute)
		b.want("another gate opened", "a@600", "a@660", "a@720")
		b.apply(store.Change{Record: rec, IfRev: store.Any})
		time.Sleep(5 * time.Second)
		b.put("b", -1, "lab", "")
		opened.Store(true)
		b.w.Open(ns, func(gate string) bool { return gate == "link:lab" })
		time.Sleep(time.Minute)
		b.want("opened during a call", "a@600", "a@660", "a@720", "a@785", "b@795 fresh", "a@805")
	})
}

// TestErrors: after an error and after a conflict the record is tried again, and a call that settles nothing does not
// become a loop.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		outcomes := []error{errors.New("broken"), errors.New("broken"), store.ErrConflict, nil, nil}
		b = newBench(t, work.Queue{Max: 8}, func(_ context.Context, rec store.Record) (work.Later, error) {
			err := outcomes[0]
			if outcomes = outcomes[1:]; len(outcomes) == 0 {
				return work.Later{}, b.remove(rec)
			}
			return work.Later{}, err
		})
		b.put("a", -1, "", "")
		defer b.run()()
		time.Sleep(time.Hour)
		b.want("", "a@0", "a@1", "a@3", "a@3", "a@63")
	})
}

// TestClaim: a record that the caller works on itself is left to it until it gives it back.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		b = newBench(t, work.Queue{Max: 8}, func(_ context.Context, rec store.Record) (work.Later, error) {
			return work.Later{}, b.remove(rec)
		})
		defer b.run()()
		synctest.Wait()
		release := b.w.Claim(ns, "a")
		b.put("a", -1, "", "")
		time.Sleep(time.Hour)
		b.want("claimed")
		release()
		b.want("released", "a@3600")
	})
}

// TestWrongClock: a record that a wrong clock put far into the future is due now, behind records that are right.
func TestWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		b = newBench(t, work.Queue{Max: 8, MaxPause: time.Minute}, func(_ context.Context, rec store.Record) (work.Later, error) {
			return work.Later{}, b.remove(rec)
		})
		b.put("far", 30*24*time.Hour, "", "")
		b.put("near", 30*time.Minute, "", "") // a step of an hour only shifts it
		defer b.run()()
		time.Sleep(2 * time.Hour)
		b.want("", "far@0", "near@1800")
	})
}

// TestErrorWithGate: after an error with a gate, the other records of the party wait, too, and those of others do not.
func TestErrorWithGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		b = newBench(t, work.Queue{Max: 4, PerParty: 1}, func(_ context.Context, rec store.Record) (work.Later, error) {
			if rec.Party == "down" {
				return work.Later{Gate: "directory"}, errors.New("it is down")
			}
			return work.Later{}, b.remove(rec)
		})
		b.put("a", -1, "down", "")
		b.put("b", -1, "down", "")
		b.put("c", 2*time.Second, "up", "")
		defer b.run()()
		time.Sleep(5 * time.Second)
		b.want("", "a@0", "a@1", "c@2", "a@3")
	})
}

// slowReading is a store in which a reading of what is due takes a second, after it has seen the records.
type slowReading struct{ store.Store }

func (s slowReading) Records() store.Records { return slowRecords{s.Store.Records()} }

type slowRecords struct{ store.Records }

func (r slowRecords) Due(ctx context.Context, ns string, until time.Time, skip []string, limit int) ([]store.Record, time.Time, error) {
	rows, next, err := r.Records.Due(ctx, ns, until, skip, limit)
	time.Sleep(time.Second)
	return rows, next, err
}

// TestOldReading: a record that was read before a call settled it is not worked on as it was read.
func TestOldReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		q := work.Queue{Max: 8}
		b = newBench(t, q, func(_ context.Context, rec store.Record) (work.Later, error) {
			if rec.Key == "b" {
				return work.Later{}, b.remove(rec)
			}
			time.Sleep(1500 * time.Millisecond)
			later := rec
			later.Due = time.Now().Add(time.Hour)
			b.apply(store.Change{Record: later, IfRev: rec.Rev})
			return work.Later{}, nil
		})
		b.s = store.Observe(slowReading{b.s.(*store.Observed).Store})
		b.open(q)
		b.put("a", -1, "", "")
		defer b.run()()
		time.Sleep(1900 * time.Millisecond) // the call for a runs since the first reading
		b.put("b", -1, "", "")              // the next reading still sees a
		time.Sleep(time.Minute)
		b.want("", "a@1", "b@3 fresh")
		if b.log.Len() > 0 {
			t.Errorf("the log says: %s", &b.log)
		}
	})
}

// TestOldReadingOfAChange: the same for a record that was changed while the call worked, if the call settled it as changed.
func TestOldReadingOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *bench
		q := work.Queue{Max: 8}
		b = newBench(t, q, func(context.Context, store.Record) (work.Later, error) {
			time.Sleep(1500 * time.Millisecond)
			later := store.Record{NS: ns, Key: "a", Due: time.Now().Add(time.Hour)}
			b.apply(store.Change{Record: later, IfRev: store.Any})
			return work.Later{}, nil
		})
		b.s = store.Observe(slowReading{b.s.(*store.Observed).Store})
		b.open(q)
		b.put("a", -1, "", "")
		defer b.run()()
		time.Sleep(1900 * time.Millisecond) // the call runs since the first reading
		// the next reading sees this change, but not what the call stores
		b.apply(store.Change{Record: store.Record{NS: ns, Key: "a", Due: store.DueNow}, IfRev: store.Any})
		time.Sleep(time.Minute)
		b.want("", "a@1")
	})
}

// TestClaimDuringACall: a claim holds although a call for the record that began before it ends.
func TestClaimDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, work.Queue{Max: 8}, func(_ context.Context, rec store.Record) (work.Later, error) {
			time.Sleep(10 * time.Second)
			return work.Later{Pause: time.Second}, nil
		})
		b.put("a", -1, "", "")
		defer b.run()()
		time.Sleep(5 * time.Second)
		release := b.w.Claim(ns, "a")
		time.Sleep(time.Minute)
		b.want("claimed", "a@0")
		release()
		b.want("released", "a@0", "a@65")
	})
}
