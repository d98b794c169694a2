package bolt

import (
	"path/filepath"
	"testing"

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
