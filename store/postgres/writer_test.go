package postgres

import (
	"errors"
	"testing"

	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestLeaderReturns: a caller whose unit is committed returns, and leaves the units that were queued meanwhile to their
// own callers.
func TestLeaderReturns(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: pgtest.Database(t)})
	for i := range 50 {
		later := &unit{plan: func(*txn) (func() error, error) { return nil, nil }, err: make(chan error, 1)}
		err := s.writer.do(t.Context(), needs{}, func(*txn) (func() error, error) { return nil, s.writer.enqueue(later) })
		if err != nil || len(s.writer.queue) != 1 {
			t.Fatalf("call %d: %v, %d units wait, want 1", i, err, len(s.writer.queue))
		}
		if err := errors.Join(s.Ping(t.Context()), <-later.err); err != nil {
			t.Fatal(err)
		}
	}
}
