package registry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Executor is a participant of the exchange. It registered and got a key, or the owner set it up. With a key it may
// also make requests.
type Executor struct {
	ID           string        `json:"id"`
	Name         string        `json:"name,omitempty"`
	Capabilities []thread.Need `json:"capabilities,omitempty"`
	Availability string        `json:"availability,omitempty"`
	Schedule     string        `json:"schedule,omitempty"`
	Timezone     string        `json:"timezone,omitempty"`
	KeyHash      string        `json:"key_hash,omitempty"` // hex SHA-256 of its key (MESS-53)
	Pending      bool          `json:"pending,omitempty"`  // waits for the owner's approval (MESS-57)
	Created      time.Time     `json:"created"`
	Seen         time.Time     `json:"seen,omitzero"` // its last activity, as stored; Candidate.last may be later

	// Stored and shown to the owner as given (MESS-45). Executors look for requests themselves, so nothing uses them.
	Preferences   wire.Value `json:"preferences,omitzero"`
	Notifications wire.Value `json:"notifications,omitzero"`
	Hooks         wire.Value `json:"hooks,omitzero"`

	Version uint64 `json:"version"` // of the record
	rev     store.Rev
}

// Change returns the change that stores the executor, unless it was changed since it was read.
func (e *Executor) Change() store.Change {
	return store.Change{Record: store.Record{NS: NSExecutors, Key: e.ID, Body: thread.Encode(e)}, IfRev: e.rev}
}

// maxExecutorSize bounds the stored size of one executor: all of them are in memory, and strangers may register.
const maxExecutorSize = 32 << 10

func (e *Executor) checkSize() error {
	if len(thread.Encode(e)) > maxExecutorSize {
		return thread.TooLarge("the registration of an executor may have at most 32 KiB")
	}
	return nil
}

// compare orders executors by the time of their registration.
func (e *Executor) compare(o *Executor) int {
	return cmp.Or(e.Created.Compare(o.Created), cmp.Compare(e.ID, o.ID))
}

func decodeExecutor(rec store.Record) (*Executor, error) {
	e, err := store.Decode[Executor](rec)
	e.rev = rec.Rev
	return &e, err
}

// Candidate is an executor as routing sees it. Its Executor is never changed, only replaced.
type Candidate struct {
	*Executor
	caps map[string]bool

	mu   sync.Mutex // guards last
	last time.Time  // its last call
}

func newCandidate(e *Executor) *Candidate {
	c := &Candidate{Executor: e, caps: make(map[string]bool, len(e.Capabilities))}
	for _, n := range e.Capabilities {
		c.caps[n.ID] = true
	}
	return c
}

// Has reports whether the executor has a capability.
func (c *Candidate) Has(capability string) bool { return c.caps[capability] }

// HasAll reports whether the executor has all of the capabilities (MESS-41).
func (c *Candidate) HasAll(needs []thread.Need) bool {
	return !slices.ContainsFunc(needs, func(n thread.Need) bool { return !c.Has(n.ID) })
}

// Executors is the registry of executors with their keys, the catalog of capabilities, and the routing rules. It is
// kept in memory beside the records, so that routing does not read the store (MESS-42). It is safe for concurrent use.
type Executors struct {
	cfg           Config
	calls         *rate.Buckets // one for each executor; nil means no limit
	registrations *rate.Registrations
	failures      *rate.Penalties // for wrong keys

	mu    sync.RWMutex
	byID  map[string]*Candidate
	all   []*Candidate            // in the order in which they were registered
	byCap map[string][]*Candidate // by capability, each list in the same order
	keys  map[string]string       // hex hash of a key → executor
	rules wire.Value              // as given

	catalog map[string]Capability // by id
}

// Config configures a registry.
type Config struct {
	ID           string          // id of the exchange
	Registration credential.Mode // how executors register: open, approval or invite (MESS-57)
	Invite       string          // the bearer token that registration asks for in mode invite

	CallsPerMinute       int // for each API key; 0 means 600, a negative number means no limit (MESS-58)
	RegistrationsPerHour int // for each address; 0 means 60, a negative number means no limit

	Records    store.Records
	Load       func() error         // loads the exchange, and with it the registry (see [Executors.Restore])
	HasThreads func(id string) bool // reports whether a thread has this requester or holder
}

const (
	openADay     = 10_000  // registrations a day in mode open
	maxAddresses = 1 << 16 // addresses for which wrong keys are counted at the same time

	// MaxFailures is the number of wrong keys from one address in a minute.
	MaxFailures = 30
	// MaxExecutors bounds the registered executors.
	MaxExecutors = 100_000
	// MaxQuestions bounds the questions of one kind, such as whether to accept a registration, that wait for the owner.
	MaxQuestions = 200
)

// New returns an empty registry.
func New(cfg Config) *Executors {
	cfg.CallsPerMinute, cfg.RegistrationsPerHour = cmp.Or(cfg.CallsPerMinute, 600), cmp.Or(cfg.RegistrationsPerHour, 60)
	r := &Executors{cfg: cfg, byID: map[string]*Candidate{}, byCap: map[string][]*Candidate{}, keys: map[string]string{}, catalog: map[string]Capability{}}
	const barFor = 0 // bar an address only until its oldest failure is forgotten
	r.failures = rate.NewPenalties(MaxFailures, barFor, maxAddresses)
	if n := cfg.CallsPerMinute; n > 0 {
		r.calls = rate.NewBuckets(rate.PerMinute(n), n, MaxExecutors)
	}
	r.registrations = rate.NewRegistrations(cfg.RegistrationsPerHour, newRegistrationPool(cfg.Registration))
	return r
}

// put adds or replaces an executor, unless the registry has a newer version: commits may arrive here out of order.
func (r *Executors) put(e *Executor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.byID[e.ID]; old == nil || old.Version <= e.Version {
		r.replace(e)
	}
}

// replace stores an executor in memory. The caller holds the lock.
func (r *Executors) replace(e *Executor) {
	c := newCandidate(e)
	if old := r.byID[e.ID]; old != nil {
		c.last = old.lastSeen()
		r.unlink(old)
	}
	r.byID[e.ID] = c
	r.all = insertCandidate(r.all, c)
	if e.KeyHash != "" {
		r.keys[e.KeyHash] = e.ID
	}
	for id := range c.caps {
		r.byCap[id] = insertCandidate(r.byCap[id], c)
	}
}

// unlink removes an executor from memory. The caller holds the lock.
func (r *Executors) unlink(c *Candidate) {
	delete(r.byID, c.ID)
	delete(r.keys, c.KeyHash)
	r.all = deleteCandidate(r.all, c)
	for id := range c.caps {
		if r.byCap[id] = deleteCandidate(r.byCap[id], c); len(r.byCap[id]) == 0 {
			delete(r.byCap, id)
		}
	}
}

// insertCandidate inserts a candidate into a list that is in the order of the registrations.
func insertCandidate(list []*Candidate, c *Candidate) []*Candidate {
	i, _ := slices.BinarySearchFunc(list, c.Executor, (*Candidate).compare)
	return slices.Insert(list, i, c)
}

// deleteCandidate removes a candidate from a list of [insertCandidate].
func deleteCandidate(list []*Candidate, c *Candidate) []*Candidate {
	i, _ := slices.BinarySearchFunc(list, c.Executor, (*Candidate).compare)
	return slices.Delete(list, i, i+1)
}

func (r *Executors) remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byID[id]; c != nil {
		r.unlink(c)
	}
}

func (r *Executors) get(id string) *Candidate {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

// Find returns an executor, or nil if the executor does not exist or waits for the owner's approval.
func (r *Executors) Find(id string) *Candidate {
	if c := r.get(id); c != nil && !c.Pending {
		return c
	}
	return nil
}

// CanClaim reports whether the executor could claim the thread if nobody held it: it is registered and approved, the
// thread is offered to it, and it has all required capabilities.
func (r *Executors) CanClaim(id string, t *thread.Thread) bool {
	c := r.get(id)
	return c != nil && c.canClaim(t)
}

func (c *Candidate) canClaim(t *thread.Thread) bool {
	return !c.Pending && t.IsOfferedTo(c.ID) && c.HasAll(t.Requires)
}

// Tree returns at most limit executors that match a query. withPending includes those that wait for approval.
func (r *Executors) Tree(q thread.Query, withPending bool, limit int) wire.Value {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []wire.Value
	for _, c := range r.all {
		if c.Pending && !withPending || q.Executor != "" && q.Executor != c.ID || len(out) == limit {
			continue
		}
		if len(q.Tags) > 0 && !slices.ContainsFunc(c.Capabilities, func(n thread.Need) bool { return r.catalog[n.ID].hasTag(q.Tags) }) {
			continue
		}
		v := wire.Obj(wire.TextField("id", c.ID)).WithOptional("name", c.Name)
		out = append(out, v.With("capabilities", thread.NeedsTree(c.Capabilities)).With("availability", wire.Text(cmp.Or(c.Availability, "always"))))
	}
	return wire.Arr(out...)
}

func (r *Executors) list() []*Candidate {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.all)
}

// Update is what a committed transaction changed in the registry.
type Update struct {
	Executors []*Executor
	Rules     wire.Value // null leaves the rules as they are
}

// Publish updates the registry in memory after the commit of a transaction that changed it.
func (r *Executors) Publish(u Update) {
	for _, e := range u.Executors {
		r.put(e)
	}
	if !u.Rules.IsNull() {
		r.setRules(u.Rules)
	}
}

// read returns an executor from the store for a change, with the next version.
func (r *Executors) read(ctx context.Context, id string) (*Executor, error) {
	rec, err := r.cfg.Records.Get(ctx, NSExecutors, id, time.Now())
	if err != nil {
		return nil, err
	}
	e, err := decodeExecutor(rec)
	if err != nil {
		return nil, err
	}
	e.Version++
	return e, nil
}

// edit changes an executor from its current state in the store, in one transaction with the extra changes. Concurrent
// edits do not overwrite each other: a removed key does not come back with a change of capabilities.
func (r *Executors) edit(ctx context.Context, id string, extra []store.Change, change func(*Executor) error) error {
	return store.Retry(func() error {
		e, err := r.read(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return thread.Missing("no such executor")
		}
		if err != nil {
			return err
		}
		if err := cmp.Or(change(e), e.checkSize()); err != nil {
			return err
		}
		err = r.cfg.Records.Apply(ctx, append([]store.Change{e.Change()}, extra...), time.Now())
		if err == nil {
			r.put(e)
		}
		return err
	})
}

// Configure returns an executor with the settings of a config entry (MESS-37), to be stored and published by the
// caller. Only the owner may set up an executor that is not registered, or change one that waits for approval.
func (r *Executors) Configure(ctx context.Context, c thread.ExecutorConfig, byOwner bool, now time.Time) (*Executor, error) {
	e, err := r.read(ctx, c.ID)
	switch {
	case errors.Is(err, store.ErrNotFound) && byOwner:
		e = &Executor{ID: c.ID, Created: now}
	case errors.Is(err, store.ErrNotFound):
		return nil, thread.Forbidden("the executor is not registered: register first")
	case err != nil:
		return nil, err
	case e.Pending && !byOwner:
		return nil, errPending
	}
	e.Capabilities, e.Availability, e.Schedule, e.Timezone = c.Capabilities, c.Availability, c.Schedule, c.Timezone
	e.Name = cmp.Or(c.Name, e.Name)
	if !byOwner {
		e.Seen = now
	}
	return e, e.checkSize()
}

// setAvailability applies the availability, schedule and time zone of a registration. Without an availability, a
// schedule means availability by schedule, and an empty schedule means that the executor is always available.
func setAvailability(r Registration, e *Executor) error {
	if r.has("schedule") {
		e.Schedule, e.Availability = r.Schedule, "always"
		if r.Schedule != "" {
			e.Availability = "schedule"
		}
	}
	if r.Availability != "" {
		e.Availability = r.Availability
		if !r.has("schedule") && e.Availability != "schedule" {
			e.Schedule = ""
		}
	}
	if r.has("timezone") {
		e.Timezone = r.Timezone
	}
	switch {
	case e.Availability == "schedule" && e.Schedule == "":
		return thread.Bad("schedule", thread.ScheduleMissing)
	case e.Availability != "schedule" && e.Schedule != "":
		return thread.Bad("schedule", thread.ScheduleAlone)
	case e.Schedule == "" && r.has("timezone") && r.Timezone != "":
		return thread.Bad("timezone", "is allowed only with a schedule")
	}
	return nil
}
