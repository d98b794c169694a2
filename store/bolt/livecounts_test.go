package bolt

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// TestCountBesideCommit checks that a count that is read just before or after a commit stays right when the commit is noted.
func TestCountBesideCommit(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "mesh.db"), Config{})
	counts, set := s.writer.counts, engine.RecordSet{NS: "n"}
	add := func(key string) {
		if err := s.Records().Apply(t.Context(), []store.Change{{Record: store.Record{NS: "n", Key: key}}}, now); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (c liveCount) {
		if err := s.db.View(func(tx *bbolt.Tx) (err error) { c, err = countLive(tx, set, engine.Nanos(now), 100); return err }); err != nil {
			t.Fatal(err)
		}
		return c
	}
	want := func(want int) {
		t.Helper()
		if n, err := s.Records().Count(t.Context(), "n", "", 100, now); n != want || err != nil {
			t.Errorf("Count = %d, %v, want %d", n, err, want)
		}
	}
	add("a")
	old := read()
	add("b")
	counts.keep(set, old) // too late
	want(2)

	counts.reset()
	next := read()
	next.tx++
	next.n++ // as if the commit of a third record were visible already
	counts.keep(set, next)
	add("c")
	want(3)
	add("d")
	want(4)
}

// TestCountOfMore checks that a count that stopped at its limit stays right while records come, go and expire, and that
// it is not read again for each of them.
func TestCountOfMore(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "mesh.db"), Config{})
	set, live := engine.RecordSet{NS: "n"}, 0
	change := func(key string, n int, expires time.Time) {
		t.Helper()
		c := store.Change{IfRev: store.Any, Delete: n < 0, Record: store.Record{NS: "n", Key: key, Expires: expires}}
		if err := s.Records().Apply(t.Context(), []store.Change{c}, now); err != nil {
			t.Fatal(err)
		}
		live += n
	}
	check := func(at time.Time) {
		t.Helper()
		for _, limit := range []int{1, 5, 10, 100} {
			if n, err := s.Records().Count(t.Context(), "n", "", limit, at); n != min(live, limit) || err != nil {
				t.Errorf("with %d records, Count = %d, %v, want at most %d", live, n, err, limit)
			}
		}
	}
	for i := range 30 {
		change(fmt.Sprint("k", 10+i), 1, time.Time{})
	}
	s.writer.counts.reset()
	if n, err := s.Records().Count(t.Context(), "n", "", 10, now); n != 10 || err != nil {
		t.Fatalf("Count = %d, %v", n, err)
	}
	if c := s.writer.counts.known[set]; c.n != 20 || !c.more {
		t.Errorf("the count stopped at %+v", c)
	}
	for i := range 9 { // those that were counted, and others
		change(fmt.Sprint("k", 10+3*i), -1, time.Time{})
		if n, err := s.Records().Count(t.Context(), "n", "", 10, now); n != 10 || err != nil {
			t.Fatalf("after %d deletions Count = %d, %v", i+1, n, err)
		}
	}
	if c := s.writer.counts.known[set]; c.n != 11 {
		t.Errorf("the count was read again: %+v", c)
	}
	change("short", 1, now.Add(time.Minute))
	check(now)
	live--
	check(now.Add(2 * time.Minute))
	for i := range 20 {
		change(fmt.Sprint("k", 10+i), -1, time.Time{})
	}
	live = 9 // k30 to k39 without two, and the short one
	check(now)
}
