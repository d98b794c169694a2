package bolt

import (
	"context"
	"path/filepath"
	"testing"

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

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, filepath.Join(t.TempDir(), "mesh.db"), Config{})
	})
}
