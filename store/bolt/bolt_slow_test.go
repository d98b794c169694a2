//go:build slow

package bolt

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestShared runs the suite for several handles. On this engine all of them are in one process.
func TestShared(t *testing.T) {
	storetest.RunShared(t, func(t *testing.T, ttl time.Duration) storetest.Shared {
		s := open(t, filepath.Join(t.TempDir(), "mesh.db"), Config{LeaseTTL: ttl})
		return storetest.Shared{Handle: func(name string) store.Store { return s.Handle(name) }, Close: s.Close}
	})
}
