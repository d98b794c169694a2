package bolt

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/storetest"
)

func TestStats(t *testing.T) {
	var mu sync.Mutex
	var commits []Commit
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), Config{Committed: func(c Commit) {
		mu.Lock()
		defer mu.Unlock()
		commits = append(commits, c)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	const records, size = 100, 8 << 10
	put := func(i int, remove bool) {
		rec := store.Record{NS: "x", Key: fmt.Sprint(i), Body: storetest.Text(i, size)}
		if err := s.Records().Apply(t.Context(), []store.Change{{Record: rec, IfRev: store.Any, Delete: remove}}, time.Now()); err != nil {
			t.Error(err)
		}
	}
	var all sync.WaitGroup
	for i := range records {
		all.Go(func() { put(i, false) })
	}
	all.Wait()
	units, bytes := 0, int64(0)
	for _, c := range commits {
		units, bytes = units+c.Units, bytes+c.Bytes
		if c.Took <= 0 || c.Units < 1 {
			t.Errorf("Commit = %+v", c)
		}
	}
	if units != records || bytes < records*size {
		t.Errorf("commits = %d units, %d bytes, want %d and at least %d", units, bytes, records, records*size)
	}
	full := s.Stats()
	if full.FileBytes < records*size || full.Queued != 0 || !full.Writable {
		t.Errorf("Stats() = %+v with %d bytes stored", full, records*size)
	}
	for i := range records {
		put(i, true)
	}
	if empty := s.Stats(); empty.FreeBytes < full.FreeBytes+records*size/2 || empty.FreeBytes > empty.FileBytes {
		t.Errorf("Stats() = %+v after everything was removed, %+v before", empty, full)
	}
	// A unit that only reads commits nothing.
	before := len(commits)
	if err := s.Ping(t.Context()); err != nil || len(commits) != before {
		t.Errorf("Ping = %v, %d commits more", err, len(commits)-before)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if closed := s.Stats(); closed.FileBytes != 0 || closed.FreeBytes != 0 {
		t.Errorf("Stats() after Close = %+v", closed)
	}
}
