package mailbox

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestMailInOrder: messages of one millisecond are listed in the order of their arrival.
func TestMailInOrder(t *testing.T) {
	counts, now := &Counts{}, wire.Now()
	var keys []string
	for range 100 {
		keys = append(keys, counts.NewKey(now))
	}
	if !slices.IsSorted(keys) {
		t.Errorf("keys of one moment: %v", keys)
	}
	if next := counts.NewKey(now.Add(time.Millisecond)); next < keys[99] || len(next) != mailKeyLen {
		t.Errorf("after %s came %s", keys[99], next)
	}
}

// TestRelayIDs: only the owner that got a relay id can use it.
func TestRelayIDs(t *testing.T) {
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, InitialMmapSize: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	r := &Relay{cfg: Config{Secret: cursor.NewKey(db.Records(), "directory")}}
	const alice, bob = "alice-credential-1", "bob-credential-22"
	key := r.counts.NewKey(wire.Now())
	id, err := r.relayID(t.Context(), credential.HashOf(alice), key)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.openRelayID(t.Context(), credential.HashOf(alice), id); got != key || err != nil {
		t.Errorf("opened: %q, %v", got, err)
	}
	if _, err := r.openRelayID(t.Context(), credential.HashOf(bob), id); !errors.Is(err, wire.ErrRoute) {
		t.Errorf("another's: %v", err)
	}
	for i := range id {
		wrong := id[:i] + string(id[i]^1) + id[i+1:]
		if _, err := r.openRelayID(t.Context(), credential.HashOf(alice), wrong); !errors.Is(err, wire.ErrRoute) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	for _, wrong := range []string{"", relayPrefix, id + "a", id[:len(id)-1], strings.ToUpper(id)} {
		if _, err := r.openRelayID(t.Context(), credential.HashOf(alice), wrong); !errors.Is(err, wire.ErrRoute) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
