package bolt_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestUnitEmptiesLeaves: a unit may remove so many records that leaves of the tree are empty until the commit, at the
// beginning, in the middle or everywhere; the head of a lane is still found, and nothing looks damaged.
func TestUnitEmptiesLeaves(t *testing.T) {
	const many = 700
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "leaves.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now()
	for _, test := range []struct {
		name     string
		from, to int
	}{{"the beginning", 0, many - 1}, {"the middle", 1, many - 1}, {"the end", 1, many}, {"all", 0, many}} {
		key := func(i int) string { return fmt.Sprintf("key_%014d", i) }
		var puts, drops, rest []store.Change
		for i := range many {
			rec := store.Record{NS: "leaves", Key: key(i), Lane: "a lane with a long name, as that of a conversation", Due: now}
			puts = append(puts, store.Change{Record: rec})
			drop := store.Change{Record: rec, IfRev: store.Any, Delete: true}
			if test.from <= i && i < test.to {
				drops = append(drops, drop)
			} else {
				rest = append(rest, drop)
			}
		}
		for _, unit := range [][]store.Change{puts, drops} {
			if err := s.Records().Apply(t.Context(), unit, now); err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
		}
		rows, _, err := s.Records().Due(t.Context(), "leaves", now, nil, 10)
		if err != nil || len(rows) != min(1, len(rest)) || len(rest) > 0 && rows[0].Key != rest[0].Record.Key {
			t.Errorf("%s: due = %v, %v, want the first of the %d that are left", test.name, rows, err, len(rest))
		}
		if err := s.Records().Apply(t.Context(), rest, now); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
	}
}
