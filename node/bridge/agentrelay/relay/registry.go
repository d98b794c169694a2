package relay

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/store"
)

// nsAgents holds the registered agents, by id. A removed one stays as a tombstone, so that nobody else gets the id of
// somebody whom others have met (AR-2).
const nsAgents = "agentrelay/agents"

const (
	// MaxAgents bounds what one relay registers. Tombstones have a room of their own, as large; the oldest make way.
	MaxAgents = 10_000
	// keepRemoved is how long a tombstone stays.
	keepRemoved = 365 * 24 * time.Hour
	// keepUnused is how long an id is kept, when all are given out, for somebody who never connected with it.
	keepUnused = 24 * time.Hour
)

// registration is an agent of the relay. Only the hash of its token is kept (AR-5).
type registration struct {
	ID      string    `json:"id"`
	Token   string    `json:"token_sha256,omitempty"` // hex; empty: removed
	Since   time.Time `json:"since"`
	Removed time.Time `json:"removed,omitzero"`
	Active  time.Time `json:"active,omitzero"`   // when it last sent a message, to an hour after a crash (AR-42)
	Used    bool      `json:"used,omitempty"`    // it connected once, or the owner made it
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
	clock   *store.WallClock

	writing sync.Mutex // held over a write, so that an id is promised once; taken before mu

	mu     sync.Mutex
	agents map[string]*registration // tombstones too
	tokens map[string]string        // hash to id
	moved  map[string]bool          // whose activity is not stored yet
}

func loadRegistry(ctx context.Context, records store.Records, limit int, clock *store.WallClock) (*registry, error) {
	r := &registry{
		records: records, max: limit, clock: clock, agents: make(map[string]*registration), tokens: make(map[string]string),
		moved: make(map[string]bool),
	}
	for rec, err := range store.AllRecords(ctx, records, nsAgents, "", time.Now()) {
		a := &registration{}
		if err == nil {
			err = json.Unmarshal(rec.Body, a)
		}
		if err != nil {
			return nil, fmt.Errorf("read agent %q of the relay: %w", rec.Key, err)
		}
		r.put(a)
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
	body, _ := json.Marshal(a) // strings and times always encode
	rec := store.Record{NS: nsAgents, Key: a.ID, Body: body}
	if a.Token == "" {
		rec.Expires = a.Removed.Add(keepRemoved)
	}
	return store.Change{Record: rec, IfRev: ifRev}
}

// forget deletes an agent for good.
func (a *registration) forget() store.Change {
	return store.Change{Record: store.Record{NS: nsAgents, Key: a.ID}, IfRev: store.Any, Delete: true}
}

// register gives an id, the one that is asked for or one of ours, and its token. more changes in the same unit.
func (r *registry) register(ctx context.Context, a registration, more ...store.Change) (string, string, error) {
	if a.ID != "" && (!frame.ValidAgentID(a.ID) || a.ID == frame.RelayID) {
		return "", "", errBadID
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	a.Since = time.Now().UTC()
	id, old, err := r.free(a.ID, a.Since)
	if err != nil {
		return "", "", err
	}
	token := credential.New("tok_") // AR-5
	a.ID, a.Token = id, credential.HashOf(token).String()
	changes := append([]store.Change{a.change(store.Absent)}, more...)
	if old != nil {
		changes = append([]store.Change{old.forget()}, changes...)
	}
	if err := r.records.Apply(ctx, changes, a.Since); err != nil {
		if old != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.put(old)
		}
		return "", "", err
	}
	// Whoever has the token can hear only what has a later time: that is what the history goes by (AR-46).
	<-time.After(time.Until(a.Since.Truncate(time.Millisecond).Add(time.Millisecond)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(&a)
	return id, token, nil
}

// free returns an id that nobody has or had: id, or a new one if id is empty. If the relay is full, old is the agent that
// makes way: its token is invalid from here on, so that it does not connect before it is gone.
func (r *registry) free(id string, now time.Time) (free string, old *registration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tokens) >= r.max {
		if !r.clock.Believed() { // an agent that makes way does not come back with the right time
			return "", nil, errFull
		}
		if old = r.oldest(func(a *registration) bool { return a.Token != "" && !a.Used && now.Sub(a.Since) >= keepUnused }); old == nil {
			return "", nil, errFull
		}
	}
	for id == "" {
		if try := "agent-" + strings.ToLower(rand.Text()[:8]); r.agents[try] == nil {
			id = try
		}
	}
	if a := r.agents[id]; a != nil && (a.Token != "" || now.Sub(a.Removed) < keepRemoved) {
		return "", nil, errTaken
	}
	if old != nil {
		r.drop(old)
	}
	return id, old, nil
}

// oldest returns the agent that registered first among those that of accepts, nil if there is none. r.mu is held.
func (r *registry) oldest(of func(*registration) bool) (first *registration) {
	for _, a := range r.agents {
		if of(a) && (first == nil || a.Since.Before(first.Since)) {
			first = a
		}
	}
	return first
}

// drop forgets an agent. r.mu is held.
func (r *registry) drop(a *registration) {
	delete(r.agents, a.ID)
	delete(r.tokens, a.Token)
	delete(r.moved, a.ID)
}

// renew gives an agent another token.
func (r *registry) renew(ctx context.Context, id string) (token string, err error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	a, ok := r.get(id)
	if !ok {
		return "", errUnknown
	}
	token = credential.New("tok_")
	a.Token, a.Used = credential.HashOf(token).String(), true
	return token, r.store(ctx, a, nil)
}

// remove ends an agent. Its id stays taken for as long as the tombstone lasts.
func (r *registry) remove(ctx context.Context, id string) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	a, ok := r.get(id)
	if !ok {
		return errUnknown
	}
	a.Token, a.Removed = "", time.Now().UTC()
	return r.store(ctx, a, r.surplus())
}

// surplus returns the tombstone that makes way for another one, nil if there is room.
func (r *registry) surplus() *registration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.agents)-len(r.tokens) < r.max {
		return nil
	}
	return r.oldest(func(a *registration) bool { return a.Token == "" })
}

// store changes an agent durably, and forgets another one with it. r.writing is held.
func (r *registry) store(ctx context.Context, a registration, old *registration) error {
	changes := []store.Change{a.change(store.Any)}
	if old != nil {
		changes = append(changes, old.forget())
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

// lookup returns the agent that has this token.
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

// admit reports whether a token, by its hash, is still that of the agent, and notes that it was used.
func (r *registry) admit(id, hash string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[id]
	if a == nil || a.Token == "" || a.Token != hash {
		return false
	}
	if !a.Used {
		a.Used, r.moved[id] = true, true
	}
	return true
}

// active notes that an agent sent a message.
func (r *registry) active(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[id]
	if a == nil {
		return
	}
	if now.Sub(a.Active) >= time.Hour {
		r.moved[id] = true
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
