package exchange

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// Executor is somebody registered on the exchange: with a key, or set up by the owner. With a key it may be requester
// and executor at once.
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

	Claims []time.Duration `json:"claims,omitempty"` // from offer to claim, the newest last

	Version uint64 `json:"version"` // of the record
	rev     store.Rev
}

// maxClaims is how many times to a claim are remembered for lower_latency.
const maxClaims = 15

func (e *Executor) record() store.Record {
	return store.Record{NS: NSExecutors, Key: e.ID, Body: thread.Encode(e)}
}

// maxExecutor bounds what is kept of one executor: all of them are in memory, and strangers may register.
const maxExecutor = 32 << 10

func (e *Executor) fits() error {
	if len(thread.Encode(e)) > maxExecutor {
		return thread.TooLarge("what is said of the executor has more than 32 KiB")
	}
	return nil
}

func decodeExecutor(rec store.Record) (*Executor, error) {
	e := &Executor{rev: rec.Rev}
	if err := json.Unmarshal(rec.Body, e); err != nil {
		return nil, fmt.Errorf("decode executor: %w", err)
	}
	return e, nil
}

// candidate is an executor as routing sees it. Its executor is never changed, only replaced.
type candidate struct {
	*Executor
	caps   map[string]wire.Value
	zone   *time.Location
	quiet  *time.Location // of its quiet hours
	median time.Duration
	shift  *shift // of its schedule; nil without one

	patterns func() []*regexp.Regexp // that it claims by; compiled once

	mu   sync.Mutex
	last time.Time // when it last called
}

func newCandidate(e *Executor) *candidate {
	c := &candidate{Executor: e, caps: make(map[string]wire.Value, len(e.Capabilities)), zone: zoneOf(e.Timezone), median: 1 << 62}
	for _, n := range e.Capabilities {
		c.caps[n.ID] = n.Meta
	}
	c.quiet = zoneOf(e.Preferences.Quiet.Timezone)
	c.patterns = sync.OnceValue(func() []*regexp.Regexp {
		list, _ := compilePatterns(e.Preferences.AutoClaim) // judged when they came
		return list
	})
	if len(e.Claims) > 0 {
		sorted := slices.Sorted(slices.Values(e.Claims))
		c.median = sorted[len(sorted)/2]
	}
	return c
}

// zoneOf returns a time zone by its name, UTC where there is none.
func zoneOf(name string) *time.Location {
	if zone, err := time.LoadLocation(name); err == nil {
		return zone
	}
	return time.UTC
}

// has says whether the executor holds all of the capabilities (MESS-41).
func (c *candidate) has(needs []thread.Need) bool {
	for _, n := range needs {
		if _, ok := c.caps[n.ID]; !ok {
			return false
		}
	}
	return true
}

// available is MESS-43. named says that a routing rule names the executor.
func (c *candidate) available(now time.Time, named bool) bool {
	switch c.Availability {
	case "on_demand":
		return named
	case "schedule":
		return c.shift != nil && c.shift.at(now)
	}
	return true
}

// shift is a schedule in a time zone with its newest answer, which many executors may share: working one out takes long.
type shift struct {
	expr string
	zone *time.Location

	mu           sync.Mutex
	duty         bool
	since, until time.Time // of duty
}

func (s *shift) at(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.since) || !now.Before(s.until) {
		s.since = now
		s.duty, s.until = thread.IsOnDuty(s.expr, now.In(s.zone))
	}
	return s.duty
}

// maxShifts bounds how many are shared: expressions are a stranger's choice.
const maxShifts = 4096

// level is the declared level on the required capabilities, for higher_precision: a number, or a word that people use.
func (c *candidate) level(needs []thread.Need) int {
	words := []string{"novice", "basic", "intermediate", "advanced", "expert", "master"}
	best := 0
	for _, n := range needs {
		meta, ok := c.caps[n.ID]
		if !ok {
			continue
		}
		v, _ := meta.Get("level")
		if n, ok := thread.ReadWhole(v); ok {
			best = max(best, int(min(n, 1000)))
		} else if s, ok := v.Str(); ok {
			best = max(best, slices.Index(words, s)+1)
		}
	}
	return best
}

// Executors is the registry of executors, with their keys, the catalogue of capabilities and the routing rules. It is kept in
// memory beside the records, so that routing reads nothing (MESS-42).
type Executors struct {
	cfg     Config
	records store.Records
	load    func() error         // reads what is kept in memory
	named   func(id string) bool // reports whether a thread names somebody
	catalogue
	calls         *rate.Buckets // by executor: there is room for all of them; nil: no limit
	registrations *rate.Registrations
	failures      *rate.Penalties // for wrong keys

	mu    sync.RWMutex
	byID  map[string]*candidate
	all   []*candidate            // in the order of registration
	byCap map[string][]*candidate // likewise
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
	r.registrations = rate.NewRegistrations(cmp.Or(cfg.RegistrationsPerHour, 60), newPlaces(credential.Mode(cfg.Registration)))
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

// put adds or replaces an executor, unless a newer version of it is here: what was committed first may come second.
func (r *Executors) put(e *Executor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.byID[e.ID]; old == nil || old.Version <= e.Version {
		r.replace(e)
	}
}

// replace puts an executor in its place. The caller holds the lock.
func (r *Executors) replace(e *Executor) {
	c := newCandidate(e)
	old := r.byID[e.ID]
	if old != nil {
		c.last = old.lastSeen()
	}
	c.shift = r.shiftOf(c)
	r.byID[e.ID] = c
	if old == nil {
		r.all = append(r.all, c)
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
			list := r.byCap[id]
			at := slices.Index(list, old)
			if _, still := c.caps[id]; still {
				list[at] = c
				continue
			}
			r.byCap[id] = slices.Delete(slices.Clone(list), at, at+1)
		}
	}
	for id := range c.caps {
		if old != nil {
			if _, had := old.caps[id]; had {
				continue
			}
		}
		r.byCap[id] = append(r.byCap[id], c)
	}
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

// may says whether the executor could claim the thread, were it free: registered, approved, offered to it, and with all
// required capabilities.
func (r *Executors) may(id string, t *thread.Thread) bool {
	c := r.get(id)
	return c != nil && !c.Pending && t.IsOfferedTo(id) && c.has(t.Requires)
}

// list returns the executors in the order of registration.
func (r *Executors) list() []*candidate {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.all)
}

// claimTime is how long an executor took to a claim.
type claimTime struct {
	id   string
	took time.Duration
	at   time.Time
}

// claims are the capabilities that executors have who may work here, in any order.
func (r *Executors) claims() []string {
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

// claimed remembers a claim in memory; it reaches the store with the executor's next change.
func (r *Executors) claimed(c claimTime) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.byID[c.id]
	if old == nil {
		return
	}
	e := *old.Executor // as it is now: its key may just have been taken away
	e.Claims = append(slices.Clone(e.Claims), c.took)
	if len(e.Claims) > maxClaims {
		e.Claims = e.Claims[1:]
	}
	e.Seen = c.at
	r.replace(&e)
}

// stored returns an executor for change, as its record has it.
func (r *Executors) stored(ctx context.Context, id string) (*Executor, error) {
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

// edit changes an executor as it stands at that moment; more are changes of the same unit. Two changes at once leave both:
// a key that was taken away does not come back with a change of somebody's capabilities.
func (r *Executors) edit(ctx context.Context, id string, more []store.Change, change func(*Executor) error) error {
	for range maxConflicts {
		e, err := r.stored(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return thread.Missing("no such executor")
		}
		if err != nil {
			return err
		}
		if err := cmp.Or(change(e), e.fits()); err != nil {
			return err
		}
		err = r.records.Apply(ctx, append([]store.Change{{Record: e.record(), IfRev: e.rev}}, more...), time.Now())
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil {
			r.put(e)
		}
		return err
	}
	return store.ErrConflict
}

// setAvailability changes when an executor is available, as far as the registration says it. A schedule alone is kept to, and an
// empty one ends.
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
