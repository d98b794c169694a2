package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

var dueTests = []scenario{
	{"order", testDueOrder},
	{"heads only", testDueHeads},
	{"lanes end", testDueLaneEnds},
	{"a head that is not due blocks its lane", testDueBlocked},
	{"skipped parties", testDueSkip},
	{"what joins a lane", testDueJoin},
	{"expiry", testDueExpiry},
	{"bounds", testDueBounds},
	{"two workers", testDueWorkers},
	{"lanes that change at once", testDueLaneRace},
	{"a record that is set due while it is worked on", testDueAgain},
	{"a clock that is set", testDueClock},
	{"count", testCount},
	{"count while records change", testCountRace},
}

// work returns a change that makes a record due.
func work(key string, due time.Time, party, lane string) store.Change {
	c := put("work", key, "t")
	c.Record.Due, c.Record.Party, c.Record.Lane = due, party, lane
	return c
}

// again makes a change replace whatever is there.
func again(c store.Change) store.Change {
	c.IfRev = store.Any
	return c
}

func done(key, lane string) store.Change {
	return store.Change{Record: store.Record{NS: "work", Key: key, Lane: lane}, IfRev: store.Any, Delete: true}
}

// wantDue checks the keys of what is due, and the Due of what is due next.
func wantDue(t *testing.T, s store.Store, until time.Time, limit int, skip []string, next time.Time, keys ...string) {
	t.Helper()
	recs, got, err := s.Records().Due(t.Context(), "work", until, skip, limit)
	wantOK(t, "Due", err)
	var due []string
	for _, rec := range recs {
		due = append(due, rec.Key)
		stored, err := s.Records().Get(t.Context(), "work", rec.Key, until)
		wantOK(t, "Get of what is due", err)
		wantSame(t, "what is due", rec, stored)
	}
	wantSame(t, fmt.Sprintf("due until %v", until), due, keys)
	if !got.Equal(next) {
		t.Errorf("next is %v, want %v", got, next)
	}
}

func testDueOrder(t *testing.T, s store.Store) {
	ctx := t.Context()
	hour := t0.Add(time.Hour)
	wantOK(t, "none yet", change(t, s, t0, put("work", "idle"), put("other", "a")))
	wantDue(t, s, t0, 10, nil, time.Time{})
	for _, c := range []store.Change{
		work("d", hour, "p", ""), work("c", t0, "p", ""), work("b", t0, "p", ""), work("a", store.DueNow, "p", ""),
		work("old", time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC), "", ""),
	} {
		wantOK(t, "create", change(t, s, t0, c))
	}
	other := work("x", t0, "p", "")
	other.Record.NS = "worked"
	wantOK(t, "create", change(t, s, t0, other))
	wantDue(t, s, time.Unix(0, 0).AddDate(-200, 0, 0), 10, nil, time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC), "a")
	wantDue(t, s, t0.Add(-1), 10, nil, t0, "a", "old")
	wantDue(t, s, t0, 10, nil, hour, "a", "old", "c", "b")
	wantDue(t, s, t0, 3, nil, t0, "a", "old", "c")
	wantDue(t, s, hour, 10, nil, time.Time{}, "a", "old", "c", "b", "d")
	rec, err := s.Records().Get(ctx, "work", "a", t0)
	wantOK(t, "Get", err)
	if !rec.Due.Equal(store.DueNow) {
		t.Errorf("Due is %v, want %v", rec.Due, store.DueNow)
	}
	// A new revision goes to the end of what is due at the same time.
	wantOK(t, "replace", change(t, s, t0, again(work("c", t0, "p", ""))))
	wantDue(t, s, t0, 10, nil, hour, "a", "old", "b", "c")
	wantOK(t, "no longer work", change(t, s, t0, again(put("work", "b")), done("old", ""), again(work("a", hour, "", ""))))
	wantDue(t, s, t0, 10, nil, hour, "c")
	wantDue(t, s, hour, 10, nil, time.Time{}, "c", "d", "a")
}

func testDueHeads(t *testing.T, s store.Store) {
	for i := range 5 {
		wantOK(t, "create", change(t, s, t0, work(fmt.Sprint("a", i), t0.Add(time.Duration(-i)*time.Hour), "p", "a"), work(fmt.Sprint("b", i), t0, "p", "b")))
	}
	wantDue(t, s, t0, 10, nil, time.Time{}, "a0", "b0")
	wantOK(t, "the head ends", change(t, s, t0, done("a0", "a")))
	wantDue(t, s, t0, 10, nil, time.Time{}, "a1", "b0")
	wantOK(t, "one behind the head ends", change(t, s, t0, done("a2", "a")))
	wantOK(t, "an unnamed lane", change(t, s, t0, done("a1", "")))
	wantDue(t, s, t0, 10, nil, time.Time{}, "a3", "b0")
	wantOK(t, "one behind the head changes", change(t, s, t0, again(work("a4", t0.Add(time.Hour), "q", "a"))))
	wantDue(t, s, t0, 10, nil, time.Time{}, "a3", "b0")
	wantOK(t, "the head is no longer work", change(t, s, t0, again(put("work", "a3"))))
	wantDue(t, s, t0, 10, nil, t0.Add(time.Hour), "b0")
	wantOK(t, "to another lane", change(t, s, t0, again(work("b0", t0.Add(-3*time.Hour), "p", "c")), again(work("b1", t0.Add(-2*time.Hour), "p", ""))))
	wantDue(t, s, t0, 10, nil, t0.Add(time.Hour), "b0", "b1", "b2")
}

func testDueLaneEnds(t *testing.T, s store.Store) {
	const n = 300
	var all, ends []store.Change
	for i := range n {
		all = append(all, work(fmt.Sprintf("%03d", i), t0, "p", "a"))
		ends = append(ends, done(fmt.Sprintf("%03d", i), "a"))
	}
	wantOK(t, "create", change(t, s, t0, all...))
	wantDue(t, s, t0, 10, nil, time.Time{}, "000")
	wantOK(t, "all but the last end, some with a new one", change(t, s, t0, append(ends[:n-1:n-1], work("300", t0, "p", "a"))...))
	wantDue(t, s, t0, 10, nil, time.Time{}, "299")
	wantOK(t, "the last ends", change(t, s, t0, ends[n-1]))
	wantDue(t, s, t0, 10, nil, time.Time{}, "300")
	wantOK(t, "the lane ends", change(t, s, t0, done("300", "a")))
	wantDue(t, s, t0, 10, nil, time.Time{})
	wantOK(t, "the lane begins again", change(t, s, t0, work("0", t0, "p", "a")))
	wantDue(t, s, t0, 10, nil, time.Time{}, "0")
}

func testDueBlocked(t *testing.T, s store.Store) {
	later := t0.Add(time.Hour)
	wantOK(t, "create", change(t, s, t0, work("1", later, "p", "a"), work("2", store.DueNow, "p", "a"), work("3", t0, "p", "a")))
	wantDue(t, s, t0, 10, nil, later)
	wantDue(t, s, later, 10, nil, time.Time{}, "1")
	wantOK(t, "the head waits again", change(t, s, later, again(work("1", later.Add(day), "p", "a"))))
	wantDue(t, s, later, 10, nil, later.Add(day))
	wantOK(t, "the head ends", change(t, s, later, done("1", "a")))
	wantDue(t, s, t0, 10, nil, time.Time{}, "2")
}

func testDueSkip(t *testing.T, s store.Store) {
	for i := range 4 {
		for _, party := range []string{"", "p", "q"} {
			wantOK(t, "create", change(t, s, t0, work(fmt.Sprint(party, i), t0.Add(time.Duration(i)*time.Hour), party, "")))
		}
	}
	until := t0.Add(time.Hour)
	wantDue(t, s, until, 10, []string{"p", "q"}, t0.Add(2*time.Hour), "0", "1")
	wantDue(t, s, until, 10, []string{""}, t0.Add(2*time.Hour), "p0", "q0", "p1", "q1")
	wantDue(t, s, until, 1, []string{"", "p"}, until, "q0")
	wantDue(t, s, until, 10, []string{"", "p", "q"}, time.Time{})
	wantDue(t, s, until, 10, []string{"x"}, t0.Add(2*time.Hour), "0", "p0", "q0", "1", "p1", "q1")
}

func testDueJoin(t *testing.T, s store.Store) {
	wantOK(t, "create", change(t, s, t0, work("5", t0, "p", "a")))
	wantMistake(t, "a smaller key", change(t, s, t0, work("4", t0, "p", "a")))
	wantMistake(t, "a smaller key within the unit", change(t, s, t0, work("7", t0, "p", "a"), work("6", t0, "p", "a")))
	wantOK(t, "another lane", change(t, s, t0, work("4", t0, "p", "b")))
	wantOK(t, "not work yet", change(t, s, t0, work("1", time.Time{}, "p", "a")))
	wantMistake(t, "becomes work", change(t, s, t0, again(work("1", t0, "p", "a"))))
	wantMistake(t, "comes from another lane", change(t, s, t0, again(work("4", t0, "p", "a"))))
	wantMistake(t, "a smaller key beside the end of the larger", change(t, s, t0, done("5", "a"), again(work("1", t0, "p", "a"))))
	wantOK(t, "a larger key", change(t, s, t0, work("6", t0, "p", "a")))
	wantOK(t, "the larger ones end", change(t, s, t0, done("6", "a"), done("5", "a")))
	wantOK(t, "becomes work", change(t, s, t0, again(work("1", t0, "p", "a"))))
	wantDue(t, s, t0, 10, nil, time.Time{}, "4", "1")
}

func testDueExpiry(t *testing.T, s store.Store) {
	end := t0.Add(2 * time.Hour)
	c := work("a", t0, "p", "")
	c.Record.Expires = end
	wantOK(t, "create", change(t, s, t0, c, work("b", t0.Add(day), "p", "")))
	wantDue(t, s, end.Add(-1), 10, nil, t0.Add(day), "a")
	wantDue(t, s, end, 10, nil, t0.Add(day))
	sweepAll(t, s, end)
	wantDue(t, s, t0, 10, nil, t0.Add(day))
	wantOK(t, "create", change(t, s, t0, c))
	c.Record.Due = t0.Add(time.Hour)
	wantOK(t, "replace when it has expired", change(t, s, end, store.Change{Record: store.Record{NS: "work", Key: "a", Due: t0}}))
	wantDue(t, s, end, 10, nil, t0.Add(day), "a")
}

func testDueBounds(t *testing.T, s store.Store) {
	long := string(make([]byte, 513))
	for name, c := range map[string]store.Change{"party": work("a", t0, long, ""), "lane": work("a", t0, "", long)} {
		wantMistake(t, "a long "+name, change(t, s, t0, c))
	}
	c := work("a", t0, long[:512], long[:512])
	wantOK(t, "as long as they may be", change(t, s, t0, c))
	wantDue(t, s, t0, 1, nil, time.Time{}, "a")
	c = work("b", t0, "", "a")
	c.Record.Expires = t0.Add(day)
	wantMistake(t, "expiry in a lane", change(t, s, t0, c))
	for _, call := range []struct {
		ns          string
		skip, limit int
	}{{"", 0, 1}, {long, 0, 1}, {"work", 0, 0}, {"work", 33, 1}} {
		_, _, err := s.Records().Due(t.Context(), call.ns, t0, make([]string, call.skip), call.limit)
		wantMistake(t, fmt.Sprintf("Due(%.10q, %d, %d)", call.ns, call.skip, call.limit), err)
	}
	_, _, err := s.Records().Due(t.Context(), "work", t0, make([]string, 32), 1)
	wantOK(t, "32 parties", err)
	for ns, limit := range map[string]int{"": 1, long: 1, "work": 0} {
		_, err := s.Records().Count(t.Context(), ns, "", limit, t0)
		wantMistake(t, fmt.Sprintf("Count(%.10q, %d)", ns, limit), err)
	}
}

// testDueWorkers: two workers that get the same records, because Due claims nothing, do each once, in the order of its
// lane.
func testDueWorkers(t *testing.T, s store.Store) {
	const lanes, each = 5, 8
	for i := range each {
		var unit []store.Change
		for lane := range lanes {
			unit = append(unit, work(fmt.Sprint(i), store.DueNow, "p", fmt.Sprint(lane)))
			unit[lane].Record.Key = fmt.Sprintf("%d-%d", i, lane)
		}
		wantOK(t, "create", change(t, s, t0, unit...))
	}
	var mu sync.Mutex
	did := make(map[string][]string)
	race(t, 4, func(int) error {
		for {
			due, _, err := s.Records().Due(t.Context(), "work", t0, nil, 3)
			if err != nil || len(due) == 0 {
				return err
			}
			for _, rec := range due {
				end := store.Change{Record: rec, IfRev: rec.Rev, Delete: true}
				mu.Lock() // across the commit, so that the order of did is the order of the commits
				err := s.Records().Apply(t.Context(), []store.Change{end}, t0)
				if err == nil {
					did[rec.Lane] = append(did[rec.Lane], rec.Key)
				}
				mu.Unlock()
				if err != nil && !errors.Is(err, store.ErrConflict) {
					return err
				}
			}
		}
	}, nil)
	for lane := range lanes {
		var want []string
		for i := range each {
			want = append(want, fmt.Sprintf("%d-%d", i, lane))
		}
		wantSame(t, "what was done", did[fmt.Sprint(lane)], want)
	}
}

// testDueLaneRace: while some callers add to a lane and others end its heads, each record becomes the head once, in order.
func testDueLaneRace(t *testing.T, s store.Store) {
	const n = 40
	var tried, added atomic.Int64
	var ended []string
	race(t, 3, func(worker int) error {
		for worker > 0 && added.Load() < n { // two add; a key is refused if the other has added a larger one
			if change(t, s, t0, work(fmt.Sprintf("%05d", tried.Add(1)), t0, "p", "a")) == nil {
				added.Add(1)
			}
		}
		for worker == 0 && (added.Load() < n || int64(len(ended)) < added.Load()) { // one ends
			due, _, err := s.Records().Due(t.Context(), "work", t0, nil, 5)
			if err != nil {
				return err
			}
			if len(due) > 1 {
				t.Errorf("%d heads in one lane", len(due))
			}
			for _, rec := range due { // the lane is not named
				if err := change(t, s, t0, store.Change{Record: store.Record{NS: "work", Key: rec.Key}, IfRev: rec.Rev, Delete: true}); err != nil {
					return err
				}
				ended = append(ended, rec.Key)
			}
		}
		return nil
	}, nil)
	if len(ended) < n || !slices.IsSorted(ended) {
		t.Errorf("ended are %d: %q", len(ended), ended)
	}
	wantDue(t, s, t0, 10, nil, time.Time{})
	wantSame(t, "keys left", keys(t, s, "work", "", t0), nil)
}

// testDueAgain: an outcome that is stored under the revision that the worker got fails if the record was set due meanwhile.
func testDueAgain(t *testing.T, s store.Store) {
	wantOK(t, "create", change(t, s, t0, work("a", t0, "p", "l"), work("b", t0, "p", "l")))
	due, _, err := s.Records().Due(t.Context(), "work", t0, nil, 1)
	wantOK(t, "Due", err)
	wantOK(t, "set due", change(t, s, t0, again(work("a", store.DueNow, "q", "l"))))
	end := done("a", "l")
	end.IfRev = due[0].Rev
	wantErr(t, "the outcome", change(t, s, t0, end), store.ErrConflict)
	wantDue(t, s, t0, 1, nil, time.Time{}, "a")
	due, _, err = s.Records().Due(t.Context(), "work", t0, nil, 1)
	wantOK(t, "Due", err)
	wantSame(t, "party", due[0].Party, "q")
	end.IfRev = due[0].Rev
	wantOK(t, "the outcome", change(t, s, t0, end))
	wantDue(t, s, t0, 1, nil, time.Time{}, "b")
}

// testDueClock: a clock that is set moves neither what is due at once nor the order, and what it made due is due again when
// it is set right.
func testDueClock(t *testing.T, s store.Store) {
	for _, by := range []time.Duration{time.Hour, -time.Hour, 30 * day, -30 * day} {
		off := t0.Add(by)
		wantOK(t, "create", change(t, s, t0, again(work("now", store.DueNow, "p", "")), again(work("soon", t0.Add(time.Minute), "p", ""))))
		wantOK(t, "create by the wrong clock", change(t, s, off, again(work("wrong", off.Add(time.Minute), "p", ""))))
		if by > 0 {
			wantDue(t, s, off, 10, nil, off.Add(time.Minute), "now", "soon")
			wantDue(t, s, t0, 10, nil, t0.Add(time.Minute), "now")
			wantDue(t, s, t0.Add(time.Minute), 10, nil, off.Add(time.Minute), "now", "soon")
		} else {
			wantDue(t, s, off, 10, nil, off.Add(time.Minute), "now")
			wantDue(t, s, t0, 10, nil, t0.Add(time.Minute), "now", "wrong")
		}
	}
}

func wantCount(t *testing.T, s store.Store, term string, limit int, now time.Time, want int) {
	t.Helper()
	n, err := s.Records().Count(t.Context(), "n", term, limit, now)
	wantOK(t, "Count", err)
	if n != want {
		t.Errorf("Count(%q, %d) at %v is %d, want %d", term, limit, now, n, want)
	}
}

func testCount(t *testing.T, s store.Store) {
	wantCount(t, s, "", 10, t0, 0)
	for i := range 10 {
		c := put("n", fmt.Sprint(i), "t", fmt.Sprint("u", i%2))
		if i < 5 {
			c.Record.Expires = t0.Add(time.Duration(i+1) * time.Hour)
		}
		wantOK(t, "create", change(t, s, t0, c))
	}
	wantOK(t, "create others", change(t, s, t0, put("nn", "x", "t"), put("n", "x", "tt")))
	wantCount(t, s, "", 100, t0, 11)
	wantCount(t, s, "t", 100, t0, 10)
	wantCount(t, s, "t", 4, t0, 4)
	wantCount(t, s, "u1", 100, t0, 5)
	wantCount(t, s, "none", 100, t0, 0)
	wantCount(t, s, "t", 100, t0.Add(time.Hour-1), 10)
	wantCount(t, s, "t", 100, t0.Add(time.Hour), 9)
	wantCount(t, s, "u1", 100, t0.Add(day), 3)
	wantCount(t, s, "t", 100, t0, 10)
	wantOK(t, "delete", change(t, s, t0, store.Change{Record: store.Record{NS: "n", Key: "9"}, IfRev: store.Any, Delete: true}))
	wantCount(t, s, "u1", 100, t0, 4)
	renewed := again(put("n", "1", "t"))
	wantOK(t, "replace", change(t, s, t0, renewed))
	wantCount(t, s, "u1", 100, t0, 3)
	wantCount(t, s, "t", 100, t0.Add(day), 5)
	sweepAll(t, s, t0.Add(day))
	wantCount(t, s, "t", 100, t0, 5)
}

// DueAmong checks that of n records, all waiting and most behind another one in a lane, Due finds the ten that are due,
// and that the median time of the calls is at most limit.
func DueAmong(t *testing.T, s store.Store, n int, limit time.Duration) {
	t.Helper()
	const unit = 10_000
	for i := 0; i < n; i += unit {
		var changes []store.Change
		for j := range unit {
			c := work(fmt.Sprintf("%08d", i+j), t0.Add(day+time.Duration(i+j)), fmt.Sprint("p", j%100), "")
			if j%4 > 0 { // three lanes in four are long
				c.Record.Lane = fmt.Sprint("l", j%1000)
				c.Record.Due = t0
			}
			changes = append(changes, c)
		}
		if i == 0 {
			for j := range changes { // the heads of the long lanes wait, except ten
				if j < 1000 && j%4 > 0 && j%100 != 50 {
					changes[j].Record.Due = t0.Add(day)
				}
			}
		}
		wantOK(t, "create", change(t, s, t0, changes...))
	}
	var took []time.Duration
	for range 51 {
		start := time.Now()
		due, next, err := s.Records().Due(t.Context(), "work", t0, []string{"p7"}, 20)
		took = append(took, time.Since(start))
		if err != nil || len(due) != 10 || !next.Equal(t0.Add(day)) {
			t.Fatalf("Due = %d records, %v, %v", len(due), next, err)
		}
	}
	slices.Sort(took)
	if median := took[len(took)/2]; median > limit {
		t.Errorf("Due takes %v, want at most %v", median, limit)
	} else {
		t.Logf("Due takes %v", median)
	}
}

// testCountRace: a caller that changes records counts what it has changed, while others change other records.
func testCountRace(t *testing.T, s store.Store) {
	const workers, rounds = 4, 30
	race(t, workers, func(worker int) error {
		term := fmt.Sprint("own:", worker)
		live := make(map[string]time.Time)
		for i := range rounds {
			now := t0.Add(time.Duration(i) * time.Minute)
			c := again(put("n", fmt.Sprintf("%d-%d", worker, i%7), "t", term))
			c.Record.Expires, c.Delete = now.Add(time.Duration(i%4)*time.Minute), i%5 == 4
			if i%3 == 0 {
				c.Record.Expires = time.Time{}
			}
			if err := change(t, s, now, c); err != nil {
				return err
			}
			kept := again(put("n", fmt.Sprintf("kept %d-%d", worker, i%3), "kept"))
			kept.Delete = i%4 == 3
			if err := change(t, s, t0, kept); err != nil {
				return err
			}
			if _, err := s.Records().Count(t.Context(), "n", "kept", 100, t0); err != nil { // others change this set
				return err
			}
			live[c.Record.Key] = c.Record.Expires
			if c.Delete {
				delete(live, c.Record.Key)
			}
			for _, at := range []time.Time{now, now.Add(2 * time.Minute), now} {
				want := 0
				for _, expires := range live {
					if isLive(expires, at) {
						want++
					}
				}
				n, err := s.Records().Count(t.Context(), "n", term, 100, at)
				if err != nil {
					return err
				}
				if n != want {
					t.Errorf("Count(%q) at %v is %d, want %d", term, at, n, want)
				}
			}
		}
		return nil
	}, nil)
	now := t0.Add(rounds * time.Minute)
	wantCount(t, s, "t", 100, now, len(keys(t, s, "n", "t", now)))
	wantCount(t, s, "kept", 100, t0, len(keys(t, s, "n", "kept", t0)))
	left := len(keys(t, s, "n", "", now))
	wantCount(t, s, "", 100, now, left)
	sweepAll(t, s, now)
	wantCount(t, s, "", 100, now, left)
}
