package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// key returns the n-th test key.
func key(n byte) *signing.PrivateKey {
	return signing.NewEd25519FromSeed(bytes.Repeat([]byte{n}, 32))
}

// records opens a database for the test.
func records(t testing.TB) store.Records {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "test.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.Records()
}

// listing is a directory that serves the cards that the test puts into it, and counts the requests.
type listing struct {
	mu          sync.Mutex
	cards       map[wire.AgentID]wire.Value
	keys        map[wire.AgentID]wire.KeyHistory
	control     string // Cache-Control
	down        bool
	fetched     int // card lookups
	notModified int // number of answers with 304
	held        chan struct{}
}

func newListing() *listing {
	return &listing{cards: map[wire.AgentID]wire.Value{}, keys: map[wire.AgentID]wire.KeyHistory{}}
}

// at returns the directory under this base URL, as if it were in another process.
func (l *listing) at(base string) *Directory {
	d := NewDirectory(base, nil, InProcess(l))
	d.inside = false
	return d
}

func (l *listing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, id, _ := strings.Cut(r.URL.Path, "/agents/")
	id, suffix, _ := strings.Cut(id, "/")
	l.mu.Lock()
	defer l.mu.Unlock()
	if suffix == "keys" {
		if history, ok := l.keys[wire.AgentID(id)]; ok {
			json.NewEncoder(w).Encode(history)
			return
		}
		http.NotFound(w, r)
		return
	}
	l.fetched++
	if l.held != nil {
		l.mu.Unlock()
		<-l.held
		l.mu.Lock()
	}
	card, ok := l.cards[wire.AgentID(id)]
	switch {
	case l.down:
		w.WriteHeader(http.StatusBadGateway)
		return
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		w.Write(wire.ErrNoAgent.AppendJSON(nil))
		return
	}
	digest := signing.Digest(card)
	etag := `"` + hexDigest(digest) + `"`
	w.Header().Set("ETag", etag)
	if l.control != "" {
		w.Header().Set("Cache-Control", l.control)
	}
	if r.Header.Get("If-None-Match") == etag {
		l.notModified++
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Write(card.JSON())
}

func hexDigest(d [32]byte) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for _, c := range d {
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}

func (l *listing) put(id wire.AgentID, k *signing.PrivateKey) wire.Value {
	card := testCard(id, k)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cards[id] = card
	return card
}

func (l *listing) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fetched
}

// rotate replaces the registered card with card and keeps both proofs, as our directory does (AM-60).
func (l *listing) rotate(t testing.TB, base string, card wire.Value, to, from *signing.PrivateKey, keepCard bool) {
	t.Helper()
	id := wire.AgentID(card.GetStr("agent_id"))
	var header http.Header
	d := NewDirectory(base, nil, InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		io.WriteString(w, `{"agent_id":"`+string(id)+`","expires_at":"2036-03-21T10:30:00Z"}`)
	})))
	if _, err := d.Rotate(t.Context(), card, NewCredential(), to, from); err != nil {
		t.Fatal(err)
	}
	proof, _ := wire.ParseKeyProof(header.Get(wire.HeaderKeyProof))
	change := wire.KeyChange{
		PublicKey: to.PublicText(), Since: time.Now(),
		Proof: header.Get(wire.HeaderKeyProof), PreviousProof: header.Get(wire.HeaderPreviousKeyProof),
		ProofText: string(wire.KeyProofText(http.MethodPut, d.path+"/agents/"+string(id), base, proof.Stamp, signing.Digest(card))),
	}
	if keepCard {
		change.Card = card
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	history := l.keys[id]
	if len(history.Keys) == 0 {
		history = wire.KeyHistory{AgentID: id, Keys: []wire.KeyChange{{PublicKey: from.PublicText()}}}
	}
	history.Keys = append(history.Keys, change)
	l.keys[id], l.cards[id] = history, card
}

// signMessage returns a message signed with k. Its sender is the agent with the id from.
func signMessage(t testing.TB, from, to wire.AgentID, k *signing.PrivateKey, at time.Time) wire.Message {
	t.Helper()
	return signDraft(t, wire.Draft{
		ID: wire.NewMessageID(), Conversation: "conv_1", From: from, To: to, Time: at, Intent: wire.Deliver,
		Payload: wire.Obj(wire.Member{Key: "action", Value: wire.Text("deliver")}),
	}, k)
}

func signDraft(t testing.TB, d wire.Draft, k *signing.PrivateKey) wire.Message {
	t.Helper()
	tree, err := k.SignValue(d.Tree())
	if err != nil {
		t.Fatal(err)
	}
	m, err := wire.ParseMessage(tree)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// forgeMessage returns a message that names from as its sender, but is not signed with its key.
func forgeMessage(t testing.TB, from wire.AgentID, at time.Time) wire.Message {
	return signMessage(t, from, "am_me", key(99), at)
}

// changes collects the key changes that were reported to the owner.
type changes struct {
	mu   sync.Mutex
	list []KeyChange
}

func (c *changes) note(_ context.Context, change KeyChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, change)
}
