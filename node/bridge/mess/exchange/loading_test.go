package exchange

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// flakyStore fails every listing while broken is set.
type flakyStore struct {
	store.Store
	broken bool
	lists  int
}

type flakyRecords struct {
	store.Records
	s *flakyStore
}

func (s *flakyStore) Records() store.Records { return flakyRecords{s.Store.Records(), s} }

func (r flakyRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	r.s.lists++
	if r.s.broken {
		return store.RecordPage{}, store.ErrUnavailable
	}
	return r.Records.List(ctx, ns, term, after, limit, now)
}

// TestLoadAgain: a store that cannot be read for a moment does not disable the exchange until a restart. While the
// store fails, calls do not make the exchange read it without pauses.
func TestLoadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mess.db"), bolt.Config{MinFree: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		s := &flakyStore{Store: db, broken: true}
		x := New(Config{Store: s})
		for range 3 {
			if err := x.Load(); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("Load() = %v, want %v", err, store.ErrUnavailable)
			}
		}
		if s.lists != 1 {
			t.Errorf("the store was read %d times, want once within a second", s.lists)
		}
		s.broken = false
		time.Sleep(loadRetry)
		if err := x.Load(); err != nil {
			t.Errorf("Load() of a store that can be read again = %v", err)
		}
		read := s.lists
		if err := x.Load(); err != nil || s.lists != read {
			t.Errorf("Load() = %v after %d more reads, want none", err, s.lists-read)
		}
	})
}
