package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Peer is what we know of another agent.
type Peer struct {
	Card      wire.Card
	Key       *signing.PublicKey
	Directory string    // base URL of the directory that lists it; "" for a card that the owner gave
	Reach     Reach     // how far its endpoint may be
	Pinned    time.Time // when the key was pinned; zero: not yet
	Until     time.Time // when the card must be looked up again
	// EndpointProven reports whether the directory has proven the endpoint (AM-63).
	EndpointProven bool
	// Unproven says why the agent id, which has the shape of a derived one, does not lead to the card's key (AM-2); nil if
	// it does, and for every other id.
	Unproven error

	ownerPin bool // the pin is the owner's doing and stays
	known    bool // the key is the pinned one, also if the pin is due to be written again
}

// IsDoubtful reports whether the owner must accept the card's key first: the agent id does not lead to it, and it is not
// pinned.
func (p Peer) IsDoubtful() bool { return p.Unproven != nil && !p.known }

// CardsConfig configures [NewCards].
type CardsConfig struct {
	// Directories are asked in this order (AM-86), but an agent that is pinned first where it was pinned.
	Directories []*Directory
	// HTTP says which endpoints the profile allows. Required.
	HTTP *HTTP
	// Records keeps pins (namespace "pins") and the cards that the owner gave ("peers"). Nil: pins last as long as
	// the cache remembers the card, and [Cards.AddPeer] is refused.
	Records store.Records
	// KeyCache holds parsed keys. Nil: one of our own.
	KeyCache *signing.KeyCache
	// OnKeyChange is told when a pinned agent shows a key that its old one does not vouch for (AM-11): at most once
	// an hour for an agent and once a day for the same key. It runs in the lookup that found out. Nil: nobody is told.
	OnKeyChange func(ctx context.Context, change KeyChange)
	// Size bounds the cached cards: 4096 where zero. As many lookups that found nothing are remembered.
	Size int
	// LookupsPerMinute is what strangers may make us look up outside this process (AM-43): 60 if zero, without limit if
	// negative.
	LookupsPerMinute int
	Logger           *slog.Logger // nil discards
}

// KeyChange is a key that a pinned agent shows now and that its old key does not vouch for.
type KeyChange struct {
	Agent     wire.AgentID
	Directory string // that shows it
	Old, New  string // fingerprints
	At        time.Time
}

// How long what we know may be used.
const (
	maxFresh    = 10 * time.Minute // AM-45
	missFor     = time.Minute      // AM-43, line 7: the negative cache
	refetchGap  = time.Minute      // AM-11: between fetches that failed signatures ask for
	findTimeout = 2 * lookupTimeout
)

const (
	defaultSize = 4096
	maxWeight   = 64 << 20 // bytes of cached cards, roughly
	keyCache    = 1024
)

// Cards knows the cards of other agents. It is safe for concurrent use.
//
// Strangers decide what is looked up, so everything here is bounded: the cache in number and weight, the lookups per
// minute, and the fetches of one agent's card, of which a sender of bad signatures causes at most one a minute
// whatever the directories say about caching.
type Cards struct {
	cfg    CardsConfig
	budget *rate.Pool // look-ups for strangers
	pool   *verifyPool

	mu      sync.Mutex
	known   *simplelru.LRU[wire.AgentID, *entry]
	weight  int // of known
	missing *simplelru.LRU[wire.AgentID, miss]
	flights map[wire.AgentID]*flight // one per id; as many as there are callers that wait
}

// entry is a cached card. Its fields are guarded by Cards.mu.
type entry struct {
	peer    Peer
	etag    string
	from    *Directory // nil: the owner gave the card
	fetched time.Time  // when a directory last said that this is the card
	asked   time.Time  // when it was last asked, whatever it said
	answer  time.Time  // when it was last asked because the signature of an answer to us failed
	suspect bool       // a signature has failed since fetched
	weight  int
}

// miss is a lookup that brought no card to use.
type miss struct {
	err   error
	until time.Time
}

// flight is a lookup under way; its result may be read when done is closed.
type flight struct {
	done chan struct{}
	peer Peer
	err  error
}

// NewCards returns an empty cache over cfg.
func NewCards(cfg CardsConfig) *Cards {
	if cfg.KeyCache == nil {
		cfg.KeyCache = signing.NewKeyCache(keyCache)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Size <= 0 {
		cfg.Size = defaultSize
	}
	c := &Cards{cfg: cfg, budget: newLookups(cfg.LookupsPerMinute), pool: newVerifyPool(), flights: make(map[wire.AgentID]*flight)}
	// The sizes are positive, so neither call fails.
	c.known, _ = simplelru.NewLRU(cfg.Size, func(_ wire.AgentID, e *entry) { c.weight -= e.weight })
	c.missing, _ = simplelru.NewLRU[wire.AgentID, miss](cfg.Size, nil)
	return c
}

// Lookup returns the sender of a message from origin: within the budget, and from the negative cache if that knows
// better. The error is a *[wire.Error]: ErrUnknownSender, ErrSignature (the pinned key was
// replaced), ErrNoDirectory, ErrRateLimited or ErrUnavailable.
func (c *Cards) Lookup(ctx context.Context, id wire.AgentID, origin Origin, now time.Time) (Peer, error) {
	peer, err := c.get(ctx, id, &origin, now)
	if err == nil {
		peer, err = c.recheck(ctx, peer, now)
	}
	if err != nil {
		return Peer{}, publicError(err)
	}
	return peer, nil
}

// Find returns an agent that our owner wants to write to, whatever strangers have used up, and pins its key. The
// error says what a person can use: [ErrUnknownAgent], [ErrUnreachable], [ErrUnusableCard], a *[KeyChangedError] or an
// *[UnprovenError].
func (c *Cards) Find(ctx context.Context, id wire.AgentID, now time.Time) (Peer, error) {
	peer, err := c.get(ctx, id, nil, now)
	if err == nil {
		peer, err = c.recheck(ctx, peer, now)
	}
	switch {
	case err == nil && peer.IsDoubtful():
		err = &UnprovenError{peer}
	case err == nil && !peer.ownerPin:
		peer, err = c.pin(ctx, peer, true, now)
	}
	if err != nil {
		return Peer{}, fmt.Errorf("find %s: %w", wire.OneLine(string(id), 140), err)
	}
	return peer, nil
}

// get returns the peer from the cache, from a flight that is under way, or from a flight of its own. origin is that of the
// message whose sender is looked up, nil if our owner asks.
func (c *Cards) get(ctx context.Context, id wire.AgentID, origin *Origin, now time.Time) (Peer, error) {
	if !id.Valid() {
		return Peer{}, ErrUnknownAgent
	}
	for {
		c.mu.Lock()
		old, ok := c.known.Get(id)
		if ok && origin != nil && old.peer.ownerPin {
			origin = &Origin{Known: true}
		}
		if ok && old.usable(origin, now) {
			defer c.mu.Unlock()
			return old.peer, nil
		}
		if m, missed := c.missing.Get(id); missed && origin != nil && now.Before(m.until) {
			c.mu.Unlock()
			return Peer{}, &missError{m.err, m.until.Sub(now)}
		}
		f, wait := c.flights[id]
		if !wait {
			f = c.takeOff(id)
		}
		c.mu.Unlock()
		if !wait {
			c.fly(ctx, id, f, old, false, c.payFor(origin), now)
			return f.peer, f.err
		}
		if err := f.wait(ctx); err != nil {
			return Peer{}, err
		}
		if !f.abandoned() {
			return f.peer, f.err
		}
	}
}

// usable reports whether a cached card may be used. There is a minute between fetches, even if the directory lets the card
// be kept for less, of a card whose signatures fail and of one that is looked up for nothing: else a forger could make us
// ask as often as it likes.
func (e *entry) usable(origin *Origin, now time.Time) bool {
	rare := e.suspect || origin != nil && origin.Known
	return now.Before(e.peer.Until) || rare && now.Before(e.fetched.Add(refetchGap))
}

// takeOff registers a flight; the caller holds mu and must fly it.
func (c *Cards) takeOff(id wire.AgentID) *flight {
	f := &flight{done: make(chan struct{})}
	c.flights[id] = f
	return f
}

func (f *flight) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandoned reports whether the caller that flew gave up or could not pay, which says nothing about the agent.
func (f *flight) abandoned() bool { return errors.Is(f.err, errAbandoned) }

func abandon(why error) error { return fmt.Errorf("%w: %w", errAbandoned, why) }

var errAbandoned = errors.New("the caller gave up")

// fly looks the agent up and remembers what came of it. With refresh the cached card and the one that the owner gave
// do not count. pay pays for it.
func (c *Cards) fly(ctx context.Context, id wire.AgentID, f *flight, old *entry, refresh bool, pay *payment, now time.Time) {
	f.err = errAbandoned // what followers see should the lookup panic
	defer func() {
		c.mu.Lock()
		delete(c.flights, id)
		c.mu.Unlock()
		close(f.done)
	}()
	if old != nil { // as it is now: others go on using it
		c.mu.Lock()
		old = new(*old)
		c.mu.Unlock()
	}
	limited, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	found, err := c.fetch(limited, id, old, refresh, pay, now)
	if ctx.Err() != nil && err != nil {
		err = abandon(ctx.Err())
	}
	if errors.Is(err, errAbandoned) {
		f.err = err
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.remember(id, found)
		f.peer, f.err = found.peer, nil
		return
	}
	f.err = err
	unreachable := errors.Is(err, ErrUnreachable)
	if old, ok := c.known.Peek(id); ok && unreachable {
		old.asked = now
	} else if !unreachable {
		c.known.Remove(id)
	}
	if cacheable(err) && !(refresh && unreachable) {
		c.missing.Add(id, miss{err, now.Add(missFor)})
	}
}

// remember puts an entry into the cache; the caller holds mu.
func (c *Cards) remember(id wire.AgentID, e *entry) {
	e.weight = weigh(e.peer.Card.Tree)
	c.known.Remove(id)
	c.known.Add(id, e)
	c.weight += e.weight
	for c.weight > maxWeight && c.known.Len() > 1 {
		c.known.RemoveOldest()
	}
	c.missing.Remove(id)
}

// weigh estimates the memory that a tree holds.
func weigh(v wire.Value) int {
	text, _ := v.Str()
	n := 64 + len(text)
	for e := range v.Elems() {
		n += weigh(e)
	}
	for _, m := range v.Members() {
		n += len(m.Key) + weigh(m.Value)
	}
	return n
}

// drop forgets what the cache knows of id, so that the next lookup reads pins and directories again.
func (c *Cards) drop(id wire.AgentID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Remove(id)
	c.missing.Remove(id)
}

// Refresh fetches the card of id again, but not within a minute of the last time, nor beyond the budget. changed says
// whether the key is another than before. The error is a *[wire.Error], as of [Cards.Lookup].
func (c *Cards) Refresh(ctx context.Context, id wire.AgentID, now time.Time) (peer Peer, changed bool, err error) {
	return c.refresh(ctx, id, &Origin{}, now)
}

// Again is [Cards.Find] past the cache, after a delivery has failed: the agent may have moved since its card was fetched. It
// uses a card for which the directories were asked within gap.
func (c *Cards) Again(ctx context.Context, id wire.AgentID, gap time.Duration, now time.Time) (Peer, error) {
	c.mu.Lock()
	old, ok := c.known.Peek(id)
	f, wait := c.flights[id]
	ask := ok && !wait && !now.Before(old.asked.Add(gap))
	if ask {
		f = c.takeOff(id)
	}
	c.mu.Unlock()
	switch {
	case ask:
		c.fly(ctx, id, f, old, true, nil, now)
		c.answered(id, false, old, now)
	case wait:
		if err := f.wait(ctx); err != nil {
			return Peer{}, err
		}
	}
	return c.Find(ctx, id, now)
}

// refresh is Refresh for a message from origin. An answer to a message of ours has no origin. It is free and has a minute
// of its own: how many answers there are is our doing, and an agent that has just rotated its key answers with the new one.
func (c *Cards) refresh(ctx context.Context, id wire.AgentID, origin *Origin, now time.Time) (peer Peer, changed bool, err error) {
	answer := origin == nil
	for {
		c.mu.Lock()
		old, ok := c.known.Get(id)
		if !ok {
			c.mu.Unlock()
			peer, err = c.get(ctx, id, origin, now)
			if err != nil {
				return Peer{}, false, publicError(err)
			}
			peer, err = c.recheck(ctx, peer, now)
			return peer, err == nil, err
		}
		was := old.peer
		f, wait := c.flights[id]
		if !wait {
			last := old.asked
			if answer {
				last = old.answer
			}
			if now.Before(last.Add(refetchGap)) {
				c.mu.Unlock()
				return was, false, nil
			}
			f = c.takeOff(id)
		}
		c.mu.Unlock()
		if !wait {
			c.fly(ctx, id, f, old, true, c.payFor(origin), now)
			c.answered(id, answer, old, now)
		} else if err := f.wait(ctx); err != nil {
			return Peer{}, false, publicError(err)
		} else if f.abandoned() {
			continue
		}
		if f.err != nil {
			return Peer{}, false, publicError(f.err)
		}
		return f.peer, f.peer.Key.Fingerprint() != was.Key.Fingerprint(), nil
	}
}

// answered keeps the minute of answers over a fetch, which makes a new entry.
func (c *Cards) answered(id wire.AgentID, answer bool, old *entry, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.known.Peek(id)
	switch {
	case ok && answer:
		e.answer = now
	case ok:
		e.answer = old.answer
	}
}

// suspect notes that a signature failed under peer's key, that of a message from origin or, if it is nil, of an answer to
// us, and looks whether the agent has a new one (AM-11).
func (c *Cards) suspect(ctx context.Context, peer Peer, origin *Origin, now time.Time) (fresh Peer, changed bool, err error) {
	id := peer.Card.ID
	c.mu.Lock()
	e, ok := c.known.Get(id)
	if ok {
		e.suspect = true
		fresh = e.peer
	}
	c.mu.Unlock()
	if ok && fresh.Key.Fingerprint() != peer.Key.Fingerprint() {
		return fresh, true, nil // somebody else has looked since
	}
	return c.refresh(ctx, id, origin, now)
}
