package node_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// keyring is what a node's configuration keeps over restarts: the keys, and the secret of its bearers.
type keyring struct {
	keys       []*signing.PrivateKey // the last is the current one
	lostFirst  bool
	breaks     bool // SaveKey fails
	credential client.Credential
}

func newKeyring() *keyring {
	return &keyring{keys: []*signing.PrivateKey{meshtest.Key("lone")}, credential: client.NewCredential()}
}

// configure returns a configuration that uses the keyring and joins directories.
func (r *keyring) configure(t *testing.T, meshes ...*meshtest.Mesh) func(*node.Config) {
	return func(cfg *node.Config) {
		for _, m := range meshes {
			cfg.Directories = append(cfg.Directories, client.NewDirectory(m.URL, cfg.HTTP, nil))
		}
		cfg.Credential = r.credential
		current := r.keys[len(r.keys)-1]
		cfg.Identity.Key = current
		card := cfg.Identity.Card.Tree.With("public_key", wire.Text(current.PublicText()))
		var err error
		if cfg.Identity.Card, err = wire.ParseCard(card, wire.CardRules{AllowHTTP: func(string) bool { return true }}); err != nil {
			t.Fatal(err)
		}
		cfg.SaveKey = func(key *signing.PrivateKey, card wire.Value) error {
			if r.breaks {
				return errors.New("the disk is full")
			}
			if card.GetStr("public_key") != key.PublicText() {
				t.Error("the card that is stored has another key")
			}
			r.keys = append(r.keys, key)
			return nil
		}
		cfg.RetiredKey = func(fingerprint string) (*signing.PrivateKey, error) {
			for _, k := range r.keys {
				if k.Public().Fingerprint() == fingerprint {
					return k, nil
				}
			}
			return nil, fs.ErrNotExist
		}
		cfg.FirstKey = func(id wire.AgentID) (*signing.PrivateKey, error) {
			if r.lostFirst {
				return nil, fs.ErrNotExist
			}
			return r.keys[0], nil
		}
	}
}

// rotate rotates the key of a node n times.
func rotate(t *testing.T, l *lone, n int) {
	t.Helper()
	for range n {
		if list, err := l.Registrar().RotateKey(t.Context()); err != nil || len(list) > 0 && list[0].Error != "" {
			t.Fatalf("RotateKey = %+v, %v", list, err)
		}
	}
}

// countLinks counts the links of the key chain on the node's card.
func countLinks(l *lone) int {
	chain := l.Card().KeyChain()
	if chain == "" {
		return 0
	}
	return strings.Count(chain, " ") + 1
}

// register registers a node everywhere and returns how each directory verified its id.
func register(t *testing.T, l *lone, meshes ...*meshtest.Mesh) (ids []string) {
	t.Helper()
	list, err := l.Registrar().Register(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range meshes {
		if list[i].State != owner.Registered {
			t.Fatalf("%+v, want it registered", list[i])
		}
		rec, err := m.Directory().Record(t.Context(), l.ID())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, rec.Verification.ID)
	}
	return ids
}

// TestRotatedIDJoinsAnotherDirectory: the chain on the card leads from the id to a rotated key, also after a restart.
// So a directory that never saw the first key accepts the card (AM-2, THREATS 34).
func TestRotatedIDJoinsAnotherDirectory(t *testing.T) {
	first, second, ring, dir := meshtest.New(t), meshtest.New(t), newKeyring(), t.TempDir()
	ring.lostFirst = true // the chain needs only the current key
	l := loneNode(t, dir, &wireTransport{deliver: takes}, ring.configure(t, first))
	id := l.ID()
	register(t, l, first)
	rotate(t, l, 2)
	if got := countLinks(l); got != 2 {
		t.Errorf("the chain has %d links, want 2", got)
	}
	l.stop()
	l = loneNode(t, dir, &wireTransport{deliver: takes}, ring.configure(t, first, second))
	if got := register(t, l, first, second); got[0] != "derived" || got[1] != "derived" || l.ID() != id {
		t.Errorf("the directories say %v of %s, want derived and %s", got, l.ID(), id)
	}
}

// TestRotationCutShort: a rotation that could not store its key leaves the chain unchanged, also after a restart.
func TestRotationCutShort(t *testing.T) {
	mesh, other, ring, dir := meshtest.New(t), meshtest.New(t), newKeyring(), t.TempDir()
	ring.lostFirst = true
	l := loneNode(t, dir, &wireTransport{deliver: takes}, ring.configure(t, mesh))
	register(t, l, mesh)
	rotate(t, l, 1)
	ring.breaks = true
	if _, err := l.Registrar().RotateKey(t.Context()); err == nil {
		t.Fatal("a key that was not stored is in use")
	}
	l.stop()
	ring.breaks = false
	l = loneNode(t, dir, &wireTransport{deliver: takes}, ring.configure(t, mesh, other))
	if got := register(t, l, mesh, other); countLinks(l) != 1 || got[1] != "derived" {
		t.Errorf("after the restart: %d links, %v", countLinks(l), got)
	}
}

// TestKeyChainWithoutRecord: if somebody replaced the key of an agent, or if its chain is full, the agent
// begins a chain with the key that the id is derived from, provided that key was kept. Without that key, the
// directories that list the agent continue, and a new one refuses the id and says why.
func TestKeyChainWithoutRecord(t *testing.T) {
	t.Run("replaced key", func(t *testing.T) {
		for _, lost := range []bool{false, true} {
			mesh, other, ring := meshtest.New(t), meshtest.New(t), newKeyring()
			old := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, ring.configure(t, mesh))
			register(t, old, mesh)
			old.stop()
			ring.keys, ring.lostFirst = append(ring.keys, meshtest.Key("second")), lost
			l := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, ring.configure(t, mesh, other)) // no record of a chain
			list, err := l.Registrar().Register(t.Context(), "")
			if err != nil || list[0].State != owner.Registered {
				t.Fatalf("lost %v: %+v, %v", lost, list, err)
			}
			if !lost && (list[1].State != owner.Registered || countLinks(l) != 1) {
				t.Errorf("with the first key: %+v, %d links", list[1], countLinks(l))
			}
			if lost && (!list[1].Refused || !strings.Contains(list[1].Error, wire.ErrIDReserved.Message) || list[1].Hint == "") {
				t.Errorf("without the first key: %+v", list[1])
			}
		}
	})
	t.Run("full", func(t *testing.T) {
		ring := newKeyring()
		l := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, ring.configure(t))
		rotate(t, l, signing.MaxKeyChain)
		if got := countLinks(l); got != signing.MaxKeyChain {
			t.Errorf("%d links, want %d", got, signing.MaxKeyChain)
		}
		rotate(t, l, 1)
		if err := signing.ProvesID(l.Card(), ring.keys[len(ring.keys)-1].Public(), time.Now()); err != nil || countLinks(l) != 1 {
			t.Errorf("after a rotation more: %d links, %v", countLinks(l), err)
		}
		ring.lostFirst = true
		rotate(t, l, signing.MaxKeyChain)
		if got := l.Card().KeyChain(); got != "" {
			t.Errorf("without the first key the full chain is not dropped: %s", got)
		}
	})
}
