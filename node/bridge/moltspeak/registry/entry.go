package registry

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Entry is an agent in a registry (MS-53).
type Entry struct {
	ID           string    `json:"id"`
	AgentName    string    `json:"agent_name"`
	Org          string    `json:"org"`
	PublicKey    string    `json:"public_key"`
	Endpoint     string    `json:"endpoint"`
	Description  string    `json:"description"`
	Capabilities []string  `json:"capabilities"`
	TrustScore   float64   `json:"trust_score"`
	Status       string    `json:"status"`
	CreatedAt    time.Time `json:"created_at"`
	UpdatedAt    time.Time `json:"updated_at"`
	LastSeenAt   time.Time `json:"last_seen_at"`

	words string // that a search finds, in lower case
}

// registration is an agent that registered with us. Its key is the bearer token that guards the entry (MS-54).
type registration struct {
	credential.Account
	PublicKey    string    `json:"public_key"`
	Endpoint     string    `json:"endpoint,omitempty"`
	Description  string    `json:"description,omitempty"`
	Capabilities []string  `json:"capabilities"`
	Updated      time.Time `json:"updated"`
	KeyUsed      time.Time `json:"key_used,omitzero"` // when a message was signed with the listed key

	entry *Entry // set once the registration is in memory
}

const noEndpoint = false // we verify the endpoints of cards only

// trustScore returns the trust score of an entry from its proofs (MS-55).
func trustScore(key, endpoint bool) float64 {
	switch {
	case key && endpoint:
		return 0.9
	case endpoint:
		return 0.8
	case key:
		return 0.7
	}
	return unprovenScore
}

// unprovenScore is the trust score of an entry without proofs.
const unprovenScore = 0.5

// index makes the entry of a registration that comes into memory.
func index(_, reg *registration) {
	if reg == nil {
		return
	}
	a, _ := message.ParseName(reg.ID)
	reg.entry = newEntry(Entry{
		ID: reg.ID, AgentName: a.Agent, Org: a.Org, PublicKey: reg.PublicKey, Endpoint: reg.Endpoint, Description: reg.Description,
		Capabilities: reg.Capabilities, TrustScore: trustScore(!reg.KeyUsed.IsZero(), noEndpoint), Status: "active",
		CreatedAt: reg.Created, UpdatedAt: reg.Updated, LastSeenAt: reg.Seen,
	})
}

func newEntry(e Entry) *Entry {
	e.words = strings.ToLower(strings.Join(append([]string{e.AgentName, e.Org, e.Description}, e.Capabilities...), "\n"))
	return &e
}

// The times for which a name stays registered after its agent was last seen; one that was proven stays longer, and so
// does the name of one that was deleted (MS-55).
const (
	keepClaimed = credential.FillTime // so that strangers never take all places
	keepProven  = 365 * 24 * time.Hour
)

// until returns the time until which a registration stays.
func until(reg *registration) time.Time {
	if !reg.KeyUsed.IsZero() {
		return reg.Seen.Add(keepProven)
	}
	return reg.Seen.Add(keepClaimed)
}

// capabilitiesIn returns the capabilities in an entry or a card. It leaves out those that are too long or too many.
func capabilitiesIn(v wire.Value) []string {
	out := []string{}
	list, _ := v.Get("capabilities")
	for e := range list.Elems() {
		if text, ok := e.Str(); ok && len(text) <= maxCapability && len(out) < message.MaxList {
			out = append(out, text)
		}
	}
	return out
}

// The bounds of the cards that a registry lists.
const (
	cardsFor     = time.Minute // maximum age of the cards
	maxCardPages = 100         // of 100 cards
)

// list returns the entries of cards, and then those of registrations in the order of their registration. It reads
// neither the store nor, more than once a minute, the directory.
func (s *Server) list(ctx context.Context) []*Entry {
	list := slices.DeleteFunc(slices.Clone(s.listCards(ctx)), func(e *Entry) bool { return s.accounts.IsTaken(e.ID) })
	now := time.Now()
	for _, reg := range s.accounts.List() {
		if now.Before(until(reg)) {
			list = append(list, reg.entry)
		}
	}
	return list
}

// card returns the entry of a card, or nil.
func (s *Server) card(ctx context.Context, id string) *Entry {
	cards := s.listCards(ctx)
	if i := slices.IndexFunc(cards, func(e *Entry) bool { return e.ID == id }); i >= 0 {
		return cards[i]
	}
	return nil
}

// listCards returns the entries of cards. While one caller reads old ones again, other callers get the old ones.
func (s *Server) listCards(ctx context.Context) []*Entry {
	cards, readAt := s.knownCards()
	switch {
	case s.cfg.Directory == nil:
		return nil
	case readAt.IsZero():
		s.reading.Lock()
	case time.Since(readAt) < cardsFor || !s.reading.TryLock():
		return cards
	}
	defer s.reading.Unlock()
	if cards, readAt = s.knownCards(); time.Since(readAt) < cardsFor {
		return cards
	}
	list, err := s.readCards(context.WithoutCancel(ctx)) // for all callers, so the one that reads cannot stop it
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readAt = time.Now(); err == nil { // otherwise the old ones stay
		s.cards = list
	}
	return s.cards
}

func (s *Server) knownCards() ([]*Entry, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cards, s.readAt
}

// readCards reads those cards of the directory that have metadata.moltspeak.
func (s *Server) readCards(ctx context.Context) (list []*Entry, err error) {
	seen := make(map[string]bool)
	for cursor, pages := "", 0; pages < maxCardPages; pages++ {
		page, err := s.cfg.Directory.Search(ctx, client.Query{Limit: 100, Cursor: cursor})
		if err != nil {
			return nil, err
		}
		for _, card := range page.Agents {
			e, ok := cardEntry(card, page.Verification[wire.AgentID(card.GetStr("agent_id"))])
			if ok && !seen[e.ID] {
				seen[e.ID] = true
				list = append(list, newEntry(e))
			}
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	return list, nil
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
