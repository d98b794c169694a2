package node

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestIdleNodeWritesNothing: the used limits are stored only after they have changed.
func TestIdleNodeWritesNothing(t *testing.T) {
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "node.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now()
	n := &Node{session: store.NewSession(nil, nil), store: store.Observe(s), meter: acl.NewMeter(acl.DefaultRates())}
	revision := func() store.Rev {
		t.Helper()
		if err := n.saveMeter(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		r, err := s.Records().Get(t.Context(), nsState, keyMeter, now)
		if err != nil {
			t.Fatal(err)
		}
		return r.Rev
	}
	first := revision()
	if again := revision(); again != first {
		t.Errorf("nothing changed, but it was written again: revision %d, want %d", again, first)
	}
	n.meter.Charge(acl.Charge{Sender: "am_chris", Conv: store.ConvKey{Peer: "am_chris", ID: "conv_one"}, New: true}, now)
	if spent := revision(); spent == first {
		t.Error("limits were used, but not written")
	}
}
