package client

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

func TestRotation(t *testing.T) {
	swap := func(l *listing, f func(*wire.KeyHistory)) {
		history := l.keys[sarah]
		f(&history)
		l.keys[sarah] = history
	}
	tests := []struct {
		name   string
		rotate func(t *testing.T, l *listing)
		follow bool
	}{
		{"one step, card as it was signed", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), false)
		}, true},
		{"one step, text recomputed", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), false)
			swap(l, func(h *wire.KeyHistory) { h.Keys[1].ProofText = "" })
		}, true},
		{"one step, card changed since and kept", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), true)
			l.cards[sarah] = testCard(sarah, key(2)).With("name", wire.Text("Renamed"))
		}, true},
		{"one step, card changed since and lost", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), false)
			l.cards[sarah] = testCard(sarah, key(2)).With("name", wire.Text("Renamed"))
		}, false},
		{"two steps with their cards", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(3)), key(3), key(1), true)
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(3), true)
		}, true},
		{"two steps, the first without its card", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(3)), key(3), key(1), false)
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(3), false)
		}, false},
		{"replacement without the old key", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(9), false)
			swap(l, func(h *wire.KeyHistory) { h.Keys[0].PublicKey = key(1).PublicText() })
		}, false},
		{"no proof by the old key", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), false)
			swap(l, func(h *wire.KeyHistory) { h.Keys[1].PreviousProof = "" })
		}, false},
		{"no proof by the new key", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), false)
			swap(l, func(h *wire.KeyHistory) { h.Keys[1].Proof = h.Keys[1].PreviousProof })
		}, false},
		{"no history", func(_ *testing.T, l *listing) { l.put(sarah, key(2)) }, false},
		{"a history that begins later", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), false)
			swap(l, func(h *wire.KeyHistory) { h.Keys = h.Keys[1:] })
		}, false},
		{"a history that leads elsewhere", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(3)), key(3), key(1), true)
			l.put(sarah, key(2))
		}, false},
		{"an endless history", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), false)
			swap(l, func(h *wire.KeyHistory) {
				for range maxRotations {
					h.Keys = append([]wire.KeyChange{{PublicKey: key(5).PublicText()}}, h.Keys...)
				}
			})
		}, false},
		{"made for another directory", func(t *testing.T, l *listing) {
			l.rotate(t, other, testCard(sarah, key(2)), key(2), key(1), false)
		}, false},
		{"made for another agent", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard("am_chris", key(2)), key(2), key(1), true)
			l.keys[sarah] = wire.KeyHistory{AgentID: sarah, Keys: l.keys["am_chris"].Keys}
			l.put(sarah, key(2))
		}, false},
		{"a renewal by the old key, signed again by the new one", func(t *testing.T, l *listing) {
			// The directory takes the proof of an ordinary renewal and adds a signature under the same text.
			l.rotate(t, home, testCard(sarah, key(1)), key(2), key(1), true)
			swap(l, func(h *wire.KeyHistory) { h.Keys[1].PublicKey = key(2).PublicText() })
			l.put(sarah, key(2))
		}, false},
		{"a key chain on the card", func(t *testing.T, l *listing) { l.chain(t, sarah, key(1), key(3), key(2)) }, true},
		{"a key chain from another key", func(t *testing.T, l *listing) { l.chain(t, sarah, key(3), key(2)) }, false},
		{"a key chain to another key", func(t *testing.T, l *listing) {
			l.chain(t, sarah, key(1), key(3))
			l.cards[sarah] = l.cards[sarah].With("public_key", wire.Text(key(2).PublicText()))
		}, false},
		{"a key chain of another agent", func(t *testing.T, l *listing) {
			l.chain(t, "am_chris", key(1), key(2))
			l.cards[sarah] = l.cards["am_chris"].With("agent_id", wire.Text(string(sarah)))
		}, false},
		{"a renewal by the old key, signed again by the new one, without the card", func(t *testing.T, l *listing) {
			l.rotate(t, home, testCard(sarah, key(1)), key(2), key(1), false)
			l.put(sarah, key(2))
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newListing()
				l.put(sarah, key(1))
				var reported changes
				cards := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t), OnKeyChange: reported.note})
				v := &Verifier{Cards: cards}
				if _, err := v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(1), time.Now()), Origin{}, time.Now()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute)
				tt.rotate(t, l)
				checked, err := v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(2), time.Now()), Origin{}, time.Now())
				if got := err == nil; got != tt.follow {
					t.Errorf("followed: %v, want %v (%v)", got, tt.follow, err)
				}
				if err != nil && !errors.Is(err, wire.ErrSignature) {
					t.Errorf("Authenticate() = %v, want ErrSignature", err)
				}
				if err == nil && !checked.Pinned.Equal(time.Now()) {
					t.Errorf("pinned at %v, want now", checked.Pinned)
				}
				if got := len(reported.list) == 0; got != tt.follow {
					t.Errorf("the owner was notified %d times, followed %v", len(reported.list), tt.follow)
				}
				pin, _ := cards.loadPin(t.Context(), sarah, time.Now())
				want := key(1)
				if tt.follow {
					want = key(2)
				}
				if pin.Fingerprint != want.Public().Fingerprint() {
					t.Errorf("pinned %s", pin.Fingerprint)
				}
			})
		})
	}
}

// TestRotationAtReferenceDirectory checks that the owner must decide about a changed key at the existing directory,
// which has no key history.
func TestRotationAtReferenceDirectory(t *testing.T) {
	d := reference(t, "card", "keys")
	recs := records(t)
	var reported changes
	c := NewCards(CardsConfig{Directories: []*Directory{d}, HTTP: NewHTTP(HTTPConfig{}), Records: recs, OnKeyChange: reported.note})
	pin := storedPin{Pin: Pin{Agent: referenceID, Fingerprint: key(1).Public().Fingerprint(), PublicKey: key(1).PublicText()}}
	if err := recs.Apply(t.Context(), []store.Change{pin.change(time.Now())}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Lookup(t.Context(), referenceID, Origin{}, time.Now()); !errors.Is(err, wire.ErrSignature) || len(reported.list) != 1 {
		t.Errorf("Lookup() = %v, reported %v", err, reported.list)
	}
}

func TestProofTextSpelling(t *testing.T) {
	d := NewDirectory("http://127.0.0.1:3141/v1", nil, http.DefaultTransport)
	digest := [32]byte{1}
	for claimed, same := range map[string]bool{
		"http://localhost:3141/v1":  true,
		"http://[::1]:3141/v1":      true,
		"http://localhost:3142/v1":  false,
		"https://localhost:3141/v1": false,
		"http://evil.example/v1":    false,
	} {
		text := wire.KeyProofText("PUT", "/v1/agents/am_sarah", claimed, "now", digest)
		if got := string(proofText(d, sarah, "now", digest, string(text))) == string(text); got != same {
			t.Errorf("proofText() takes %s: %v, want %v", claimed, got, same)
		}
	}
}

// chain lists a card with the last of keys, a key chain from the first key, and no history.
func (l *listing) chain(t *testing.T, id wire.AgentID, keys ...*signing.PrivateKey) {
	t.Helper()
	text := ""
	for i := range keys[1:] {
		var err error
		if text, err = keys[i].ExtendKeyChain(id, text, keys[i+1], time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	l.put(id, keys[len(keys)-1])
	l.cards[id] = l.cards[id].With("metadata", wire.Obj(wire.Member{Key: wire.MetaKeyChain, Value: wire.Text(text)}))
}
