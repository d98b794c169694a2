//go:build slow && !race

package bolt

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestDueAmongAMillion is not built for the race detector, under which it would write for minutes in one goroutine.
func TestDueAmongAMillion(t *testing.T) {
	storetest.DueAmong(t, open(t, filepath.Join(t.TempDir(), "mesh.db"), Config{}), 1_000_000, 200*time.Microsecond)
}
