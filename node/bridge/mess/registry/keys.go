package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// exchangeForm matches exchange ids: the field of a key between its first two underscores (MESS-53).
var exchangeForm = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// ValidExchangeID reports whether id may be the id of an exchange.
func ValidExchangeID(id string) bool { return exchangeForm.MatchString(id) }

// Errors of keys and registrations.
var (
	ErrNoKey    = &wire.Error{Code: wire.Unauthorized, Status: http.StatusUnauthorized, Message: "a valid API key is required"}
	errOtherKey = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "the API key belongs to another exchange"}
	errNoInvite = &wire.Error{Code: wire.Unauthorized, Status: http.StatusUnauthorized, Message: "registration needs an invite"}
	errPending  = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "the registration waits for the owner's approval"}
)

// newKey returns a key of the form mess_EXCHANGE_ and 32 hexadecimal digits.
func newKey(exchange string) string { return credential.New("mess_" + exchange + "_") }

func hashKey(key string) string { return credential.HashOf(key).String() }

// Authenticate returns the executor id for the key in an Authorization header. It compares hashes of keys.
func (r *Executors) Authenticate(header, exchange string) (id string, err error) {
	if err := r.cfg.Load(); err != nil {
		return "", err
	}
	key, ok := strings.CutPrefix(header, "Bearer ")
	if !ok {
		return "", ErrNoKey
	}
	parts := strings.SplitN(key, "_", 3)
	if len(parts) != 3 || parts[0] != "mess" || len(parts[2]) != 32 || strings.Trim(parts[2], "0123456789abcdef") != "" {
		return "", ErrNoKey
	}
	if parts[1] != exchange {
		return "", errOtherKey
	}
	hash := hashKey(key)
	c := r.byKey(hash)
	if c == nil || c.KeyHash != hash {
		return "", ErrNoKey
	}
	if c.Pending {
		return "", errPending
	}
	c.markSeen(time.Now())
	if r.calls != nil {
		if wait, ok := r.calls.Take(c.ID, time.Now()); !ok {
			return "", thread.TooMany(fmt.Sprintf("too many calls: at most %d a minute", r.cfg.CallsPerMinute), wait)
		}
	}
	return c.ID, nil
}

func (r *Executors) byKey(hash string) *Candidate {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[r.keys[hash]]
}

func (c *Candidate) markSeen(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = now
}

func (c *Candidate) lastSeen() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.After(c.Seen) {
		return c.last
	}
	return c.Seen
}

// Get returns an executor, or nil if the executor does not exist or the exchange cannot be loaded.
func (r *Executors) Get(id string) *Executor {
	if r.cfg.Load() == nil {
		if c := r.get(id); c != nil {
			return c.Executor
		}
	}
	return nil
}

// List returns the executors, with the time of their last call and with defaults filled in.
func (r *Executors) List() ([]Executor, error) {
	if err := r.cfg.Load(); err != nil {
		return nil, err
	}
	list := r.list()
	out := make([]Executor, len(list))
	for i, c := range list {
		out[i] = *c.Executor
		out[i].Seen, out[i].Availability, out[i].Timezone = c.lastSeen(), cmp.Or(c.Availability, "always"), cmp.Or(c.Timezone, "UTC")
	}
	return out, nil
}

// Registration is the body of a registration, or of a change to one.
type Registration struct {
	ID            string
	Name          string
	Capabilities  []thread.Need
	Notifications wire.Value
	Hooks         wire.Value
	Preferences   wire.Value
	Availability  string // as in [thread.ExecutorConfig]; "": the schedule decides
	Schedule      string
	Timezone      string
	present       []string // the members that the body has
}

// has reports whether the body has a member.
func (r Registration) has(key string) bool { return slices.Contains(r.present, key) }

// ReadRegistration parses a registration or, with patch, a change to one.
func ReadRegistration(v wire.Value, patch bool) (Registration, error) {
	f := thread.NewFields(v, "")
	if f.Err() != nil {
		return Registration{}, thread.Bad("", "the body must be an object")
	}
	r := Registration{
		Name: f.Text("display_name", 200), Capabilities: f.Needs("capabilities"),
		Notifications: readSetting(f, "notifications", wire.Array), Preferences: readSetting(f, "preferences", wire.Object),
		Hooks: readSetting(f, "hooks", wire.Array, wire.Object),
	}
	for i, e := range f.List("notifications", 20) {
		f.In(e, fmt.Sprintf("notifications[%d]", i))
	}
	r.Availability, r.Schedule, r.Timezone = f.ReadAvailability()
	if !patch {
		r.ID = f.Required("executor_id", 64)
		f.Check(thread.IsExecutorID(r.ID) && !thread.IsReserved(r.ID), "executor_id", "must be 1 to 64 characters from A-Z a-z 0-9 _ -, beginning with a letter or digit, and not reserved")
	}
	for _, m := range v.Members() {
		r.present = append(r.present, m.Key)
	}
	return r, f.Err()
}

// readSetting reads a member that is stored as given.
func readSetting(f *thread.Fields, key string, kinds ...wire.Kind) wire.Value {
	v, ok := f.Get(key)
	f.Check(!ok || slices.Contains(kinds, v.Kind()), key, "has the wrong type")
	return v
}

// Register adds an executor and returns its key, which is not shown again. If pending is true, the registration waits
// for the owner. The extra changes are applied in the same transaction.
func (r *Executors) Register(ctx context.Context, reg Registration, pending bool, extra []store.Change) (key string, err error) {
	if err := r.cfg.Load(); err != nil {
		return "", err
	}
	// a writer of thread files has threads under its id, but no key; only the owner may give it one
	if r.get(reg.ID) != nil || r.cfg.HasThreads(reg.ID) {
		return "", thread.Conflict("the executor id is taken")
	}
	if len(r.list()) >= MaxExecutors {
		return "", thread.TooMany("too many executors", time.Hour)
	}
	now := time.Now().UTC().Round(time.Millisecond)
	key = newKey(r.cfg.ID)
	e := &Executor{
		ID: reg.ID, Name: reg.Name, Capabilities: reg.Capabilities, KeyHash: hashKey(key), Pending: pending, Created: now, Seen: now,
		Preferences: reg.Preferences, Notifications: reg.Notifications, Hooks: reg.Hooks,
	}
	if err := setAvailability(reg, e); err != nil {
		return "", err
	}
	if err := e.checkSize(); err != nil {
		return "", err
	}
	err = r.cfg.Records.Apply(ctx, append([]store.Change{e.Change()}, extra...), now)
	if errors.Is(err, store.ErrConflict) {
		return "", thread.Conflict("the executor id is taken")
	}
	if errors.Is(err, store.ErrQuota) {
		return "", thread.TooMany("too many registrations wait for the owner", time.Hour)
	}
	if err != nil {
		return "", err
	}
	r.put(e)
	return key, nil
}

// Change applies the body of a PATCH by actor. An executor may change only itself, the owner every executor.
func (r *Executors) Change(ctx context.Context, actor string, byOwner bool, id string, reg Registration) error {
	if err := r.cfg.Load(); err != nil {
		return err
	}
	if actor != id && !byOwner {
		return thread.Forbidden("an executor may change only itself")
	}
	return r.edit(ctx, id, nil, func(e *Executor) error {
		if e.Pending && !byOwner { // the owner decides on the registration as it was made
			return errPending
		}
		if reg.has("display_name") {
			e.Name = reg.Name
		}
		if reg.has("capabilities") {
			e.Capabilities = reg.Capabilities
		}
		if reg.has("notifications") {
			e.Notifications = reg.Notifications
		}
		if reg.has("preferences") {
			e.Preferences = reg.Preferences
		}
		if reg.has("hooks") {
			e.Hooks = reg.Hooks
		}
		return setAvailability(reg, e)
	})
}

// Admit accepts or removes a registration that waits for the owner, in one transaction with the extra changes. If the
// executor does not exist, Admit only applies the extra changes.
func (r *Executors) Admit(ctx context.Context, id string, accept bool, extra []store.Change) error {
	if err := r.cfg.Load(); err != nil {
		return err
	}
	c := r.get(id)
	if c == nil {
		return r.cfg.Records.Apply(ctx, extra, time.Now())
	}
	if accept {
		return r.edit(ctx, id, extra, func(e *Executor) error {
			e.Pending = false
			return nil
		})
	}
	changes := append([]store.Change{{Record: store.Record{NS: NSExecutors, Key: id}, IfRev: store.Any, Delete: true}}, extra...)
	if err := r.cfg.Records.Apply(ctx, changes, time.Now()); err != nil {
		return err
	}
	r.remove(id)
	return nil
}

// CheckInvite refuses a registration without the invite, if the exchange requires one.
func (r *Executors) CheckInvite(header string) error {
	token, _ := strings.CutPrefix(header, "Bearer ")
	if r.cfg.Registration == credential.Invite && (r.cfg.Invite == "" || !credential.HashOf(token).Equal(credential.HashOf(r.cfg.Invite))) {
		return errNoInvite
	}
	return nil
}

// NeedsApproval reports whether new registrations wait for the owner.
func (r *Executors) NeedsApproval() bool { return r.cfg.Registration == credential.Approval }

// ChargeRegistration calls register if the limits allow another registration from this address. Only success counts.
func (r *Executors) ChargeRegistration(from netip.Addr, register func() error) error {
	now := time.Now()
	switch wait, poolIsEmpty := r.registrations.Take(from, now); {
	case poolIsEmpty:
		return thread.TooMany("too many registrations from all addresses together", wait)
	case wait > 0:
		return thread.TooMany(fmt.Sprintf("too many registrations: at most %d an hour", r.cfg.RegistrationsPerHour), wait)
	}
	err := register()
	if err != nil {
		r.registrations.Return(from, now)
	}
	return err
}

// CountFailure counts err against the address if err is about a wrong secret, and returns the error for the caller.
func (r *Executors) CountFailure(from netip.Addr, err error) error {
	if err != ErrNoKey && err != errOtherKey && err != errNoInvite { // errors.Is would match errPending too
		return err
	}
	if wait := r.failures.Fail(from, time.Now()); wait > 0 {
		return thread.TooMany("too many wrong keys", wait)
	}
	return err
}

// The owner can give an executor a new key, or take its key away: an executor that the owner set up has no key, keys
// get lost, and keys are stolen. The executor id stays taken in both cases, because another executor that registered
// with it would see the threads of the first one.

// GiveKey creates a new key for an executor and returns it; the key is not shown again. The old key stops working. This
// also approves a pending registration. The extra changes are applied in the same transaction.
func (r *Executors) GiveKey(ctx context.Context, id string, extra []store.Change) (string, error) {
	const pending = false
	key := newKey(r.cfg.ID)
	return key, r.setKey(ctx, id, hashKey(key), pending, extra)
}

// TakeKey removes the key of an executor, which gets no offers until it has a key again or the owner approves it.
func (r *Executors) TakeKey(ctx context.Context, id string, extra []store.Change) error {
	const noHash, pending = "", true
	return r.setKey(ctx, id, noHash, pending, extra)
}

func (r *Executors) setKey(ctx context.Context, id, hash string, pending bool, extra []store.Change) error {
	if err := r.cfg.Load(); err != nil {
		return err
	}
	return r.edit(ctx, id, extra, func(e *Executor) error {
		e.KeyHash, e.Pending = hash, pending
		return nil
	})
}

// newRegistrationPool returns the pool that all registrations share, or nil if each needs an invite. One network can
// take most of the pool, but not the rest, which is left to others. In mode approval each registration is a question to
// the owner, which stays open for up to a week.
func newRegistrationPool(registration credential.Mode) *rate.Pool {
	switch registration {
	case credential.Invite:
		return nil
	case credential.Approval:
		return rate.NewPool(rate.PerHour(MaxQuestions/2)/(7*24), MaxQuestions/2)
	}
	return rate.NewPool(rate.PerHour(openADay)/24, openADay)
}
