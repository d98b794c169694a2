package mess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// exchangeForm is what our exchange ids are: the field of a key between its first two underscores (MESS-53).
var exchangeForm = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// ValidExchangeID says whether an exchange may have this id.
func ValidExchangeID(id string) bool { return exchangeForm.MatchString(id) }

var (
	errNoKey    = &wire.Error{Code: wire.Unauthorized, Status: http.StatusUnauthorized, Message: "a valid API key is required"}
	errOtherKey = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "the API key belongs to another exchange"}
	errNoInvite = &wire.Error{Code: wire.Unauthorized, Status: http.StatusUnauthorized, Message: "registration needs an invite"}
	errPending  = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "the registration waits for the owner's approval"}
)

func newKey(exchange string) string { return credential.New("mess_" + exchange + "_") }

func hashKey(key string) string { return credential.HashOf(key).String() }

// Authenticate finds the executor that holds a key, by the hash of the key.
func (x *Exchange) Authenticate(header, exchange string) (Actor, error) {
	if err := x.load(); err != nil {
		return Actor{}, err
	}
	key, ok := strings.CutPrefix(header, "Bearer ")
	if !ok {
		return Actor{}, errNoKey
	}
	parts := strings.SplitN(key, "_", 3)
	if len(parts) != 3 || parts[0] != "mess" || len(parts[2]) != 32 || strings.Trim(parts[2], "0123456789abcdef") != "" {
		return Actor{}, errNoKey
	}
	if parts[1] != exchange {
		return Actor{}, errOtherKey
	}
	hash := hashKey(key)
	c := x.crew.byKey(hash)
	if c == nil || c.KeyHash != hash {
		return Actor{}, errNoKey
	}
	if c.Pending {
		return Actor{}, errPending
	}
	c.seen(time.Now())
	if x.calls != nil {
		if wait, ok := x.calls.Take(c.ID, time.Now()); !ok {
			return Actor{}, limited(fmt.Sprintf("too many calls: at most %d a minute", cmp.Or(x.cfg.CallsPerMinute, 600)), wait)
		}
	}
	return Actor{ID: c.ID, Channel: "rest"}, nil
}

func (r *roster) byKey(hash string) *candidate {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[r.keys[hash]]
}

// seen remembers when an executor last called. It is kept in memory.
func (c *candidate) seen(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = now
}

func (c *candidate) lastSeen() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.After(c.Seen) {
		return c.last
	}
	return c.Seen
}

// Registration is what somebody says who registers.
type Registration struct {
	ID            string
	Name          string
	Capabilities  []thread.Need
	Notifications []Notification
	Hooks         wire.Value
	Preferences   Preferences
	Availability  string // as in [ExecutorConfig]; "": by the schedule
	Schedule      string
	Timezone      string
	present       []string // members that were there, for PATCH
}

func readRegistration(v wire.Value, patch bool) (Registration, error) {
	f := thread.NewFields(v, "")
	if f.Err != nil {
		return Registration{}, thread.Bad("", "the body must be an object")
	}
	r := Registration{
		Name: f.Text("display_name", 200), Capabilities: f.Needs("capabilities"),
		Notifications: readNotifications(f, "notifications"), Preferences: readPreferences(f, "preferences"),
	}
	r.Availability, r.Schedule, r.Timezone = f.Duty()
	if !patch {
		r.ID = f.Need("executor_id", 64)
		f.Check(thread.IsExecutorID(r.ID) && !thread.IsReserved(r.ID), "executor_id", "must be 1 to 64 of A-Z a-z 0-9 _ -, beginning with a letter or digit, and not reserved")
	}
	if hooks, ok := f.Get("hooks"); ok {
		f.Check(hooks.Kind() == wire.Array || hooks.Kind() == wire.Object, "hooks", "must be a list or an object")
		r.Hooks = hooks
	}
	for _, m := range v.Members() {
		r.present = append(r.present, m.Key)
	}
	return r, f.Err
}

// maxExecutors bounds who may be registered.
const maxExecutors = 100_000

// Register adds an executor and returns its key, which is shown this once. pending says that it waits for the owner;
// more are changes of the same unit.
func (x *Exchange) Register(ctx context.Context, r Registration, pending bool, more []store.Change) (key string, err error) {
	if err := x.load(); err != nil {
		return "", err
	}
	if x.crew.get(r.ID) != nil || x.index.named(r.ID) { // who acts in files alone is known by name; the owner may give a key to it
		return "", thread.Conflict("the executor id is taken")
	}
	if len(x.crew.list()) >= maxExecutors {
		return "", limited("too many executors", time.Hour)
	}
	now := time.Now().UTC().Round(time.Millisecond)
	key = newKey(x.id)
	e := &Executor{
		ID: r.ID, Name: r.Name, Capabilities: r.Capabilities, KeyHash: hashKey(key), Pending: pending, Created: now, Seen: now,
		Preferences: r.Preferences, Notifications: r.Notifications, Hooks: r.Hooks,
	}
	if err := setAvailability(r, e); err != nil {
		return "", err
	}
	if err := e.fits(); err != nil {
		return "", err
	}
	err = x.records.Apply(ctx, append([]store.Change{{Record: e.record()}}, more...), now)
	if errors.Is(err, store.ErrConflict) {
		return "", thread.Conflict("the executor id is taken")
	}
	if errors.Is(err, store.ErrQuota) {
		return "", limited("too many registrations wait for the owner", time.Hour)
	}
	if err != nil {
		return "", err
	}
	x.crew.put(e)
	return key, nil
}

// ChangeExecutor applies the members that were given (PATCH): an executor's own, or the owner's.
func (x *Exchange) ChangeExecutor(ctx context.Context, who Actor, id string, r Registration) error {
	if err := x.load(); err != nil {
		return err
	}
	if who.ID != id && !who.Owner {
		return thread.Forbidden("an executor may change itself alone")
	}
	return x.edit(ctx, id, nil, func(e *Executor) error {
		if e.Pending && !who.Owner { // the owner decides on what it said when it registered
			return errPending
		}
		has := func(key string) bool { return slices.Contains(r.present, key) }
		if has("display_name") {
			e.Name = r.Name
		}
		if has("capabilities") {
			e.Capabilities = r.Capabilities
		}
		if has("notifications") {
			e.Notifications = r.Notifications
		}
		if has("preferences") {
			e.Preferences = r.Preferences
		}
		if has("hooks") {
			e.Hooks = r.Hooks
		}
		return setAvailability(r, e)
	})
}

// Admit ends the wait of a registration: it may be used, or it goes.
func (x *Exchange) Admit(ctx context.Context, id string, yes bool, more []store.Change) error {
	if err := x.load(); err != nil {
		return err
	}
	c := x.crew.get(id)
	if c == nil {
		return x.records.Apply(ctx, more, time.Now())
	}
	if yes {
		return x.edit(ctx, id, more, func(e *Executor) error {
			e.Pending = false
			return nil
		})
	}
	changes := append([]store.Change{{Record: store.Record{NS: nsExecutors, Key: id}, IfRev: store.Any, Delete: true}}, more...)
	if err := x.records.Apply(ctx, changes, time.Now()); err != nil {
		return err
	}
	x.crew.remove(id)
	return nil
}
