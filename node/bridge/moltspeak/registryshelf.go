package moltspeak

import (
	"cmp"
	"context"
	"encoding/json"
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

// The bounds of what is read to answer strangers.
const (
	cardsFor     = time.Minute // how old the directory's cards may be
	maxCardPages = 100         // of 100 cards
	maxShelf     = 16 << 20    // bytes of all that agents registered; their words are twice in memory
)

// shelf has what the registry lists, in memory and in the order of its pages, so that a request costs a walk over a
// slice and no reading. Entries come from the store once and change with it; the directory's cards are read page by
// page, at most once a minute.
type shelf struct {
	records   store.Records
	directory Directory

	reading sync.Mutex // held while the store or the directory is read
	writing sync.Mutex // held while an entry is stored and put

	mu     sync.Mutex
	loaded bool
	read   time.Time        // when the cards were
	own    map[string]*item // of agents that registered, live or not
	cards  map[string]*item // of the directory
	sorted []*item          // live ones, most trusted first; replaced, never changed
}

// item is an entry with its words in lower case. It is never changed.
type item struct {
	Entry
	words string
	size  int
	gone  bool
	until time.Time // of one that registered
}

func newItem(k kept) *item {
	e := k.Entry
	words := strings.ToLower(strings.Join(append([]string{e.AgentName, e.Org, e.Description}, e.Capabilities...), "\n"))
	size := len(words) + len(e.ID) + len(e.PublicKey) + len(e.Endpoint) + 16*len(e.Capabilities)
	return &item{e, words, size, k.Gone, k.until()}
}

func newShelf(records store.Records, d Directory) *shelf {
	return &shelf{records: records, directory: d, own: make(map[string]*item), cards: make(map[string]*item)}
}

// all returns what is listed, the most trusted first.
func (s *shelf) all(ctx context.Context) ([]*item, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sorted, nil
}

// card returns an entry that is a card of the directory.
func (s *shelf) card(ctx context.Context, id string) (Entry, bool, error) {
	if err := s.fresh(ctx); err != nil {
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

// claims says whether an agent registered here with that key and has not signed with it yet.
func (s *shelf) claims(id, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.own[id]
	return it != nil && !it.gone && it.PublicKey == key && it.TrustScore == trust(false, false)
}

// room refuses an entry that would grow, or be new, beyond what all of them may take. It is called with writing held.
func (s *shelf) room(k kept, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	grows := newItem(k).size
	if old := s.own[k.ID]; old != nil {
		grows -= old.size
	}
	if grows <= 0 {
		return nil
	}
	for _, it := range s.own {
		if now.Before(it.until) {
			grows += it.size
		}
	}
	if grows > maxShelf {
		return store.ErrQuota
	}
	return nil
}

// put follows a change of the store.
func (s *shelf) put(k kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, it := s.own[k.ID], newItem(k)
	s.own[k.ID] = it
	if old != nil && !old.gone && !it.gone && old.TrustScore == it.TrustScore { // a heartbeat moves nobody
		if i := slices.Index(s.sorted, old); i >= 0 {
			s.sorted = slices.Clone(s.sorted)
			s.sorted[i] = it
			return
		}
	}
	s.sort()
}

// sort is called with mu held.
func (s *shelf) sort() {
	maps.DeleteFunc(s.own, func(_ string, it *item) bool { return !time.Now().Before(it.until) })
	out := make([]*item, 0, len(s.own)+len(s.cards))
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
	slices.SortFunc(out, func(x, y *item) int {
		return cmp.Or(cmp.Compare(y.TrustScore, x.TrustScore), strings.Compare(x.ID, y.ID))
	})
	s.sorted = out
}

// fresh reads what is missing or old. While one caller reads cards anew the others have the old ones.
func (s *shelf) fresh(ctx context.Context) error {
	stale := func() (loaded, old bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.loaded, time.Since(s.read) >= cardsFor
	}
	loaded, old := stale()
	if loaded && (!old || !s.reading.TryLock()) {
		return nil
	}
	if !loaded {
		s.reading.Lock()
	}
	defer s.reading.Unlock()
	if loaded, old = stale(); loaded && !old {
		return nil
	}
	cards := s.listed(ctx)
	if !loaded {
		if err := s.load(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cards, s.read, s.loaded = cards, time.Now(), true // at once: who finds it loaded gets the cards, too
	s.sort()
	return nil
}

// load reads the entries of the store. A change that is made meanwhile is read, or put afterwards: it waits for mu.
func (s *shelf) load(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := make(map[string]*item)
	for rec, err := range store.AllRecords(ctx, s.records, nsRegistry, "", time.Now()) {
		var k kept
		if err == nil {
			err = json.Unmarshal(rec.Body, &k)
		}
		if err != nil {
			return err
		}
		own[k.ID] = newItem(k)
	}
	s.own = own
	return nil
}

// listed are the cards of the directory with metadata.moltspeak. Where the directory cannot be asked it is those of
// before.
func (s *shelf) listed(ctx context.Context) map[string]*item {
	out := make(map[string]*item)
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
				out[e.ID] = newItem(kept{Entry: e})
			}
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	return out
}

// cardEntry is a card with metadata.moltspeak as an entry.
func cardEntry(card wire.Value, v wire.Verification) (Entry, bool) {
	meta, _ := card.Get("metadata")
	name, ok := message.ParseName(meta.GetStr("moltspeak_agent"))
	if !ok || meta.GetStr("moltspeak") == "" {
		return Entry{}, false
	}
	e := Entry{
		ID: name.Name(), AgentName: name.Agent, Org: name.Org, PublicKey: meta.GetStr("moltspeak_key"), Endpoint: meta.GetStr("moltspeak"),
		Description: card.GetStr("description"), Capabilities: []string{}, Status: "active", TrustScore: trust(v.Key != nil, v.Endpoint != nil),
	}
	caps, _ := card.Get("capabilities")
	for c := range caps.Elems() {
		if s, ok := c.Str(); ok {
			e.Capabilities = append(e.Capabilities, s)
		}
	}
	for _, t := range []*time.Time{v.Key, v.Endpoint, v.Alive} { // what is known of the card's times: a card itself names none
		if t != nil && t.After(e.LastSeenAt) {
			e.UpdatedAt, e.LastSeenAt = t.UTC(), t.UTC()
		}
		if t != nil && (e.CreatedAt.IsZero() || t.Before(e.CreatedAt)) {
			e.CreatedAt = t.UTC()
		}
	}
	return e, true
}
