package directory

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// cardView is a card with its response headers, built once for each revision. Responses share the header slices, so
// handlers must not change them.
type cardView struct {
	rev             store.Rev
	expires         time.Time
	registered      time.Time
	written         time.Time // when the card was registered or renewed
	verificationEnd time.Time // when verification changes without a write of the card; zero for never

	etag, modified, length []string
	updated                time.Time // in whole seconds, like Last-Modified
	header                 []string  // AgentMesh-Verification
	record                 []byte    // JSON of a [wire.CardRecord] after its card
	alive, keySince        time.Time // of the last answered probe, and of the current key
	credential             string    // hash of the credential, in hex; "" for a card of a mirrored directory

	body     []byte    // nil if loadView has not read it, or if it is too large to cache
	read     time.Time // when body was read from the store
	position uint64    // of the feed, before body was read
}

const (
	maxKeptBody = 8 << 10 // bytes of a body in the cache
	// maxKeptAge bounds how long a cached body or page is served without reading the store. A write by this process
	// drops it at once, and Config.FeedPosition reveals writes by other processes.
	maxKeptAge = 5 * time.Second
)

func (v *cardView) isCurrent(now time.Time) bool {
	return v.verificationEnd.IsZero() || now.Before(v.verificationEnd)
}

// canServe reports whether the view may be served without reading the store, if the feed is at position.
func (v *cardView) canServe(now time.Time, position uint64) bool {
	age := now.Sub(v.read)
	return v.body != nil && v.position == position && 0 <= age && age < maxKeptAge && v.isCurrent(now) && (v.expires.IsZero() || now.Before(v.expires))
}

// viewCache keeps the most recently used views. It accepts a view only if no card was written since the caller of add
// called generation. Otherwise a slow reader could bring back a view that a writer has removed.
type viewCache struct {
	byID *lru.Cache[string, *cardView]

	mu  sync.Mutex
	gen uint64 // number of writes so far
}

func newViewCache(n int) *viewCache { return &viewCache{byID: newCache[*cardView](n)} }

func newCache[V any](n int) *lru.Cache[string, V] {
	c, err := lru.New[string, V](n)
	if err != nil {
		panic("directory: a cache must hold at least one value")
	}
	return c
}

// generation returns the number of writes so far. Call it before the read of a card that is passed to add.
func (vs *viewCache) generation() uint64 {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.gen
}

// add caches v unless a card was written since generation returned gen.
func (vs *viewCache) add(id string, v *cardView, gen uint64) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if gen == vs.gen {
		vs.byID.Add(id, v)
	}
}

// drop removes the view of a card that was written.
func (vs *viewCache) drop(id string) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.gen++
	vs.byID.Remove(id)
}

func (vs *viewCache) clear() {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.gen++
	vs.byID.Purge()
}

// feedPosition returns the newest position of the feed, or 0 if this process alone writes. A card that was read after a
// call is current while feedPosition returns the same number.
func feedPosition(ctx context.Context, r *Registry) (uint64, error) {
	if r.cfg.FeedPosition == nil {
		return 0, nil
	}
	return r.cfg.FeedPosition(ctx)
}

// loadView returns the view of the card with this id, and the card's body.
func (r *Registry) loadView(ctx context.Context, id wire.AgentID, now time.Time) (*cardView, []byte, error) {
	position, err := feedPosition(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	cached, ok := r.views.byID.Peek(string(id)) // not Get, because add moves the view up in the LRU
	if ok && cached.canServe(now, position) {
		return cached, cached.body, nil
	}
	gen := r.views.generation()
	card, err := listing.Get(ctx, r.cards, id, now)
	if err != nil {
		return nil, nil, err
	}
	var v *cardView
	if ok && cached.rev == card.Rev && cached.isCurrent(now) {
		v = new(*cached) // a response may be using the cached view
	} else if v, err = newView(card, now); err != nil {
		return nil, nil, err
	}
	if len(card.Body) <= maxKeptBody {
		v.body, v.read, v.position = card.Body, now, position
	}
	r.views.add(card.ID, v, gen)
	return v, card.Body, nil
}

// view returns the view of c, perhaps from the cache and without body. gen is the generation before the caller read c.
func (r *Registry) view(c store.Card, gen uint64, now time.Time) (*cardView, error) {
	if v, ok := r.views.byID.Get(c.ID); ok && v.rev == c.Rev && v.isCurrent(now) {
		return v, nil
	}
	v, err := newView(c, now)
	if err != nil {
		return nil, err
	}
	r.views.add(c.ID, v, gen)
	return v, nil
}

// newView builds the view of a card, without the body.
func newView(c store.Card, now time.Time) (*cardView, error) {
	m, err := listing.ParseHead(c)
	if err != nil {
		return nil, err
	}
	verification := m.Verification(now)
	record := verification.AppendJSON([]byte(`,"verification":`))
	if m.Proof != "" {
		record = wire.AppendString(append(record, `,"key_proof":`...), m.Proof)
	}
	record = wire.AppendString(append(record, `,"registered_at":`...), wire.FormatTime(c.Registered))
	record = append(wire.AppendString(append(record, `,"expires_at":`...), wire.FormatTime(c.Expires)), '}')
	v := &cardView{
		rev:        c.Rev,
		expires:    c.Expires,
		registered: c.Registered,
		written:    c.Updated,
		etag:       []string{httpapi.EntityTag(c.Body)},
		modified:   []string{c.Updated.UTC().Format(http.TimeFormat)},
		length:     []string{strconv.Itoa(len(c.Body))},
		updated:    c.Updated.UTC().Truncate(time.Second),
		header:     []string{"key=" + stamp(verification.Key) + "; endpoint=" + stamp(verification.Endpoint) + "; alive=" + stamp(verification.Alive)},
		record:     record,
		alive:      m.Alive, keySince: m.KeySince,
		verificationEnd: m.ChangesAt(now),
	}
	if c.Owner != [32]byte{} {
		v.credential = hex.EncodeToString(c.Owner[:])
	}
	return v, nil
}

// stamp formats a time for the header AgentMesh-Verification (AM-61); nil becomes "null".
func stamp(t *time.Time) string {
	if t == nil {
		return "null"
	}
	return wire.FormatTime(*t)
}

// Record returns the card with this id and what the directory verified about it.
func (r *Registry) Record(ctx context.Context, id wire.AgentID) (wire.CardRecord, error) {
	now := wire.Now()
	c, err := listing.Get(ctx, r.cards, id, now)
	if err != nil {
		return wire.CardRecord{}, err
	}
	return listing.NewRecord(c, now)
}

// Keys returns the key history of the card with this id (AM-60).
func (r *Registry) Keys(ctx context.Context, id wire.AgentID) (wire.KeyHistory, error) {
	c, err := listing.Get(ctx, r.cards, id, wire.Now())
	if err != nil {
		return wire.KeyHistory{}, err
	}
	m, err := listing.ParseMeta(c)
	if err != nil {
		return wire.KeyHistory{}, err
	}
	key, err := listing.Text(c, "public_key")
	if err != nil {
		return wire.KeyHistory{}, fmt.Errorf("read card %s: %w", c.ID, err)
	}
	return m.History(c, key), nil
}

// CredentialOf returns the hash of the credential of the card with this id. It returns "" for an unknown card, and for
// a card of a mirrored directory.
func (r *Registry) CredentialOf(ctx context.Context, id wire.AgentID) (string, error) {
	v, _, err := r.loadView(ctx, id, wire.Now())
	switch {
	case errors.Is(err, wire.ErrNoAgent):
		return "", nil
	case err != nil:
		return "", err
	}
	return v.credential, nil
}
