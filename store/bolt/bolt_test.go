package bolt

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/storetest"
)

func TestMain(m *testing.M) {
	if childMain() {
		return
	}
	goleak.VerifyTestMain(m)
}

// open opens a database that is closed and checked when the test ends.
func open(t testing.TB, path string, cfg Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		check(t, path)
	})
	return s
}

func check(t testing.TB, path string) {
	t.Helper()
	// The context of a test has ended when its cleanup runs.
	if err := Check(context.WithoutCancel(t.Context()), path); err != nil {
		t.Error(err)
	}
}

// compact copies the closed database src without its free pages to dst.
func compact(t testing.TB, src, dst string) error {
	t.Helper()
	from, err := openOffline(src)
	if err != nil {
		return err
	}
	defer from.Close()
	return compactFrom(t.Context(), from, dst)
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, filepath.Join(t.TempDir(), "mesh.db"), Config{})
	})
}

// TestLeasesWithoutEnd: with the default configuration a lease lasts as long as its handle, and nothing renews it.
func TestLeasesWithoutEnd(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "mesh.db"), Config{})
	session := store.NewSession(s.Leases(), slog.New(slog.DiscardHandler))
	other := s.Handle("other")
	done := false
	session.Do(t.Context(), "node", func(ctx context.Context) {
		if _, err := other.Leases().Acquire(ctx, "node"); !errors.Is(err, store.ErrLeaseTaken) {
			t.Errorf("Acquire by another handle = %v, want ErrLeaseTaken", err)
		}
		list, err := s.Leases().List(ctx)
		if err != nil || len(list) != 1 || list[0].Lease != *store.LeaseOf(ctx) || !list[0].Until.IsZero() {
			t.Errorf("List = %v, %v, want one lease without an end", list, err)
		}
		done = true
	})
	if !done {
		t.Error("the duty was not done")
	}
	if list, err := s.Leases().List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List = %v, %v after the duty was done, want nothing", list, err)
	}
}

// TestFencesGrow: a fence under which something was stored is smaller than every fence after a restart.
func TestFencesGrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	var last uint64
	for range 3 {
		s, err := Open(t.Context(), path, Config{})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			lease, err := s.Leases().Acquire(t.Context(), "node")
			if err != nil || lease.Fence <= last {
				t.Errorf("Acquire = %v, %v, want a fence above %d", lease, err, last)
			}
			last = lease.Fence
			if err := s.Leases().Release(t.Context(), []store.Lease{lease}); err != nil {
				t.Error(err)
			}
		}
		lease, err := s.Leases().Acquire(t.Context(), "node")
		if err != nil {
			t.Fatal(err)
		}
		last = lease.Fence
		c := store.Change{Record: store.Record{NS: "test", Key: "k"}, IfRev: store.Any, Held: &lease}
		if err := s.Records().Apply(t.Context(), []store.Change{c}, time.Now()); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
