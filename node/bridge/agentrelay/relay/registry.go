package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsAgents is the namespace of the registered agents, by id. A removed agent leaves a tombstone, so that for a long
// time nobody gets the id of an agent that others have met (AR-2).
const nsAgents = "agentrelay/agents"

const (
	// MaxAgents bounds the agents of one relay. As many tombstones fit beside them; then the oldest is dropped.
	MaxAgents = 10_000
	// keepRemoved is how long a tombstone stays.
	keepRemoved = 365 * 24 * time.Hour
)

// registration is an agent of the relay. It holds only the hash of the agent's token (AR-5).
type registration struct {
	ID      string    `json:"id"`
	Token   string    `json:"token_sha256,omitempty"` // hex; empty: removed
	Since   time.Time `json:"since"`
	Removed time.Time `json:"removed,omitzero"`
	Active  time.Time `json:"active,omitzero"`   // time of its last message, up to an hour too early after a restart (AR-42)
	Trusted bool      `json:"trusted,omitempty"` // no rate limit (AR-31)
	Own     bool      `json:"own,omitempty"`     // it is the node of this process

	storedActive time.Time // Active as last read from the store or written in flush
}

var (
	errTaken   = errors.New("agentrelay: the id is taken")
	errFull    = errors.New("agentrelay: too many agents are registered")
	errBadID   = errors.New("agentrelay: the id is not usable")
	errUnknown = errors.New("agentrelay: no such agent")
)

// registry holds the agents of a relay in memory. It stores each registration, new token and removal durably before it
// makes the change visible, and the activity of agents later, in flush.
type registry struct {
	records store.Records
	max     int
	stamps  stamps // of registrations and frames

	writing sync.Mutex // held during a write, so that two writes cannot take one id; taken before mu

	mu      sync.Mutex
	agents  map[string]*registration // with tombstones
	tokens  map[string]string        // hash to id
	unsaved map[string]bool          // agents whose activity is not stored yet
}

func loadRegistry(ctx context.Context, records store.Records, limit int) (*registry, error) {
	r := &registry{
		records: records, max: limit, agents: make(map[string]*registration), tokens: make(map[string]string),
		unsaved: make(map[string]bool),
	}
	for a, err := range store.DecodeAll(ctx, records, nsAgents, "", time.Now(), store.Decode[registration]) {
		if err != nil {
			return nil, fmt.Errorf("read the agents of the relay: %w", err)
		}
		a.storedActive = a.Active
		r.put(&a)
	}
	return r, nil
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

func (a *registration) change(ifRev store.Rev) store.Change {
	rec := store.Record{NS: nsAgents, Key: a.ID, Body: wire.MustMarshal(a)}
	if a.Token == "" {
		rec.Expires = a.Removed.Add(keepRemoved)
	}
	return store.Change{Record: rec, IfRev: ifRev}
}

func (a *registration) deletion() store.Change {
	return store.Change{Record: store.Record{NS: nsAgents, Key: a.ID}, IfRev: store.Any, Delete: true}
}

// register stores a new agent, in one transaction with the changes in others. It chooses an id if a.ID is empty, and
// returns id and token.
func (r *registry) register(ctx context.Context, a registration, others ...store.Change) (string, string, error) {
	if a.ID != "" && (!frame.ValidAgentID(a.ID) || a.ID == frame.RelayID) {
		return "", "", errBadID
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	now := time.Now()
	id, err := r.chooseID(a.ID, now)
	if err != nil {
		return "", "", err
	}
	token := credential.New("tok_") // AR-5
	a.ID, a.Token, a.Since = id, credential.HashOf(token).String(), r.stamps.registrationTime()
	changes := append([]store.Change{a.change(store.Absent)}, others...)
	if err := r.records.Apply(ctx, changes, now); err != nil {
		return "", "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(&a)
	return id, token, nil
}

// chooseID returns an id that no agent has or had recently: id, or a new one if id is empty. The caller holds r.writing.
func (r *registry) chooseID(id string, now time.Time) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tokens) >= r.max {
		return "", errFull
	}
	for id == "" {
		if try := "agent-" + strings.ToLower(rand.Text()[:8]); r.agents[try] == nil {
			id = try
		}
	}
	if a := r.agents[id]; a != nil && (a.Token != "" || now.Sub(a.Removed) < keepRemoved) {
		return "", errTaken
	}
	return id, nil
}

// drop removes an agent from memory. The caller holds r.mu.
func (r *registry) drop(a *registration) {
	delete(r.agents, a.ID)
	delete(r.tokens, a.Token)
	delete(r.unsaved, a.ID)
}

// renew gives an agent a new token.
func (r *registry) renew(ctx context.Context, id string) (token string, err error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	a, ok := r.get(id)
	if !ok {
		return "", errUnknown
	}
	token = credential.New("tok_")
	a.Token = credential.HashOf(token).String()
	return token, r.store(ctx, a, nil)
}

// remove ends the registration of an agent. Its id stays taken as long as the tombstone lasts.
func (r *registry) remove(ctx context.Context, id string) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	a, ok := r.get(id)
	if !ok {
		return errUnknown
	}
	a.Token, a.Removed = "", time.Now().UTC()
	return r.store(ctx, a, r.oldestTombstone())
}

// oldestTombstone returns the tombstone to delete so that another one has room, or nil if there is room.
func (r *registry) oldestTombstone() *registration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.agents)-len(r.tokens) < r.max {
		return nil
	}
	var oldest *registration
	for _, a := range r.agents {
		if a.Token == "" && (oldest == nil || a.Removed.Before(oldest.Removed)) {
			oldest = a
		}
	}
	return oldest
}

// store changes an agent durably, and at the same time deletes old if it is not nil. The caller holds r.writing.
func (r *registry) store(ctx context.Context, a registration, old *registration) error {
	changes := []store.Change{a.change(store.Any)}
	if old != nil {
		changes = append(changes, old.deletion())
	}
	if err := r.records.Apply(ctx, changes, time.Now()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old != nil {
		r.drop(old)
	}
	r.put(&a)
	return nil
}

// lookup returns the agent with this token.
func (r *registry) lookup(token string) (registration, bool) {
	if token == "" {
		return registration{}, false
	}
	hash := credential.HashOf(token).String()
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[r.tokens[hash]]
	if a == nil {
		return registration{}, false
	}
	return *a, true
}

// get returns the agent with this id. It reports false if the agent is not registered or was removed.
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

// admit reports whether hash is still the token hash of the agent.
func (r *registry) admit(id, hash string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[id]
	if a == nil || a.Token == "" || a.Token != hash {
		return false
	}
	return true
}

// markActive records that an agent sent a message. flush stores this at most once an hour for each agent.
func (r *registry) markActive(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[id]
	if a == nil {
		return
	}
	if now.Sub(a.storedActive) >= time.Hour {
		r.unsaved[id] = true
	}
	a.Active = now
}

// activeSince counts the registered agents that sent a message after since (AR-42).
func (r *registry) activeSince(since time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, a := range r.agents {
		if a.Token != "" && a.Active.After(since) {
			n++
		}
	}
	return n
}

// flush stores the activity of the agents.
func (r *registry) flush(ctx context.Context) error {
	r.writing.Lock() // no agent is dropped meanwhile
	defer r.writing.Unlock()
	r.mu.Lock()
	var unsaved []registration
	for id := range r.unsaved {
		unsaved = append(unsaved, *r.agents[id])
	}
	r.mu.Unlock()
	for batch := range slices.Chunk(unsaved, 500) {
		changes := make([]store.Change, len(batch))
		for i := range batch {
			changes[i] = batch[i].change(store.Any)
		}
		if err := r.records.Apply(ctx, changes, time.Now()); err != nil {
			return err
		}
		r.mu.Lock()
		for _, saved := range batch {
			a := r.agents[saved.ID]
			a.storedActive = saved.Active
			delete(r.unsaved, a.ID)
		}
		r.mu.Unlock()
	}
	return nil
}
