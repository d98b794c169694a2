package link

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an event that must happen.
const patience = time.Minute

func openStore(t testing.TB) store.Store {
	t.Helper()
	st, err := bolt.Open(context.Background(), t.TempDir()+"/link.db", bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}
