package client

import (
	"cmp"
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

// Peer is what we know about another agent.
type Peer struct {
	Card      wire.Card
	Key       *signing.PublicKey
	Directory string    // base URL of the directory that lists the agent; "" for a card from the owner
	Reach     Reach     // where calls to its endpoint may go
	Pinned    time.Time // when the key was pinned; zero if the pin must be written (again)
	Until     time.Time // when the card must be looked up again
	// EndpointProven is true if the directory has proven the endpoint (AM-63).
	EndpointProven bool
	// Unproven is not nil if the agent id has the shape of an id derived from a key, but does not prove the card's key
	// (AM-2).
	Unproven error

	ownerPin  bool // the owner caused the pin, so it does not expire
	keyPinned bool // the key is the pinned key, perhaps with a pin that must be written again
}

// IsDoubtful reports whether the owner must accept the card's key, because neither the agent id nor a pin proves it.
func (p Peer) IsDoubtful() bool { return p.Unproven != nil && !p.keyPinned }

// CardsConfig configures [NewCards].
type CardsConfig struct {
	// Directories are asked in this order (AM-86), except that the directory that listed an agent's pinned key comes
	// first.
	Directories []*Directory
	// HTTP decides which endpoints cards may name. Required.
	HTTP *HTTP
	// Records stores pins (namespace "pins") and the cards from the owner ("peers"). Required.
	Records store.Records
	// KeyCache holds parsed keys. If nil, NewCards creates one.
	KeyCache *signing.KeyCache
	// OnKeyChange is called if an agent has a new key for which its pinned key does not vouch (AM-11): at most once an
	// hour for each agent and once a day for the same key. It runs in the look-up that found the key. It may be nil.
	OnKeyChange func(ctx context.Context, change KeyChange)
	// Size bounds the number of cached cards and, separately, of cached failures. 0 means 4096.
	Size int
	// LookupsPerMinute bounds the look-ups outside this process that strangers may cause (AM-43). 0 means 60; a
	// negative number means no limit.
	LookupsPerMinute int
	Logger           *slog.Logger // may be nil
}

// KeyChange is a new key of an agent for which the agent's pinned key does not vouch.
type KeyChange struct {
	Agent     wire.AgentID
	Directory string // the directory that lists the new key
	Old, New  string // fingerprints
	At        time.Time
	FromOwner bool // the owner wrote to the agent, gave its card or accepted its old key
}

const (
	maxFresh   = 10 * time.Minute // longest use of a cached card (AM-45)
	missFor    = time.Minute      // how long a cached failure is used (AM-43)
	refetchGap = time.Minute      // shortest time between two fetches of a card because of failed signatures (AM-11)
)

// findTimeout bounds one look-up in all directories.
const findTimeout = 2 * lookupTimeout

const (
	defaultSize  = 4096
	maxWeight    = 64 << 20 // bytes of cached cards, roughly
	keyCacheSize = 1024
)

// Cards looks up and caches the cards of other agents. It is safe for concurrent use.
//
// Strangers decide which agents are looked up, so everything is bounded: the number and the size of cached cards, the
// look-ups per minute, and the fetches of a single card.
type Cards struct {
	cfg    CardsConfig
	budget *rate.Pool // look-ups that strangers may cause
	pool   *verifyPool

	explanations *rate.Buckets // bounds the explanations of bad signatures; has only one bucket

	mu       sync.Mutex
	cache    *simplelru.LRU[wire.AgentID, *entry]
	weight   int // total weight of cache
	misses   *simplelru.LRU[wire.AgentID, miss]
	inFlight map[wire.AgentID]*pendingLookup // by agent id
}

// entry is a cached card. Cards.mu guards its fields.
type entry struct {
	peer    Peer
	etag    string
	from    *Directory // nil for a card from the owner
	fetched time.Time  // when a directory last confirmed that this is the card
	asked   time.Time  // when a directory was last asked, even without success
	// fetchedForAnswer is when a bad signature of an answer to our message last caused a fetch.
	fetchedForAnswer time.Time
	suspect          bool // a signature has failed since the card was fetched
	weight           int
}

// miss is a cached failure of a look-up.
type miss struct {
	err   error
	until time.Time
}

// pendingLookup is a look-up in flight. Read its result after done is closed.
type pendingLookup struct {
	done chan struct{}
	peer Peer
	err  error
}

// NewCards returns an empty cache.
func NewCards(cfg CardsConfig) *Cards {
	if cfg.KeyCache == nil {
		cfg.KeyCache = signing.NewKeyCache(keyCacheSize)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Size <= 0 {
		cfg.Size = defaultSize
	}
	c := &Cards{cfg: cfg, budget: newLookupBudget(cfg.LookupsPerMinute), pool: newVerifyPool(), inFlight: make(map[wire.AgentID]*pendingLookup)}
	c.explanations = rate.NewBuckets(rate.PerMinute(explanationsPerMin), 5, 1) // bursts of 5
	c.cache, _ = simplelru.NewLRU(cfg.Size, func(_ wire.AgentID, e *entry) { c.weight -= e.weight })
	c.misses, _ = simplelru.NewLRU[wire.AgentID, miss](cfg.Size, nil)
	return c
}

// Lookup returns the agent that a message from origin names as its sender. It respects the budget of look-ups, and
// uses cached failures. The error is a *[wire.Error]: ErrUnknownSender, ErrSignature (the pinned key was replaced),
// ErrNoDirectory, ErrRateLimited or ErrUnavailable.
func (c *Cards) Lookup(ctx context.Context, id wire.AgentID, origin Origin, now time.Time) (Peer, error) {
	peer, err := c.getChecked(ctx, id, &origin, now)
	if err != nil {
		return Peer{}, publicError(err)
	}
	return peer, nil
}

// Find returns an agent to which our owner wants to write, and pins its key. The budget of strangers does not apply.
// The error may match [ErrUnknownAgent], [ErrUnreachable] or [ErrUnusableCard]. It may wrap a *[KeyChangedError] or an
// *[UnprovenError], which have a hint for the owner.
func (c *Cards) Find(ctx context.Context, id wire.AgentID, now time.Time) (Peer, error) {
	peer, err := c.getChecked(ctx, id, nil, now)
	switch {
	case err == nil && peer.IsDoubtful():
		err = &UnprovenError{peer}
	case err == nil && !peer.ownerPin:
		peer, err = c.pin(ctx, peer, byOwner, now)
	}
	if err != nil {
		return Peer{}, fmt.Errorf("find %s: %w", wire.OneLine(string(id), 140), err)
	}
	return peer, nil
}

// getChecked returns the peer like get. It updates a doubtful peer if the owner has accepted its key meanwhile.
func (c *Cards) getChecked(ctx context.Context, id wire.AgentID, origin *Origin, now time.Time) (Peer, error) {
	peer, err := c.get(ctx, id, origin, now)
	if err == nil {
		peer, err = c.recheck(ctx, peer, now)
	}
	return peer, err
}

// get returns the peer from the cache, from a look-up in flight, or from a new look-up. origin is the origin of the
// message that named the agent as its sender. If it is nil, our owner asks or the agent answered our message, and get
// ignores cached failures.
func (c *Cards) get(ctx context.Context, id wire.AgentID, origin *Origin, now time.Time) (Peer, error) {
	if !id.Valid() {
		return Peer{}, ErrUnknownAgent
	}
	for {
		c.mu.Lock()
		old, ok := c.cache.Get(id)
		if ok && origin != nil && old.peer.ownerPin {
			origin = &Origin{Known: true} // our owner knows the agent
		}
		if ok && old.isUsable(origin, now) {
			defer c.mu.Unlock()
			return old.peer, nil
		}
		if m, missed := c.misses.Get(id); missed && origin != nil && now.Before(m.until) {
			c.mu.Unlock()
			return Peer{}, &missError{m.err, m.until.Sub(now)}
		}
		lookup, running := c.inFlight[id]
		if !running {
			lookup = c.startLookup(id)
		}
		c.mu.Unlock()
		if !running {
			c.runLookup(ctx, id, lookup, old, false, c.payFor(origin), now)
			return lookup.peer, lookup.err
		}
		if err := lookup.wait(ctx); err != nil {
			return Peer{}, err
		}
		if !lookup.gaveUp() {
			return lookup.peer, lookup.err
		}
	}
}

// isUsable reports whether a cached card may be used. In two cases a card is used for at least a minute, even if the
// directory allows less: if a signature with its key failed, and if its look-ups are free because the owner knows the
// agent. Otherwise a forger could make us ask the directory as often as it likes.
func (e *entry) isUsable(origin *Origin, now time.Time) bool {
	limited := e.suspect || origin != nil && origin.Known
	return now.Before(e.peer.Until) || limited && now.Before(e.fetched.Add(refetchGap))
}

// startLookup registers a look-up. The caller holds mu, and must call runLookup afterward.
func (c *Cards) startLookup(id wire.AgentID) *pendingLookup {
	lookup := &pendingLookup{done: make(chan struct{})}
	c.inFlight[id] = lookup
	return lookup
}

func (l *pendingLookup) wait(ctx context.Context) error {
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gaveUp reports whether the look-up tells nothing about the agent, because its caller gave up or could not pay.
func (l *pendingLookup) gaveUp() bool { return errors.Is(l.err, errAbandoned) }

// abandon returns an error that matches errAbandoned and cause.
func abandon(cause error) error { return fmt.Errorf("%w: %w", errAbandoned, cause) }

var errAbandoned = errors.New("the caller gave up")

// runLookup looks the agent up and caches the result. old is the cached entry, or nil. If refresh is set, it asks the
// directories even if the owner added a card. If pay is nil, the look-up is free.
func (c *Cards) runLookup(ctx context.Context, id wire.AgentID, lookup *pendingLookup, old *entry, refresh bool, pay *payment, now time.Time) {
	lookup.err = errAbandoned // what waiting callers get if the look-up panics
	defer func() {
		c.mu.Lock()
		delete(c.inFlight, id)
		c.mu.Unlock()
		close(lookup.done)
	}()
	if old != nil { // a copy, because other goroutines use the entry
		c.mu.Lock()
		old = new(*old)
		c.mu.Unlock()
	}
	findCtx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	found, err := c.fetch(findCtx, id, old, refresh, pay, now)
	if ctx.Err() != nil && err != nil {
		err = abandon(ctx.Err())
	}
	if errors.Is(err, errAbandoned) {
		lookup.err = err
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.remember(id, found)
		lookup.peer, lookup.err = found.peer, nil
		return
	}
	lookup.err = err
	unreachable := errors.Is(err, ErrUnreachable)
	if old, ok := c.cache.Peek(id); ok && unreachable {
		old.asked = now
	} else if !unreachable {
		c.cache.Remove(id)
	}
	isOurFault := errors.Is(publicError(err), wire.ErrUnavailable) // this call or our store failed
	// After a refresh that could not reach a directory, the cached card stays in use.
	if isOurFault || refresh && unreachable {
		return
	}
	c.misses.Add(id, miss{err, now.Add(missFor)})
}

// remember puts an entry into the cache. The caller holds mu.
func (c *Cards) remember(id wire.AgentID, e *entry) {
	e.weight = weigh(e.peer.Card.Tree)
	c.cache.Remove(id)
	c.cache.Add(id, e)
	c.weight += e.weight
	for c.weight > maxWeight && c.cache.Len() > 1 {
		c.cache.RemoveOldest()
	}
	c.misses.Remove(id)
}

// weigh returns roughly how many bytes v takes in memory.
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

// Drop removes id from the cache, so that the next look-up reads pins and directories again. Call it after changing
// the agent's pin or card in the store.
func (c *Cards) Drop(id wire.AgentID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache.Remove(id)
	c.misses.Remove(id)
}

// Refresh fetches the card of id again, but at most once a minute and within the budget. changed is true if the agent
// has another key now, or if no card was cached. The error is a *[wire.Error], as for [Cards.Lookup].
func (c *Cards) Refresh(ctx context.Context, id wire.AgentID, now time.Time) (peer Peer, changed bool, err error) {
	return c.refresh(ctx, id, &Origin{}, now)
}

// FindAgain finds an agent like [Cards.Find], but asks the directories again unless that happened less than gap ago.
// Call it after a failed delivery, because the agent may have moved.
func (c *Cards) FindAgain(ctx context.Context, id wire.AgentID, gap time.Duration, now time.Time) (Peer, error) {
	c.mu.Lock()
	old, ok := c.cache.Peek(id)
	lookup, running := c.inFlight[id]
	ask := ok && !running && !now.Before(old.asked.Add(gap))
	if ask {
		lookup = c.startLookup(id)
	}
	c.mu.Unlock()
	switch {
	case ask:
		c.runLookup(ctx, id, lookup, old, true, nil, now) // a refresh that is free
		c.keepAnswerTime(id, false, old, now)             // the fetch was not for an answer
	case running:
		if err := lookup.wait(ctx); err != nil {
			return Peer{}, err
		}
	}
	return c.Find(ctx, id, now)
}

// refresh is Refresh for a message from origin. origin is nil for an answer to our message. Such a refresh is free,
// because peers can send at most one answer to each message of ours. It has its own limit of one a minute, so that
// strangers who forge messages cannot prevent it.
func (c *Cards) refresh(ctx context.Context, id wire.AgentID, origin *Origin, now time.Time) (peer Peer, changed bool, err error) {
	forAnswer := origin == nil
	for {
		c.mu.Lock()
		old, ok := c.cache.Get(id)
		if !ok {
			c.mu.Unlock()
			if peer, err = c.getChecked(ctx, id, origin, now); err != nil {
				return Peer{}, false, publicError(err)
			}
			return peer, true, nil
		}
		previous := old.peer
		lookup, running := c.inFlight[id]
		if !running {
			last := old.asked
			if forAnswer {
				last = old.fetchedForAnswer
			}
			if now.Before(last.Add(refetchGap)) {
				c.mu.Unlock()
				return previous, false, nil
			}
			lookup = c.startLookup(id)
		}
		c.mu.Unlock()
		if !running {
			c.runLookup(ctx, id, lookup, old, true, c.payFor(origin), now)
			c.keepAnswerTime(id, forAnswer, old, now)
		} else if err := lookup.wait(ctx); err != nil {
			return Peer{}, false, publicError(err)
		} else if lookup.gaveUp() {
			continue
		}
		if lookup.err != nil {
			return Peer{}, false, publicError(lookup.err)
		}
		return lookup.peer, lookup.peer.Key.Fingerprint() != previous.Key.Fingerprint(), nil
	}
}

// keepAnswerTime sets fetchedForAnswer of the entry that a fetch made: to now if the fetch was for an answer to our
// message, otherwise to its value in old.
func (c *Cards) keepAnswerTime(id wire.AgentID, forAnswer bool, old *entry, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cache.Peek(id)
	switch {
	case ok && forAnswer:
		e.fetchedForAnswer = now
	case ok:
		e.fetchedForAnswer = old.fetchedForAnswer
	}
}

// suspect records that a signature did not verify with peer's key, and checks whether the agent has a new key (AM-11).
// origin is the origin of the signed message; nil for an answer to our message.
func (c *Cards) suspect(ctx context.Context, peer Peer, origin *Origin, now time.Time) (fresh Peer, changed bool, err error) {
	id := peer.Card.ID
	c.mu.Lock()
	e, ok := c.cache.Get(id)
	if ok {
		e.suspect = true
		fresh = e.peer
	}
	c.mu.Unlock()
	if ok && fresh.Key.Fingerprint() != peer.Key.Fingerprint() {
		return fresh, true, nil // another caller has refreshed the card meanwhile
	}
	return c.refresh(ctx, id, origin, now)
}
