package exchange

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Executor is a participant that is registered on the exchange: with a key, or set up by the owner. With a key it may
// be both requester and executor.
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
	Seen         time.Time     `json:"seen,omitzero"`

	Preferences   Preferences    `json:"preferences,omitzero"`
	Notifications []Notification `json:"notifications,omitempty"`
	Hooks         wire.Value     `json:"hooks,omitzero"` // stored, not run (MESS-45)

	Claims []time.Duration `json:"claims,omitempty"` // times from the offer of a thread to its claim, the newest last

	Version uint64 `json:"version"` // of the record
	rev     store.Rev
}

// maxClaims bounds the claim times that are kept for lower_latency.
const maxClaims = 15

func (e *Executor) record() store.Record {
	return store.Record{NS: NSExecutors, Key: e.ID, Body: thread.Encode(e)}
}

// maxExecutor bounds the stored size of one executor: all of them are in memory, and strangers may register.
const maxExecutor = 32 << 10

func (e *Executor) checkSize() error {
	if len(thread.Encode(e)) > maxExecutor {
		return thread.TooLarge("the registration of an executor may have at most 32 KiB")
	}
	return nil
}

// compare orders executors by the time of their registration, the oldest first.
func (e *Executor) compare(o *Executor) int {
	return cmp.Or(e.Created.Compare(o.Created), cmp.Compare(e.ID, o.ID))
}

func decodeExecutor(rec store.Record) (*Executor, error) {
	e, err := decode[Executor](rec, "executor")
	e.rev = rec.Rev
	return &e, err
}

// candidate is an executor as routing sees it. Its Executor is never changed, only replaced.
type candidate struct {
	*Executor
	caps      map[string]wire.Value
	zone      *time.Location
	quietZone *time.Location // zone of its quiet hours
	median    time.Duration
	shift     *shift // of its schedule; nil without one

	patterns func() ([]*regexp.Regexp, int) // its auto-claim patterns, compiled once, and their instructions

	mu   sync.Mutex
	last time.Time // its last call
}

func newCandidate(e *Executor) *candidate {
	c := &candidate{Executor: e, caps: make(map[string]wire.Value, len(e.Capabilities)), zone: zoneOf(e.Timezone), median: 1 << 62}
	for _, n := range e.Capabilities {
		c.caps[n.ID] = n.Meta
	}
	c.quietZone = zoneOf(e.Preferences.Quiet.Timezone)
	c.patterns = sync.OnceValues(func() ([]*regexp.Regexp, int) {
		list, size, _ := compilePatterns(e.Preferences.AutoClaim) // checked when they were set
		return list, size
	})
	if len(e.Claims) > 0 {
		sorted := slices.Sorted(slices.Values(e.Claims))
		c.median = sorted[len(sorted)/2]
	}
	return c
}

// zoneOf returns a time zone by name, or UTC if the name is unknown.
func zoneOf(name string) *time.Location {
	if zone, err := time.LoadLocation(name); err == nil {
		return zone
	}
	return time.UTC
}

// hasAll reports whether the executor has all of the capabilities (MESS-41).
func (c *candidate) hasAll(needs []thread.Need) bool {
	return !slices.ContainsFunc(needs, func(n thread.Need) bool { _, ok := c.caps[n.ID]; return !ok })
}

// isAvailable implements MESS-43. named means that a routing rule names the executor.
func (c *candidate) isAvailable(now time.Time, named bool) bool {
	switch c.Availability {
	case "on_demand":
		return named
	case "schedule":
		return c.shift != nil && c.shift.isOnDuty(now)
	}
	return true
}

// shift is a schedule in a time zone, with its latest result. Executors with the same schedule share it, because
// evaluating a schedule is slow.
type shift struct {
	expr string
	zone *time.Location

	mu           sync.Mutex
	duty         bool
	since, until time.Time // for which duty is valid
}

func (s *shift) isOnDuty(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.since) || !now.Before(s.until) {
		s.since = now
		s.duty, s.until = thread.IsOnDuty(s.expr, now.In(s.zone))
	}
	return s.duty
}

// maxShifts bounds the shared schedules: strangers choose the expressions.
const maxShifts = 4096

// level returns the highest level that the executor declares for a required capability, for the rule higher_precision.
// A level is a number, or a common word that counts by its rank. Without a declared level it is 0.
func (c *candidate) level(needs []thread.Need) int {
	words := []string{"novice", "basic", "intermediate", "advanced", "expert", "master"}
	best := 0
	for _, n := range needs {
		meta, ok := c.caps[n.ID]
		if !ok {
			continue
		}
		v, _ := meta.Get("level")
		if level, ok := thread.ReadWhole(v); ok {
			best = max(best, int(min(level, 1000)))
		} else if s, ok := v.Str(); ok {
			best = max(best, slices.Index(words, s)+1)
		}
	}
	return best
}

// Executors is the registry of executors with their keys, the catalogue of capabilities, and the routing rules. It is
// kept in memory beside the records, so that routing does not read the store (MESS-42). It is safe for concurrent use.
type Executors struct {
	cfg        Config
	records    store.Records
	load       func() error         // loads the exchange (see [Exchange.Load])
	hasThreads func(id string) bool // reports whether a thread has this requester or holder
	catalogue
	calls         *rate.Buckets // by executor; large enough for all of them; nil means no limit
	registrations *rate.Registrations
	failures      *rate.Penalties // for wrong keys

	mu    sync.RWMutex
	byID  map[string]*candidate
	all   []*candidate            // in the order in which they were registered
	byCap map[string][]*candidate // by capability, each list in the same order
	keys  map[string]string       // hex hash of a key → executor
	rules []thread.Rule

	shifts map[string]*shift // by expression and zone
}

func newExecutors(cfg Config) *Executors {
	r := &Executors{cfg: cfg, byID: map[string]*candidate{}, byCap: map[string][]*candidate{}, keys: map[string]string{}, shifts: map[string]*shift{}}
	r.failures = rate.NewPenalties(MaxFailures, 0, maxAddresses)
	if n := cmp.Or(cfg.CallsPerMinute, 600); n > 0 {
		r.calls = rate.NewBuckets(rate.PerMinute(n), n, maxExecutors)
	}
	r.registrations = rate.NewRegistrations(cmp.Or(cfg.RegistrationsPerHour, 60), newRegistrationPool(credential.Mode(cfg.Registration)))
	return r
}

// shiftOf returns the shared shift of a schedule. The caller holds the lock.
func (r *Executors) shiftOf(c *candidate) *shift {
	if c.Availability != "schedule" {
		return nil
	}
	key := c.zone.String() + " " + c.Schedule
	s := r.shifts[key]
	if s == nil {
		s = &shift{expr: c.Schedule, zone: c.zone}
		if len(r.shifts) < maxShifts {
			r.shifts[key] = s
		}
	}
	return s
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
	old := r.byID[e.ID]
	if old != nil {
		c.last = old.lastSeen()
	}
	c.shift = r.shiftOf(c)
	r.byID[e.ID] = c
	if old == nil {
		r.all = insertCandidate(r.all, c)
	} else {
		if old.KeyHash != e.KeyHash {
			delete(r.keys, old.KeyHash)
		}
		r.all[slices.Index(r.all, old)] = c
	}
	if e.KeyHash != "" {
		r.keys[e.KeyHash] = e.ID
	}
	r.reindex(old, c)
}

func (r *Executors) reindex(old, c *candidate) {
	if old != nil {
		for id := range old.caps {
			if _, still := c.caps[id]; still {
				r.byCap[id][slices.Index(r.byCap[id], old)] = c
				continue
			}
			removeFrom(r.byCap, id, old)
		}
	}
	for id := range c.caps {
		if old != nil {
			if _, had := old.caps[id]; had {
				continue
			}
		}
		r.byCap[id] = insertCandidate(r.byCap[id], c)
	}
}

// insertCandidate adds a candidate to a list in the order of [Executor.compare].
func insertCandidate(list []*candidate, c *candidate) []*candidate {
	i, _ := slices.BinarySearchFunc(list, c, func(a, b *candidate) int { return a.compare(b.Executor) })
	return slices.Insert(list, i, c)
}

func (r *Executors) remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.byID[id]
	if c == nil {
		return
	}
	delete(r.byID, id)
	delete(r.keys, c.KeyHash)
	r.all = slices.Delete(slices.Clone(r.all), slices.Index(r.all, c), slices.Index(r.all, c)+1)
	r.reindex(c, &candidate{Executor: c.Executor, caps: map[string]wire.Value{}})
}

func (r *Executors) get(id string) *candidate {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

// canClaim reports whether the executor could claim the thread if nobody held it: it is registered and approved, the
// thread is offered to it, and it has all required capabilities.
func (r *Executors) canClaim(id string, t *thread.Thread) bool {
	c := r.get(id)
	return c != nil && c.canClaim(t)
}

func (c *candidate) canClaim(t *thread.Thread) bool {
	return !c.Pending && t.IsOfferedTo(c.ID) && c.hasAll(t.Requires)
}

// list returns all executors.
func (r *Executors) list() []*candidate {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.all)
}

// claimTime is how long an executor took to claim a thread.
type claimTime struct {
	id   string
	took time.Duration
	at   time.Time
}

// capabilityIDs returns the capabilities of all approved executors, in any order.
func (r *Executors) capabilityIDs() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []string
	for id, list := range r.byCap {
		if slices.ContainsFunc(list, func(c *candidate) bool { return !c.Pending }) {
			out = append(out, id)
		}
	}
	return out
}

// addClaim records a claim time in memory. It reaches the store with the executor's next change.
func (r *Executors) addClaim(c claimTime) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.byID[c.id]
	if old == nil {
		return
	}
	e := *old.Executor // the current state: the owner may just have removed its key
	e.Claims = append(slices.Clone(e.Claims), c.took)
	if len(e.Claims) > maxClaims {
		e.Claims = e.Claims[1:]
	}
	e.Seen = c.at
	r.replace(&e)
}

// read returns an executor from the store for a change: with the next version number, and with the claim times that are
// only in memory.
func (r *Executors) read(ctx context.Context, id string) (*Executor, error) {
	rec, err := r.records.Get(ctx, NSExecutors, id, time.Now())
	if err != nil {
		return nil, err
	}
	e, err := decodeExecutor(rec)
	if err != nil {
		return nil, err
	}
	e.Version++
	if c := r.get(id); c != nil {
		e.Claims = c.Claims
	}
	return e, nil
}

// edit changes an executor from its current state in the store; more are changes of the same unit. Concurrent edits do
// not overwrite each other: a removed key does not come back with a change of capabilities.
func (r *Executors) edit(ctx context.Context, id string, more []store.Change, change func(*Executor) error) error {
	return retry(func() error {
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
		err = r.records.Apply(ctx, append([]store.Change{{Record: e.record(), IfRev: e.rev}}, more...), time.Now())
		if err == nil {
			r.put(e)
		}
		return err
	})
}

// setAvailability applies the availability, schedule and time zone of a registration. Without an availability, a
// schedule means availability by schedule, and an empty schedule means that the executor is always available.
func setAvailability(r Registration, e *Executor) error {
	has := func(key string) bool { return slices.Contains(r.present, key) }
	if has("schedule") {
		e.Schedule, e.Availability = r.Schedule, "always"
		if r.Schedule != "" {
			e.Availability = "schedule"
		}
	}
	if r.Availability != "" {
		e.Availability = r.Availability
		if !has("schedule") && e.Availability != "schedule" {
			e.Schedule = ""
		}
	}
	if has("timezone") {
		e.Timezone = r.Timezone
	}
	switch {
	case e.Availability == "schedule" && e.Schedule == "":
		return thread.Bad("schedule", thread.ScheduleMissing)
	case e.Availability != "schedule" && e.Schedule != "":
		return thread.Bad("schedule", thread.ScheduleAlone)
	case e.Schedule == "" && has("timezone") && r.Timezone != "":
		return thread.Bad("timezone", "goes with a schedule")
	}
	return nil
}
