package registry

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The bounds of the cache.
const (
	cardsFor     = time.Minute // maximum age of the cached cards
	maxCardPages = 100         // of 100 cards
	maxBytes     = 16 << 20    // of all registered entries; their text is in memory twice
)

// cache holds the content of the registry in memory, in the order in which it is listed, so that most lists and
// searches read neither the store nor the directory. Registered entries are read from the store once, and later changes
// go to both. The cards of the directory are read page by page, at most once a minute.
type cache struct {
	records   store.Records
	directory Directory

	reading sync.Mutex // held while the store or the directory is read
	writing sync.Mutex // held while an entry is stored and put into the cache

	mu     sync.Mutex
	loaded bool
	readAt time.Time               // when the cards were read
	own    map[string]*cachedEntry // registered entries, including deleted ones
	cards  map[string]*cachedEntry // the cards of the directory
	sorted []*cachedEntry          // live entries by id; replaced, never changed
}

// cachedEntry is an entry with its text in lower case. It is never changed.
type cachedEntry struct {
	Entry
	text  string    // the words that a search finds
	size  int       // bytes, roughly
	gone  bool      // deleted; the name stays reserved
	until time.Time // the end of the registration, for a registered entry
}

func newCachedEntry(reg registration) *cachedEntry {
	e := reg.Entry
	words := strings.ToLower(strings.Join(append([]string{e.AgentName, e.Org, e.Description}, e.Capabilities...), "\n"))
	size := len(words) + len(e.ID) + len(e.PublicKey) + len(e.Endpoint) + 16*len(e.Capabilities)
	return &cachedEntry{e, words, size, reg.Gone, reg.until()}
}

func newCache(records store.Records, d Directory) *cache {
	return &cache{records: records, directory: d, own: make(map[string]*cachedEntry), cards: make(map[string]*cachedEntry)}
}

// list returns the live entries by id.
func (s *cache) list(ctx context.Context) ([]*cachedEntry, error) {
	if err := s.refresh(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sorted, nil
}

// card returns the entry of a card in the directory.
func (s *cache) card(ctx context.Context, id string) (Entry, bool, error) {
	if err := s.refresh(ctx); err != nil {
		return Entry{}, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.cards[id]
	if it == nil {
		return Entry{}, false, nil
	}
	return it.Entry, true, nil
}

// hasUnprovenKey reports whether an agent is registered here with this key but has not signed a message with it yet.
func (s *cache) hasUnprovenKey(id, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.own[id]
	return it != nil && !it.gone && it.PublicKey == key && it.TrustScore == unprovenScore
}

// checkRoom refuses an entry if all entries together would become too large. The caller holds s.writing.
func (s *cache) checkRoom(reg registration, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	growth := newCachedEntry(reg).size
	if old := s.own[reg.ID]; old != nil {
		growth -= old.size
	}
	if growth <= 0 {
		return nil
	}
	total := growth
	for _, it := range s.own {
		if now.Before(it.until) {
			total += it.size
		}
	}
	if total > maxBytes {
		return store.ErrQuota
	}
	return nil
}

// put updates the cache after an entry was stored.
func (s *cache) put(reg registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own[reg.ID] = newCachedEntry(reg)
	s.rebuild()
}

// rebuild drops expired registrations, and sorts the live entries. The caller holds s.mu.
func (s *cache) rebuild() {
	maps.DeleteFunc(s.own, func(_ string, it *cachedEntry) bool { return !time.Now().Before(it.until) })
	out := make([]*cachedEntry, 0, len(s.own)+len(s.cards))
	for id, it := range s.cards {
		if s.own[id] == nil {
			out = append(out, it)
		}
	}
	for _, it := range s.own {
		if !it.gone {
			out = append(out, it)
		}
	}
	slices.SortFunc(out, func(x, y *cachedEntry) int {
		return strings.Compare(x.ID, y.ID)
	})
	s.sorted = out
}

// refresh reads the entries if they were never read, and the cards if they are old. While one caller reads the cards
// again, other callers get the old cards.
func (s *cache) refresh(ctx context.Context) error {
	state := func() (loaded, old bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.loaded, time.Since(s.readAt) >= cardsFor
	}
	loaded, old := state()
	if loaded && (!old || !s.reading.TryLock()) {
		return nil
	}
	if !loaded {
		s.reading.Lock()
	}
	defer s.reading.Unlock()
	if loaded, old = state(); loaded && !old {
		return nil
	}
	cards := s.readCards(context.WithoutCancel(ctx)) // for all callers, so the one that reads cannot stop it
	if !loaded {
		if err := s.load(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// All three change together: a caller that finds loaded set also gets the cards.
	s.cards, s.readAt, s.loaded = cards, time.Now(), true
	s.rebuild()
	return nil
}

// load reads the entries from the store. It holds s.mu, so a concurrent change is either read here or put into the
// cache afterward.
func (s *cache) load(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := make(map[string]*cachedEntry)
	for reg, err := range store.DecodeAll(ctx, s.records, ns, "", time.Now(), store.Decode[registration]) {
		if err != nil {
			return err
		}
		own[reg.ID] = newCachedEntry(reg)
	}
	s.own = own
	return nil
}

// readCards reads those cards of the directory that have metadata.moltspeak, or returns the cached ones if the
// directory does not answer.
func (s *cache) readCards(ctx context.Context) map[string]*cachedEntry {
	out := make(map[string]*cachedEntry)
	if s.directory == nil {
		return out
	}
	for cursor, pages := "", 0; pages < maxCardPages; pages++ {
		page, err := s.directory.Search(ctx, client.Query{Limit: 100, Cursor: cursor})
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			return maps.Clone(s.cards)
		}
		for _, card := range page.Agents {
			if e, ok := cardEntry(card, page.Verification[wire.AgentID(card.GetStr("agent_id"))]); ok && out[e.ID] == nil {
				out[e.ID] = newCachedEntry(registration{Entry: e})
			}
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	return out
}

// cardEntry returns a card with metadata.moltspeak as an entry.
func cardEntry(card wire.Value, v wire.Verification) (Entry, bool) {
	meta, _ := card.Get("metadata")
	name, ok := message.ParseName(meta.GetStr("moltspeak_agent"))
	if !ok || meta.GetStr("moltspeak") == "" {
		return Entry{}, false
	}
	e := Entry{
		ID: name.Name(), AgentName: name.Agent, Org: name.Org, PublicKey: meta.GetStr("moltspeak_key"), Endpoint: meta.GetStr("moltspeak"),
		Description: card.GetStr("description"), Capabilities: capabilitiesIn(card), Status: "active", TrustScore: trustScore(v.Key != nil, v.Endpoint != nil),
	}
	// A card itself has no times, so use those of its proofs.
	for _, t := range []*time.Time{v.Key, v.Endpoint, v.Alive} {
		if t != nil && t.After(e.LastSeenAt) {
			e.UpdatedAt, e.LastSeenAt = t.UTC(), t.UTC()
		}
		if t != nil && (e.CreatedAt.IsZero() || t.Before(e.CreatedAt)) {
			e.CreatedAt = t.UTC()
		}
	}
	return e, true
}
