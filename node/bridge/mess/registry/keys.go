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

// explain returns a refusal of the registry as MESS words it.
func explain(err error) error {
	busy, isBusy := errors.AsType[*credential.Busy](err)
	switch {
	case isBusy && busy.All:
		return thread.TooMany("too many registrations from all addresses together", busy.Wait)
	case isBusy:
		return thread.TooMany("too many registrations or wrong keys from this address", busy.Wait)
	case errors.Is(err, credential.ErrTaken):
		return thread.Conflict("the executor id is taken")
	case errors.Is(err, credential.ErrFull):
		return thread.TooMany("too many executors", time.Hour)
	case errors.Is(err, store.ErrQuota):
		return thread.TooMany("too many registrations wait for the owner", time.Hour)
	case errors.Is(err, credential.ErrLarge):
		return thread.TooLarge("the registration of an executor may have at most 32 KiB")
	case errors.Is(err, credential.ErrInvite):
		return errNoInvite
	case errors.Is(err, credential.ErrUnknown):
		return thread.Missing("no such executor")
	}
	return err
}

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
	e := r.accounts.Find(key)
	if e == nil {
		return "", ErrNoKey
	}
	if e.Pending {
		return "", errPending
	}
	now := time.Now()
	_ = r.accounts.MarkSeen(context.Background(), e, now) // it only informs the owner
	if r.calls != nil {
		if wait, ok := r.calls.Take(e.ID, now); !ok {
			return "", thread.TooMany(fmt.Sprintf("too many calls: at most %d a minute", r.cfg.CallsPerMinute), wait)
		}
	}
	return e.ID, nil
}

// Get returns an executor, or nil if the executor does not exist or the exchange cannot be loaded.
func (r *Executors) Get(id string) *Executor {
	if r.cfg.Load() != nil {
		return nil
	}
	return r.accounts.Get(id)
}

// List returns the executors, with the time of their last call and with defaults filled in.
func (r *Executors) List() ([]Executor, error) {
	if err := r.cfg.Load(); err != nil {
		return nil, err
	}
	list := r.accounts.List()
	out := make([]Executor, len(list))
	for i, e := range list {
		out[i] = *e
		out[i].Availability, out[i].Timezone = cmp.Or(e.Availability, "always"), cmp.Or(e.Timezone, "UTC")
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

// Register registers an executor for a stranger and returns its key, which is not shown again. invite is the
// Authorization header of the registration. If pending is true, the registration waits for the owner.
func (r *Executors) Register(ctx context.Context, reg Registration, invite string) (key string, pending bool, err error) {
	if err := r.cfg.Load(); err != nil {
		return "", false, err
	}
	// a writer of thread files has threads under its id, but no key; only the owner may give it one
	if r.cfg.HasThreads(reg.ID) {
		return "", false, explain(credential.ErrTaken)
	}
	now := time.Now().UTC().Round(time.Millisecond)
	e := &Executor{
		Account: credential.Account{ID: reg.ID, Created: now, Seen: now}, Name: reg.Name, Capabilities: reg.Capabilities,
		Preferences: reg.Preferences, Notifications: reg.Notifications, Hooks: reg.Hooks,
	}
	setAvailability(reg, e)
	code, _ := strings.CutPrefix(invite, "Bearer ")
	key, err = r.accounts.Admit(ctx, e, code, "")
	return key, e.Pending, explain(err)
}

// Change applies the body of a PATCH by actor. An executor may change only itself, the owner every executor.
func (r *Executors) Change(ctx context.Context, actor string, byOwner bool, id string, reg Registration) error {
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
		setAvailability(reg, e)
		return nil
	})
}

func (r *Executors) edit(ctx context.Context, id string, extra []store.Change, change func(*Executor) error) error {
	if err := r.cfg.Load(); err != nil {
		return err
	}
	return explain(r.accounts.Edit(ctx, id, change, extra...))
}

// Admit accepts or removes a registration that waits for the owner, in one transaction with the extra changes. If the
// executor does not exist, Admit only applies the extra changes.
func (r *Executors) Admit(ctx context.Context, id string, accept bool, extra []store.Change) error {
	if err := r.cfg.Load(); err != nil {
		return err
	}
	switch {
	case r.accounts.Get(id) == nil:
		return r.cfg.Records.Apply(ctx, extra, time.Now())
	case accept:
		return r.edit(ctx, id, extra, func(e *Executor) error {
			e.Pending = false
			return nil
		})
	}
	return explain(r.accounts.Remove(ctx, id, extra...))
}

// ChargeRegistration calls register if the limits allow another registration from this address. Only success counts.
func (r *Executors) ChargeRegistration(from netip.Addr, register func() error) error {
	return explain(r.accounts.Charge(from, register))
}

// CountFailure counts err against the address if err is about a wrong secret, and returns the error for the caller.
func (r *Executors) CountFailure(from netip.Addr, err error) error {
	if err != ErrNoKey && err != errOtherKey && err != errNoInvite { // errors.Is would match errPending too
		return err
	}
	return explain(r.accounts.Fail(from, err))
}

// The owner can give an executor a new key, or take its key away: an executor that the owner set up has no key, keys
// get lost, and keys are stolen. The executor id stays taken in both cases, because another executor that registered
// with it would see the threads of the first one.

// GiveKey creates a new key for an executor and returns it; the key is not shown again. The old key stops working. This
// also approves a pending registration. The extra changes are applied in the same transaction.
func (r *Executors) GiveKey(ctx context.Context, id string, extra []store.Change) (string, error) {
	if err := r.cfg.Load(); err != nil {
		return "", err
	}
	key, err := r.accounts.Rotate(ctx, id, extra...)
	return key, explain(err)
}

// TakeKey removes the key of an executor, which gets no offers until it has a key again or the owner approves it.
func (r *Executors) TakeKey(ctx context.Context, id string, extra []store.Change) error {
	return r.edit(ctx, id, extra, func(e *Executor) error {
		e.Key, e.Pending = credential.Hash{}, true
		return nil
	})
}
