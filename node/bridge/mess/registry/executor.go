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

// Executor is a participant of the exchange. It registered and got a key (MESS-53), or the owner set it up. With a key
// it may also make requests. While it is pending (MESS-57), it may do nothing.
type Executor struct {
	credential.Account
	Name         string        `json:"name,omitempty"`
	Capabilities []thread.Need `json:"capabilities,omitempty"`
	Availability string        `json:"availability,omitempty"`
	Schedule     string        `json:"schedule,omitempty"`
	Timezone     string        `json:"timezone,omitempty"`

	// Stored and shown to the owner as given (MESS-45). Executors look for requests themselves, so nothing uses them.
	Preferences   wire.Value `json:"preferences,omitzero"`
	Notifications wire.Value `json:"notifications,omitzero"`
	Hooks         wire.Value `json:"hooks,omitzero"`

	caps map[string]bool // the ids of Capabilities; set once the executor is in memory
}

// Has reports whether the executor has a capability.
func (e *Executor) Has(capability string) bool { return e.caps[capability] }

// HasAll reports whether the executor has all of the capabilities (MESS-41).
func (e *Executor) HasAll(needs []thread.Need) bool {
	return !slices.ContainsFunc(needs, func(n thread.Need) bool { return !e.Has(n.ID) })
}

// Executors is the registry of executors with their keys, the catalog of capabilities, and the routing rules. It is
// kept in memory beside the records, so that routing does not read the store (MESS-42). It is safe for concurrent use.
type Executors struct {
	// Ask returns the changes that ask the owner about a registration (MESS-57). Set it before the first call. If it is
	// nil, the owner is not asked.
	Ask func(*Executor) ([]store.Change, error)

	cfg      Config
	accounts *credential.Registry[Executor, *Executor]
	calls    *rate.Buckets // one for each executor; nil means no limit

	mu      sync.RWMutex
	byCap   map[string]map[string]*Executor // by capability and executor id
	rules   wire.Value                      // as given
	catalog map[string]Capability           // by id
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

// MaxQuestions bounds the questions of one kind, such as whether to accept a registration, that wait for the owner.
const MaxQuestions = 200

// New returns an empty registry.
func New(cfg Config) *Executors {
	cfg.CallsPerMinute, cfg.RegistrationsPerHour = cmp.Or(cfg.CallsPerMinute, 600), cmp.Or(cfg.RegistrationsPerHour, 60)
	r := &Executors{cfg: cfg, byCap: map[string]map[string]*Executor{}, catalog: map[string]Capability{}}
	if n := cfg.CallsPerMinute; n > 0 {
		r.calls = rate.NewBuckets(rate.PerMinute(n), n, credential.MaxAccounts)
	}
	r.accounts = credential.NewRegistry[Executor](credential.Config[*Executor]{
		Records: cfg.Records, NS: NSExecutors, Prefix: "mess_" + cfg.ID + "_", Mode: cfg.Registration, Code: cfg.Invite,
		PerHour: cfg.RegistrationsPerHour, Index: r.index,
		Ask: func(e *Executor) ([]store.Change, error) {
			if r.Ask == nil {
				return nil, nil
			}
			return r.Ask(e)
		},
	})
	return r
}

// index replaces an executor in the lists of its capabilities.
func (r *Executors) index(old, next *Executor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old != nil {
		for id := range old.caps {
			if delete(r.byCap[id], old.ID); len(r.byCap[id]) == 0 {
				delete(r.byCap, id)
			}
		}
	}
	if next == nil {
		return
	}
	next.caps = make(map[string]bool, len(next.Capabilities))
	for _, n := range next.Capabilities {
		next.caps[n.ID] = true
		if r.byCap[n.ID] == nil {
			r.byCap[n.ID] = make(map[string]*Executor)
		}
		r.byCap[n.ID][next.ID] = next
	}
}

// Find returns an executor, or nil if the executor does not exist or waits for the owner's approval.
func (r *Executors) Find(id string) *Executor {
	if e := r.accounts.Get(id); e != nil && !e.Pending {
		return e
	}
	return nil
}

// CanClaim reports whether the executor could claim the thread if nobody held it: it is registered and approved, the
// thread is offered to it, and it has all required capabilities.
func (r *Executors) CanClaim(id string, t *thread.Thread) bool {
	e := r.accounts.Get(id)
	return e != nil && e.canClaim(t)
}

func (e *Executor) canClaim(t *thread.Thread) bool {
	return !e.Pending && t.IsOfferedTo(e.ID) && e.HasAll(t.Requires)
}

// Tree returns at most limit executors that match a query. withPending includes those that wait for approval.
func (r *Executors) Tree(q thread.Query, withPending bool, limit int) wire.Value {
	all := r.accounts.List()
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []wire.Value
	for _, c := range all {
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

// Update is what a committed transaction changed in the registry.
type Update struct {
	Executors []*Executor
	Rules     wire.Value // null leaves the rules as they are
}

// Publish updates the registry in memory after the commit of a transaction that changed it.
func (r *Executors) Publish(u Update) {
	r.accounts.Publish(u.Executors...)
	if !u.Rules.IsNull() {
		r.setRules(u.Rules)
	}
}

// Configure returns an executor with the settings of a config entry (MESS-37), and the change that stores it. The caller
// commits the change and publishes the executor. Only the owner may set up an executor that is not registered, or change
// one that waits for approval.
func (r *Executors) Configure(ctx context.Context, c thread.ExecutorConfig, byOwner bool, now time.Time) (*Executor, store.Change, error) {
	e, err := r.accounts.Read(ctx, c.ID)
	switch {
	case errors.Is(err, credential.ErrUnknown) && byOwner:
		e = &Executor{Account: credential.Account{ID: c.ID, Created: now}}
	case errors.Is(err, credential.ErrUnknown):
		return nil, store.Change{}, thread.Forbidden("the executor is not registered: register first")
	case err != nil:
		return nil, store.Change{}, err
	case e.Pending && !byOwner:
		return nil, store.Change{}, errPending
	}
	e.Capabilities, e.Availability, e.Schedule, e.Timezone = c.Capabilities, c.Availability, c.Schedule, c.Timezone
	e.Name = cmp.Or(c.Name, e.Name)
	if !byOwner {
		e.Seen = now
	}
	change, err := r.accounts.Change(e)
	return e, change, explain(err)
}

// setAvailability applies the availability, schedule and time zone of a registration. Without an availability, a
// schedule means availability by schedule.
func setAvailability(r Registration, e *Executor) {
	if r.has("schedule") {
		e.Schedule, e.Availability = r.Schedule, "always"
		if r.Schedule != "" {
			e.Availability = "schedule"
		}
	}
	e.Availability = cmp.Or(r.Availability, e.Availability)
	if r.has("timezone") {
		e.Timezone = r.Timezone
	}
}
