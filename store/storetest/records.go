package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

var recordTests = []scenario{
	{"put, replace, delete", testRecord},
	{"preconditions", testRecordCAS},
	{"expiry to the instant", testRecordExpiry},
	{"all or none", testRecordUnit},
	{"pages by term", testRecordList},
	{"pages backward", testRecordListBackward},
	{"pages backward, concurrent writes", testRecordListBackwardRace},
	{"maximum", testRecordMax},
	{"maximum, many senders", testRecordMaxRace},
	{"sweep", testRecordSweep},
}

// change applies changes of records.
func change(t *testing.T, s store.Store, now time.Time, changes ...store.Change) error {
	t.Helper()
	return s.Records().Apply(t.Context(), changes, now)
}

// put returns a change that creates a record.
func put(ns, key string, terms ...string) store.Change {
	return store.Change{Record: store.Record{NS: ns, Key: key, Body: []byte("body of " + key), Terms: terms}}
}

func testRecord(t *testing.T, s store.Store) {
	c := put("inbox", "a", "state:new", "from:am_p")
	c.Record.Expires = t0.Add(day)
	wantOK(t, "create", change(t, s, t0, c))
	first, err := s.Records().Get(t.Context(), "inbox", "a", t0)
	wantOK(t, "Get", err)
	want := c.Record
	want.Rev = first.Rev
	wantSame(t, "record", first, want)
	_, err = s.Records().Get(t.Context(), "inbox", "b", t0)
	wantErr(t, "Get of an unknown key", err, store.ErrNotFound)
	_, err = s.Records().Get(t.Context(), "outbox", "a", t0)
	wantErr(t, "Get in another namespace", err, store.ErrNotFound)

	c = put("inbox", "a", "state:done")
	c.IfRev = first.Rev
	wantOK(t, "replace", change(t, s, t0, c))
	second, err := s.Records().Get(t.Context(), "inbox", "a", t0.Add(100*day))
	wantOK(t, "Get of a record that no longer expires", err)
	if second.Rev <= first.Rev {
		t.Errorf("revision %d after %d", second.Rev, first.Rev)
	}
	wantSame(t, "keys by the old term", keys(t, s, "inbox", "state:new", t0), nil)
	wantSame(t, "keys by the new term", keys(t, s, "inbox", "state:done", t0), []string{"a"})
	wantOK(t, "delete", change(t, s, t0, store.Change{Record: store.Record{NS: "inbox", Key: "a"}, IfRev: second.Rev, Delete: true}))
	_, err = s.Records().Get(t.Context(), "inbox", "a", t0)
	wantErr(t, "Get after delete", err, store.ErrNotFound)
	wantSame(t, "keys", keys(t, s, "inbox", "", t0), nil)
	wantSame(t, "keys by term", keys(t, s, "inbox", "state:done", t0), nil)
	wantOK(t, "nothing at all", change(t, s, t0))
}

func testRecordCAS(t *testing.T, s store.Store) {
	del := func(key string, rev store.Rev) store.Change {
		return store.Change{Record: store.Record{NS: "n", Key: key}, IfRev: rev, Delete: true}
	}
	with := func(rev store.Rev) store.Change {
		c := put("n", "a")
		c.IfRev = rev
		return c
	}
	wantErr(t, "replace nothing", change(t, s, t0, with(5)), store.ErrConflict)
	wantErr(t, "delete nothing by revision", change(t, s, t0, del("a", 5)), store.ErrConflict)
	wantOK(t, "delete nothing with Any", change(t, s, t0, del("a", store.Any)))
	wantOK(t, "create", change(t, s, t0, with(store.Absent)))
	wantErr(t, "create again", change(t, s, t0, with(store.Absent)), store.ErrConflict)
	rec, err := s.Records().Get(t.Context(), "n", "a", t0)
	wantOK(t, "Get", err)
	wantOK(t, "replace with Any", change(t, s, t0, with(store.Any)))
	wantErr(t, "replace by an old revision", change(t, s, t0, with(rec.Rev)), store.ErrConflict)
	wantErr(t, "delete by an old revision", change(t, s, t0, del("a", rec.Rev)), store.ErrConflict)
	wantErr(t, "delete what must be absent", change(t, s, t0, del("a", store.Absent)), store.ErrConflict)
	wantOK(t, "delete with Any", change(t, s, t0, del("a", store.Any)))
	wantOK(t, "create after delete", change(t, s, t0, with(store.Absent)))
	again, err := s.Records().Get(t.Context(), "n", "a", t0)
	wantOK(t, "Get", err)
	if again.Rev <= rec.Rev {
		t.Errorf("a new record has revision %d, the deleted one had %d", again.Rev, rec.Rev)
	}
}

func testRecordExpiry(t *testing.T, s store.Store) {
	c := put("n", "a", "x")
	c.Record.Expires = t0.Add(time.Hour)
	wantOK(t, "create", change(t, s, t0, c))
	end := c.Record.Expires
	rec, err := s.Records().Get(t.Context(), "n", "a", end.Add(-1))
	wantOK(t, "Get before the end", err)
	_, err = s.Records().Get(t.Context(), "n", "a", end)
	wantErr(t, "Get at the end", err, store.ErrNotFound)
	wantSame(t, "keys before the end", keys(t, s, "n", "x", end.Add(-1)), []string{"a"})
	wantSame(t, "keys at the end", keys(t, s, "n", "x", end), nil)
	c.IfRev = rec.Rev
	wantErr(t, "replace at the end", change(t, s, end, c), store.ErrConflict)
	c.IfRev, c.Record.Expires = store.Absent, end.Add(time.Hour)
	wantOK(t, "create at the end", change(t, s, end, c))
	sweepAll(t, s, end)
	wantSame(t, "keys after Sweep", keys(t, s, "n", "x", end), []string{"a"})
}

func testRecordUnit(t *testing.T, s store.Store) {
	wantOK(t, "create", change(t, s, t0, put("n", "b")))
	wantErr(t, "two changes, one conflict", change(t, s, t0, put("n", "a"), put("n", "b")), store.ErrConflict)
	wantSame(t, "keys", keys(t, s, "n", "", t0), []string{"b"})
	wantMistake(t, "one record twice", change(t, s, t0, put("n", "a"), put("n", "a")))
	wantSame(t, "keys", keys(t, s, "n", "", t0), []string{"b"})
}

// keys returns the keys of the live records of ns that carry term, which it lists in pages of two, forward and backward.
func keys(t *testing.T, s store.Store, ns, term string, now time.Time) []string {
	t.Helper()
	forward := walkKeys(t, s.Records().List, ns, term, 2, now)
	backward := walkKeys(t, s.Records().ListBackward, ns, term, 2, now)
	slices.Reverse(backward)
	wantSame(t, "keys backward", backward, forward)
	return forward
}

type listFunc func(ctx context.Context, ns, term, at string, limit int, now time.Time) (store.RecordPage, error)

// walkKeys returns the keys of all pages of a list.
func walkKeys(t *testing.T, list listFunc, ns, term string, limit int, now time.Time) (keys []string) {
	t.Helper()
	for at := ""; ; {
		page, err := list(t.Context(), ns, term, at, limit, now)
		wantOK(t, "List", err)
		for _, rec := range page.Records {
			keys = append(keys, rec.Key)
		}
		if page.Next == "" {
			return keys
		}
		if len(page.Records) != limit {
			t.Fatalf("a page that is not the last has %d records, want %d", len(page.Records), limit)
		}
		at = page.Next
	}
}

func testRecordList(t *testing.T, s store.Store) {
	for _, key := range []string{"d", "a", "c", "b", "e", "ab"} {
		wantOK(t, "create", change(t, s, t0, put("n", key, "t", "key:"+key)))
	}
	// These namespaces and terms begin like others.
	wantOK(t, "create", change(t, s, t0, put("nn", "x", "t"), put("n/n", "y", "t"), put("n", "z", "tt")))
	wantSame(t, "all keys", keys(t, s, "n", "", t0), []string{"a", "ab", "b", "c", "d", "e", "z"})
	wantSame(t, "keys by term", keys(t, s, "n", "t", t0), []string{"a", "ab", "b", "c", "d", "e"})
	wantSame(t, "keys by a longer term", keys(t, s, "n", "tt", t0), []string{"z"})
	wantSame(t, "keys by a term of one", keys(t, s, "n", "key:b", t0), []string{"b"})
	wantSame(t, "keys of another namespace", keys(t, s, "nn", "", t0), []string{"x"})
	for after, want := range map[string]string{"": "a", "a": "ab", "aa": "ab", "ab": "b", "e": "z"} {
		page, err := s.Records().List(t.Context(), "n", "", after, 1, t0)
		wantOK(t, "List", err)
		if got := page.Records[0].Key; got != want {
			t.Errorf("first key after %q is %q, want %q", after, got, want)
		}
	}
	_, err := s.Records().List(t.Context(), "n", "", "", 0, t0)
	wantMistake(t, "limit 0", err)
}

func testRecordListBackward(t *testing.T, s store.Store) {
	largest := strings.Repeat("\xff", 512)
	for _, key := range []string{"d", "a", "c", "b", "e", "ab", "b\x00", "b\xff", largest} {
		wantOK(t, "create", change(t, s, t0, put("n", key, "t", "key:"+key[:1])))
	}
	ending := put("n", "dd", "t")
	ending.Record.Expires = t0.Add(time.Hour)
	// These namespaces and terms begin like others, and sort before and after them.
	wantOK(t, "create", change(t, s, t0, put("m", "x", "t"), put("nn", "x", "t"), put("o", "y", "t"), put("n", "z", "tt"), put("n", "y", "s"), ending))
	for _, test := range []struct {
		ns, term, before string
		limit            int
		want             []string
		next             bool
	}{
		{"n", "", "", 2, []string{largest, "z"}, true},
		{"n", "", "", 100, []string{largest, "z", "y", "e", "dd", "d", "c", "b\xff", "b\x00", "b", "ab", "a"}, false},
		{"n", "", largest, 1, []string{"z"}, true},
		{"n", "", "e", 2, []string{"dd", "d"}, true},
		{"n", "", "bb", 2, []string{"b\x00", "b"}, true},
		{"n", "", "b\x00", 1, []string{"b"}, true},
		{"n", "", "b", 2, []string{"ab", "a"}, false},
		{"n", "", "b", 3, []string{"ab", "a"}, false},
		{"n", "", "a", 1, nil, false},
		{"n", "", "A", 1, nil, false},
		{"n", "t", "", 3, []string{largest, "e", "dd"}, true},
		{"n", "t", "c", 2, []string{"b\xff", "b\x00"}, true},
		{"n", "t", "ab", 2, []string{"a"}, false},
		{"n", "tt", "", 2, []string{"z"}, false},
		{"n", "key:b", "", 2, []string{"b\xff", "b\x00"}, true},
		{"n", "key:b", "b\xff", 2, []string{"b\x00", "b"}, false},
		{"nn", "t", "", 2, []string{"x"}, false},
		{"o", "", "zz", 2, []string{"y"}, false},
		{"nothing", "", "", 2, nil, false},
		{"n", "nothing", "", 2, nil, false},
		{"n", strings.Repeat("t", 1000), "", 2, nil, false},
	} {
		page, err := s.Records().ListBackward(t.Context(), test.ns, test.term, test.before, test.limit, t0)
		what := fmt.Sprintf("page of %d in %q with %.9q before %.9q", test.limit, test.ns, test.term, test.before)
		wantOK(t, what, err)
		var found []string
		for _, rec := range page.Records {
			found = append(found, rec.Key)
		}
		wantSame(t, what, found, test.want)
		if next := test.want[max(0, len(test.want)-1):]; test.next && page.Next != next[0] || !test.next && page.Next != "" {
			t.Errorf("%s: next is %q", what, page.Next)
		}
	}
	wantSame(t, "keys when one has expired", walkKeys(t, s.Records().ListBackward, "n", "t", 3, t0.Add(time.Hour)), []string{largest, "e", "d", "c", "b\xff", "b\x00", "b", "ab", "a"})
	sweepAll(t, s, t0.Add(time.Hour))
	wantOK(t, "delete", change(t, s, t0, store.Change{Record: store.Record{NS: "n", Key: largest}, IfRev: store.Any, Delete: true}))
	wantSame(t, "keys after Sweep and a deletion", walkKeys(t, s.Records().ListBackward, "n", "t", 2, t0), []string{"e", "d", "c", "b\xff", "b\x00", "b", "ab", "a"})
	_, err := s.Records().ListBackward(t.Context(), "n", "", "", 0, t0)
	wantMistake(t, "limit 0", err)
	_, err = s.Records().ListBackward(t.Context(), "", "", "", 1, t0)
	wantMistake(t, "no namespace", err)
}

// testRecordListBackwardRace walks lists while records come and go: what stays is listed once, in order.
func testRecordListBackwardRace(t *testing.T, s store.Store) {
	const stay = 50
	var want []string
	for i := range stay {
		key := fmt.Sprintf("%03d", 10*i)
		wantOK(t, "create", change(t, s, t0, put("n", key, "t")))
		want = append([]string{key}, want...)
	}
	var writers sync.WaitGroup
	done := make(chan struct{})
	for w := range 3 {
		writers.Go(func() {
			for i := w; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				c := put("n", fmt.Sprintf("%03d", 10*(i*7%(2*stay))+1+w), "t") // some after all that stay
				err := change(t, s, t0, c)
				c.IfRev, c.Delete = store.Any, true
				if err = errors.Join(err, change(t, s, t0, c)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, term := range []string{"", "t"} {
		for range 20 {
			found := walkKeys(t, s.Records().ListBackward, "n", term, 7, t0)
			if !slices.IsSortedFunc(found, func(a, b string) int { return strings.Compare(b, a) }) || len(slices.Compact(slices.Clone(found))) != len(found) {
				t.Errorf("list backward is %q", found)
			}
			stayed := slices.DeleteFunc(found, func(key string) bool { return key[2] != '0' || len(key) != 3 })
			wantSame(t, "what stays", stayed, want)
		}
	}
	close(done)
	writers.Wait()
}

func testRecordMax(t *testing.T, s store.Store) {
	add := func(key string, now time.Time, limit int, terms ...string) error {
		c := put("mail", key, terms...)
		c.Max, c.Record.Expires = limit, now.Add(day)
		return change(t, s, now, c)
	}
	wantOK(t, "first", add("1", t0, 2, "box:a"))
	wantOK(t, "second", add("2", t0, 2, "box:a", "from:x"))
	wantErr(t, "third", add("3", t0, 2, "box:a"), store.ErrQuota)
	wantOK(t, "another term", add("3", t0, 2, "box:b", "box:a"))
	wantErr(t, "a second term counts as well", add("4", t0, 3, "box:a"), store.ErrQuota)
	wantErr(t, "any record", add("4", t0, 3), store.ErrQuota)
	wantOK(t, "no limit", add("4", t0, 0, "box:a"))
	replace := put("mail", "2", "box:a")
	replace.IfRev, replace.Max, replace.Record.Expires = store.Any, 1, t0.Add(day)
	wantOK(t, "replacing is not adding", change(t, s, t0, replace))
	wantErr(t, "an instant before they expire", add("5", t0.Add(day-1), 4, "box:a"), store.ErrQuota)
	wantOK(t, "when they have expired", add("5", t0.Add(day), 1, "box:a"))
	wantErr(t, "one more", add("6", t0.Add(day), 1, "box:a"), store.ErrQuota)

	added := put("mail", "7", "box:a")
	added.Max = 1
	removed := store.Change{Record: store.Record{NS: "mail", Key: "5"}, IfRev: store.Any, Delete: true}
	wantOK(t, "one goes, one comes", change(t, s, t0.Add(day), removed, added))
	two := []store.Change{put("mail", "8", "box:c"), put("mail", "9", "box:c")}
	two[0].Max, two[1].Max = 1, 1
	wantErr(t, "two in one unit", change(t, s, t0, two...), store.ErrQuota)
	wantOK(t, "after a refusal", change(t, s, t0, two[0]))
	wantErr(t, "the other", change(t, s, t0, two[1]), store.ErrQuota)
	wantOK(t, "delete", change(t, s, t0, store.Change{Record: two[0].Record, IfRev: store.Any, Delete: true}))
	wantOK(t, "the other after that", change(t, s, t0, two[1]))
}

func testRecordMaxRace(t *testing.T, s store.Store) {
	won := race(t, 20, func(i int) error {
		c := put("mail", fmt.Sprint(i), "box:a")
		c.Max = 7
		return change(t, s, t0, c)
	}, store.ErrQuota)
	if n := len(keys(t, s, "mail", "box:a", t0)); won != 7 || n != 7 {
		t.Errorf("%d of 20 records were accepted with a maximum of 7, and %d are stored", won, n)
	}
}

func testRecordSweep(t *testing.T, s store.Store) {
	for i := range 10 {
		c := put("n", fmt.Sprint(i), "t")
		c.Record.Expires = t0.Add(time.Duration(i) * time.Hour)
		wantOK(t, "create", change(t, s, t0.Add(-1), c))
	}
	renewed := put("n", "2", "t")
	renewed.IfRev, renewed.Record.Expires = store.Any, t0.Add(7*time.Hour)
	wantOK(t, "renew", change(t, s, t0.Add(-1), renewed))
	now := t0.Add(5 * time.Hour)
	before := keys(t, s, "n", "t", now)
	sweepAll(t, s, now)
	wantSame(t, "keys after Sweep", keys(t, s, "n", "t", now), before)
	// Listing with an earlier time shows what Sweep did not remove.
	wantSame(t, "keys left", keys(t, s, "n", "", t0.Add(-1)), []string{"2", "6", "7", "8", "9"})
	sweepAll(t, s, t0.Add(7*time.Hour))
	wantSame(t, "keys left later", keys(t, s, "n", "", t0.Add(-1)), []string{"8", "9"})
	for _, now := range []time.Time{t0, now.Add(100 * day)} {
		sweepAll(t, s, now)
		n, err := s.Sweep(t.Context(), now, 10)
		if n != 0 || err != nil {
			t.Errorf("Sweep of a swept store = %d, %v", n, err)
		}
	}
	_, err := s.Sweep(t.Context(), t0, 0)
	wantMistake(t, "limit 0", err)
}
