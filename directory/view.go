package directory

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// view is what is written around a stored card, made once for each revision of it. The header values are shared
// by every answer and never changed.
type view struct {
	rev     store.Rev
	expires time.Time
	until   time.Time // verification changes then; zero for never

	etag, modified, length []string
	updated                time.Time // whole seconds, as Last-Modified has it
	header                 []string  // AgentMesh-Verification
	verification           []byte    // JSON

	body []byte    // nil where it is too large to keep
	read time.Time // when body was read from the store
}

const (
	maxKeptBody = 8 << 10
	// maxKeptAge is how long a kept body may go without a look at the store: writes of this process drop it at
	// once, and those of another instance on the same store are seen within this time. Caches outside may keep a
	// card for cardAge.
	maxKeptAge = 5 * time.Second
)

// settled says whether what the view shows about verification holds at now.
func (v *view) settled(now time.Time) bool { return v.until.IsZero() || now.Before(v.until) }

// serves says whether the view may be answered from at now without a look at the store.
func (v *view) serves(now time.Time) bool {
	age := now.Sub(v.read)
	return v.body != nil && 0 <= age && age < maxKeptAge && v.settled(now) && (v.expires.IsZero() || now.Before(v.expires))
}

// views keeps the most recently used views. A view may enter only if no card was written since it was read, so
// that a slow reader cannot bring back what a writer has dropped.
type views struct {
	byID *lru.Cache[string, *view]

	mu  sync.Mutex
	gen uint64 // writes so far
}

func newViews(n int) *views {
	byID, err := lru.New[string, *view](n)
	if err != nil {
		panic("directory: the view cache must hold at least one view")
	}
	return &views{byID: byID}
}

func (vs *views) generation() uint64 {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.gen
}

func (vs *views) add(id string, v *view, gen uint64) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if gen == vs.gen {
		vs.byID.Add(id, v)
	}
}

// drop forgets a card that was written.
func (vs *views) drop(id string) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.gen++
	vs.byID.Remove(id)
}

// served returns the view of a live card, with its body.
func (r *Registry) served(ctx context.Context, id wire.AgentID, now time.Time) (*view, []byte, error) {
	known, ok := r.views.byID.Get(string(id))
	if ok && known.serves(now) {
		return known, known.body, nil
	}
	gen := r.views.generation()
	card, err := r.get(ctx, id, now)
	if err != nil {
		return nil, nil, err
	}
	var v *view
	if ok && known.rev == card.Rev && known.settled(now) {
		v = new(*known) // the other one may be in use
	} else if v, err = newView(card, now); err != nil {
		return nil, nil, err
	}
	if len(card.Body) <= maxKeptBody {
		v.body, v.read = card.Body, now
	}
	r.views.add(card.ID, v, gen)
	return v, card.Body, nil
}

// view returns the view of a card that was read after generation gen.
func (r *Registry) view(c store.Card, gen uint64, now time.Time) (*view, error) {
	if v, ok := r.views.byID.Get(c.ID); ok && v.rev == c.Rev && v.settled(now) {
		return v, nil
	}
	v, err := newView(c, now)
	if err != nil {
		return nil, err
	}
	r.views.add(c.ID, v, gen)
	return v, nil
}

func newView(c store.Card, now time.Time) (*view, error) {
	m, err := parseMeta(c)
	if err != nil {
		return nil, err
	}
	shown := m.verification(now)
	beside, err := json.Marshal(shown)
	if err != nil {
		return nil, fmt.Errorf("write verification: %w", err)
	}
	v := &view{
		rev:          c.Rev,
		expires:      c.Expires,
		etag:         []string{etag(c.Body)},
		modified:     []string{c.Updated.UTC().Format(http.TimeFormat)},
		length:       []string{strconv.Itoa(len(c.Body))},
		updated:      c.Updated.UTC().Truncate(time.Second),
		header:       []string{"key=" + stamp(shown.Key) + "; endpoint=" + stamp(shown.Endpoint) + "; alive=" + stamp(shown.Alive)},
		verification: beside,
	}
	if settles := m.settles(); now.Before(settles) {
		v.until = settles
	}
	return v, nil
}

// etag is a strong validator of a body.
func etag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
}

// stamp writes a time for the header of AM-61.
func stamp(t *time.Time) string {
	if t == nil {
		return "null"
	}
	return wire.FormatTime(*t)
}

// get returns the live card of id.
func (r *Registry) get(ctx context.Context, id wire.AgentID, now time.Time) (store.Card, error) {
	if !id.Valid() {
		return store.Card{}, wire.ErrNoAgent
	}
	c, err := r.cards.Get(ctx, string(id), now)
	if errors.Is(err, store.ErrNotFound) {
		return store.Card{}, wire.ErrNoAgent
	}
	return c, err
}

// Get returns the card of id as it is served. An unknown or expired one is [wire.ErrNoAgent].
func (r *Registry) Get(ctx context.Context, id wire.AgentID) (wire.Value, error) {
	c, err := r.get(ctx, id, clock())
	if err != nil {
		return wire.Value{}, err
	}
	return wire.ParseObject(c.Body)
}

// Record returns the card of id with what the directory knows beside it.
func (r *Registry) Record(ctx context.Context, id wire.AgentID) (wire.CardRecord, error) {
	now := clock()
	c, err := r.get(ctx, id, now)
	if err != nil {
		return wire.CardRecord{}, err
	}
	rec, _, err := record(c, now)
	return rec, err
}

// record is a stored card with what is shown beside it.
func record(c store.Card, now time.Time) (wire.CardRecord, meta, error) {
	tree, err := wire.ParseObject(c.Body)
	if err != nil {
		return wire.CardRecord{}, meta{}, fmt.Errorf("read card %s: %w", c.ID, err)
	}
	m, err := parseMeta(c)
	if err != nil {
		return wire.CardRecord{}, meta{}, err
	}
	return wire.CardRecord{
		Card:         tree,
		RegisteredAt: c.Registered,
		ExpiresAt:    c.Expires,
		Verification: m.verification(now),
		KeyProof:     m.Proof,
	}, m, nil
}

// Keys returns how the key of id came to be (AM-60).
func (r *Registry) Keys(ctx context.Context, id wire.AgentID) (wire.KeyHistory, error) {
	c, err := r.get(ctx, id, clock())
	if err != nil {
		return wire.KeyHistory{}, err
	}
	m, err := parseMeta(c)
	if err != nil {
		return wire.KeyHistory{}, err
	}
	key, err := storedText(c, "public_key")
	if err != nil {
		return wire.KeyHistory{}, fmt.Errorf("read card %s: %w", c.ID, err)
	}
	return m.history(c, key), nil
}
