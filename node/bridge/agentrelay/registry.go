package agentrelay

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// nsAgents holds the registered agents, by id. A removed one stays as a tombstone, so that no id is given out twice
// (AR-2).
const nsAgents = "agentrelay/agents"

// MaxAgents bounds what one relay registers, tombstones included.
const MaxAgents = 10_000

// registration is an agent of the relay. Only the hash of its token is kept (AR-5).
type registration struct {
	ID      string    `json:"id"`
	Token   string    `json:"token_sha256,omitempty"` // hex; empty: removed
	Since   time.Time `json:"since"`
	Active  time.Time `json:"active,omitzero"`   // when it last sent a message, to an hour after a crash (AR-42)
	Trusted bool      `json:"trusted,omitempty"` // no rate limit (AR-31)
}

// The ways in which a registration is refused.
var (
	errTaken   = errors.New("agentrelay: the id is taken")
	errFull    = errors.New("agentrelay: too many agents are registered")
	errBadID   = errors.New("agentrelay: the id is not usable")
	errUnknown = errors.New("agentrelay: no such agent")
)

// registry knows the agents of a relay: all of them in memory, each change durable first.
type registry struct {
	records store.Records
	max     int

	writing sync.Mutex // held over a write, so that an id is promised once; taken before mu

	mu     sync.Mutex
	agents map[string]*registration
	tokens map[string]string    // hash to id
	moved  map[string]time.Time // activity that is not stored yet
}

func loadRegistry(ctx context.Context, records store.Records, limit int) (*registry, error) {
	r := &registry{
		records: records, max: limit, agents: make(map[string]*registration), tokens: make(map[string]string),
		moved: make(map[string]time.Time),
	}
	after, now := "", time.Now()
	for {
		page, err := records.List(ctx, nsAgents, "", after, 500, now)
		if err != nil {
			return nil, fmt.Errorf("read the agents of the relay: %w", err)
		}
		for _, rec := range page.Records {
			a := &registration{}
			if err := json.Unmarshal(rec.Body, a); err != nil {
				return nil, fmt.Errorf("read agent %s of the relay: %w", rec.Key, err)
			}
			r.put(a)
		}
		if after = page.Next; after == "" {
			return r, nil
		}
	}
}

func (r *registry) put(a *registration) {
	if old := r.agents[a.ID]; old != nil {
		delete(r.tokens, old.Token)
	}
	r.agents[a.ID] = a
	if a.Token != "" {
		r.tokens[a.Token] = a.ID
	}
}

func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// newToken returns a token of 128 random bits (AR-5).
func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return "tok_" + hex.EncodeToString(b[:])
}

func (a *registration) change(ifRev store.Rev) store.Change {
	body, _ := json.Marshal(a) // strings and times always encode
	return store.Change{Record: store.Record{NS: nsAgents, Key: a.ID, Body: body}, IfRev: ifRev}
}

// register gives an id, the one that is asked for or one of ours, and its token. more changes in the same unit.
func (r *registry) register(ctx context.Context, id string, trusted bool, more ...store.Change) (string, string, error) {
	if id != "" && (!ValidAgentID(id) || id == relayID) {
		return "", "", errBadID
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	id, err := r.free(id)
	if err != nil {
		return "", "", err
	}
	token := newToken()
	a := &registration{ID: id, Token: hashToken(token), Since: time.Now().UTC(), Trusted: trusted}
	changes := append([]store.Change{a.change(store.Absent)}, more...)
	if err := r.records.Apply(ctx, changes, time.Now()); err != nil {
		return "", "", err
	}
	// Whoever has the token can hear only what has a later time: that is what the history goes by (AR-46).
	<-time.After(time.Until(a.Since.Truncate(time.Millisecond).Add(time.Millisecond)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(a)
	return id, token, nil
}

// free returns an id that nobody has or had: this one, or one of ours where it is empty.
func (r *registry) free(id string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.agents) >= r.max {
		return "", errFull
	}
	for id == "" {
		if try := "agent-" + strings.ToLower(rand.Text()[:8]); r.agents[try] == nil {
			id = try
		}
	}
	if r.agents[id] != nil {
		return "", errTaken
	}
	return id, nil
}

// edit changes an agent durably: a new token, or none.
func (r *registry) edit(ctx context.Context, id string, f func(*registration)) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	a, ok := r.get(id)
	if !ok {
		return errUnknown
	}
	f(&a)
	if err := r.records.Apply(ctx, []store.Change{a.change(store.Any)}, time.Now()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(&a)
	return nil
}

// lookup returns whose token it is.
func (r *registry) lookup(token string) (registration, bool) {
	if token == "" {
		return registration{}, false
	}
	hash := hashToken(token)
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[r.tokens[hash]]
	if a == nil {
		return registration{}, false
	}
	return *a, true
}

// get returns an agent that is registered.
func (r *registry) get(id string) (registration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[id]
	if a == nil || a.Token == "" {
		return registration{}, false
	}
	return *a, true
}

// list returns the registered agents by id.
func (r *registry) list() []registration {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]registration, 0, len(r.agents))
	for _, a := range r.agents {
		if a.Token != "" {
			out = append(out, *a)
		}
	}
	slices.SortFunc(out, func(a, b registration) int { return strings.Compare(a.ID, b.ID) })
	return out
}

func (r *registry) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tokens)
}

// active notes that an agent sent a message.
func (r *registry) active(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[id]
	if a == nil {
		return
	}
	if stored := a.Active; now.Sub(stored) >= time.Hour {
		r.moved[id] = now
	}
	a.Active = now
}

// activeSince counts the agents that sent a message since then (AR-42).
func (r *registry) activeSince(since time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, a := range r.agents {
		if a.Active.After(since) {
			n++
		}
	}
	return n
}

// flush stores who was active, some at a time.
func (r *registry) flush(ctx context.Context) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	changes := r.unsaved(500)
	if len(changes) == 0 {
		return nil
	}
	if err := r.records.Apply(ctx, changes, time.Now()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		delete(r.moved, c.Record.Key)
	}
	return nil
}

func (r *registry) unsaved(limit int) []store.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	var changes []store.Change
	for id := range r.moved {
		if len(changes) == limit {
			break
		}
		changes = append(changes, r.agents[id].change(store.Any))
	}
	return changes
}
