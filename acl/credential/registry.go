package credential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The bounds of a [Registry]. All of its accounts are in memory, and strangers make them.
const (
	MaxAccounts = 10_000   // and as many reserved ids
	MaxFailures = 10       // wrong keys and invite codes of one address in a minute
	maxAccount  = 32 << 10 // bytes of one stored account
	maxBytes    = 32 << 20 // bytes of all stored accounts
	maxFailing  = 1 << 16  // addresses whose failures are counted

	// FillTime is how long strangers need at least to take all places of a registry that is open to them.
	FillTime = 30 * 24 * time.Hour
	// maxAsked registrations may wait for the owner, whose questions stay open for up to askedFor.
	maxAsked = 100
	askedFor = 7 * 24 * time.Hour

	activeEvery = time.Hour // how often the activity of an account is stored
)

// Errors of a [Registry].
var (
	ErrClosed  = errors.New("credential: only the owner registers accounts")
	ErrInvite  = errors.New("credential: registration needs a valid invite code")
	ErrTaken   = errors.New("credential: the id is taken")
	ErrFull    = errors.New("credential: the registry is full")
	ErrLarge   = errors.New("credential: the account is too large")
	ErrUnknown = errors.New("credential: there is no such account")
)

// Busy refuses a registration, or a wrong key or invite code, that comes too early.
type Busy struct {
	Wait time.Duration
	All  bool // the limit for all addresses together is reached
}

func (b *Busy) Error() string { return fmt.Sprintf("credential: wait for %v", b.Wait) }

// Account is what a [Registry] knows of every participant of a network. A network embeds it in an account type of its
// own. An account in a registry is never changed, only replaced.
type Account struct {
	ID      string    `json:"id"`
	Key     Hash      `json:"key_sha256,omitzero"` // zero: it has no key
	Pending bool      `json:"pending,omitempty"`   // the owner has not approved it, or took its key
	Created time.Time `json:"created"`
	Seen    time.Time `json:"seen,omitzero"`    // its last activity; see [Registry.MarkSeen]
	Removed time.Time `json:"removed,omitzero"` // since then only its id is reserved
	Version uint64    `json:"version"`          // grows with each change

	rev  store.Rev
	size int // of the stored account
}

func (a *Account) account() *Account { return a }

// Record is a pointer to an account type, which embeds [Account].
type Record[T any] interface {
	*T
	account() *Account
}

// Config configures a [Registry]. Records and NS are required.
type Config[P any] struct {
	Records store.Records
	NS      string // of the accounts, by id
	Prefix  string // of new keys
	Mode    Mode   // how strangers register
	Invites Invites
	Code    string // an invite code that does not end; "" for none
	Max     int    // accounts; 0: [MaxAccounts]
	PerHour int    // registrations of one address; not positive: no limit
	// Ask returns the changes that ask the owner about a registration, in mode [Approval].
	Ask func(P) ([]store.Change, error)
	// Reserve is for how long the id of a removed account stays reserved; 0: it does not.
	Reserve time.Duration
	// Expires returns when an account ends by itself; nil: never.
	Expires func(P) time.Time
	// Index is called, under the lock of the registry, when next replaces old in memory. Either may be nil.
	Index func(old, next P)
}

// Registry holds the accounts of strangers, which register with a service and then show a key or token. It stores only
// hashes of keys. Accounts are in memory, too, so that no request of a stranger reads the store. Every change is stored
// before it is visible, and concurrent changes of an account do not overwrite each other. It is safe for concurrent use.
type Registry[T any, P Record[T]] struct {
	cfg           Config[P]
	registrations *rate.Registrations
	failures      *rate.Penalties

	mu    sync.RWMutex
	byID  map[string]P // with reserved ids
	live  []P          // by time of registration, without reserved ids
	keys  map[Hash]string
	bytes int
}

// NewRegistry returns an empty registry. Call [Registry.Load] before anything else.
func NewRegistry[T any, P Record[T]](cfg Config[P]) *Registry[T, P] {
	cfg.Max = cmp.Or(cfg.Max, MaxAccounts)
	var pool *rate.Pool
	switch cfg.Mode {
	case Open: // one network can take most of a pool, but not the rest, which is left to others
		pool = rate.NewPool(rate.Limit(float64(cfg.Max)/FillTime.Seconds()), max(cfg.Max/10, maxAsked))
	case Approval:
		pool = rate.NewPool(rate.Limit(maxAsked/askedFor.Seconds()), maxAsked)
	}
	return &Registry[T, P]{
		cfg: cfg, byID: make(map[string]P), keys: make(map[Hash]string),
		registrations: rate.NewRegistrations(cfg.PerHour, pool),
		failures:      rate.NewPenalties(MaxFailures, 0, maxFailing), // 0: barred only until one failure is forgotten
	}
}

// Load reads the accounts from the store. Call it again after a failure, and when another process may have changed them.
// Keys of [Registry.Claim] must then be claimed again.
func (r *Registry[T, P]) Load(ctx context.Context) error {
	r.mu.RLock()
	gone := maps.Clone(r.byID)
	r.mu.RUnlock()
	var all []P
	for p, err := range store.DecodeAll(ctx, r.cfg.Records, r.cfg.NS, "", time.Now(), r.decode) {
		if err != nil {
			return fmt.Errorf("load the accounts in %s: %w", r.cfg.NS, err)
		}
		all = append(all, p)
		delete(gone, p.account().ID)
	}
	slices.SortFunc(all, order[T, P]) // so that each is inserted at the end
	r.drop(func(p P) bool { return gone[p.account().ID] != nil })
	r.Publish(all...)
	return nil
}

// Reload is [Registry.Load] for the begin of a duty. While the store fails, it tries again every second, until ctx ends.
func (r *Registry[T, P]) Reload(ctx context.Context, log *slog.Logger) {
	for {
		err := r.Load(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		log.WarnContext(ctx, "accounts of strangers not read; tries again", "namespace", r.cfg.NS, "err", err)
		waiting.Pause(ctx, time.Second)
	}
}

func (r *Registry[T, P]) decode(rec store.Record) (P, error) {
	v, err := store.Decode[T](rec)
	p := P(&v)
	a := p.account()
	a.rev, a.size = rec.Rev, len(rec.Body)
	return p, err
}

// order compares accounts by the time of their registration.
func order[T any, P Record[T]](p, q P) int {
	a, b := p.account(), q.account()
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

// Publish replaces accounts in memory after a commit that changed them. Commits may arrive out of order.
func (r *Registry[T, P]) Publish(list ...P) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range list {
		old, ok := r.byID[p.account().ID]
		if ok && old.account().Version > p.account().Version {
			continue
		}
		r.replace(old, p)
	}
}

// replace puts next in the place of old. Either may be nil. The caller holds the lock.
func (r *Registry[T, P]) replace(old, next P) {
	if old != nil {
		a := old.account()
		r.bytes -= a.size
		delete(r.byID, a.ID)
		if r.keys[a.Key] == a.ID {
			delete(r.keys, a.Key)
		}
		if a.Removed.IsZero() {
			i, _ := slices.BinarySearchFunc(r.live, old, order[T, P])
			r.live = slices.Delete(r.live, i, i+1)
		}
	}
	if next != nil {
		a := next.account()
		r.bytes += a.size
		r.byID[a.ID] = next
		if a.Removed.IsZero() {
			i, _ := slices.BinarySearchFunc(r.live, next, order[T, P])
			r.live = slices.Insert(r.live, i, next)
		}
		if a.Key != (Hash{}) {
			r.keys[a.Key] = a.ID
		}
	}
	if r.cfg.Index != nil {
		r.cfg.Index(old, next)
	}
}

// Change returns the change that stores an account from [Registry.Read], or a new one, unless the stored account changed
// meanwhile. The caller commits it, and then calls [Registry.Publish].
func (r *Registry[T, P]) Change(p P) (store.Change, error) {
	a := p.account()
	body := wire.MustMarshal(p)
	a.size = len(body)
	change := store.Change{IfRev: a.rev, Record: store.Record{
		NS: r.cfg.NS, Key: a.ID, Body: body, Terms: []string{"live"}, Expires: r.end(p),
	}}
	if !a.Removed.IsZero() {
		change.Record.Terms = []string{"reserved"}
	}
	switch {
	case a.size > maxAccount:
		return change, ErrLarge
	case !r.hasBytesFor(a.ID, a.size):
		return change, ErrFull
	case a.rev == store.Absent:
		change.Max = r.cfg.Max
	}
	return change, nil
}

// end returns when an account or a reserved id ends by itself. The zero value means never.
func (r *Registry[T, P]) end(p P) (end time.Time) {
	switch a := p.account(); {
	case !a.Removed.IsZero():
		return a.Removed.Add(r.cfg.Reserve)
	case r.cfg.Expires != nil:
		return r.cfg.Expires(p)
	}
	return end
}

func (r *Registry[T, P]) hasEnded(p P, now time.Time) bool {
	end := r.end(p)
	return !end.IsZero() && !now.Before(end)
}

// apply stores an account and the extra changes in one transaction.
func (r *Registry[T, P]) apply(ctx context.Context, p P, extra []store.Change) error {
	change, err := r.Change(p)
	if err == nil {
		err = r.cfg.Records.Apply(ctx, append([]store.Change{change}, extra...), time.Now())
	}
	if err == nil {
		r.Publish(p)
	}
	return err
}

// hasBytesFor reports whether an account may have this size.
func (r *Registry[T, P]) hasBytesFor(id string, size int) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if old, ok := r.byID[id]; ok {
		size -= old.account().size
	}
	return size <= 0 || r.bytes+size <= maxBytes
}

// Invites returns the invite codes of the registry.
func (r *Registry[T, P]) Invites() Invites { return r.cfg.Invites }

// Charge calls register if the limits allow another registration from this address, and returns its error or a
// *[Busy]. A registration that fails costs nothing (AM-43).
func (r *Registry[T, P]) Charge(from netip.Addr, register func() error) error {
	now := time.Now()
	if wait, all := r.registrations.Take(from, now); wait > 0 {
		return &Busy{wait, all}
	}
	err := register()
	if err != nil {
		r.registrations.Return(from, now)
	}
	return err
}

// Fail counts a wrong key or invite code. After too many of them it returns a *[Busy], and otherwise err.
func (r *Registry[T, P]) Fail(from netip.Addr, err error) error {
	if wait := r.failures.Fail(from, time.Now()); wait > 0 {
		return &Busy{Wait: wait}
	}
	return err
}

// Admit registers an account for a stranger, if the mode allows it, and returns its key. The account is pending if the
// owner must approve it first. code is the invite code that the stranger showed.
func (r *Registry[T, P]) Admit(ctx context.Context, p P, code, key string) (string, error) {
	var extra []store.Change
	switch r.cfg.Mode {
	case Open:
	case Approval:
		p.account().Pending = true
		if r.cfg.Ask != nil {
			question, err := r.cfg.Ask(p)
			if err != nil {
				return "", err
			}
			extra = question
		}
	case Invite:
		if r.cfg.Code != "" && HashOf(code).Equal(HashOf(r.cfg.Code)) {
			break
		}
		if code == "" || r.cfg.Invites.Records == nil {
			return "", ErrInvite
		}
		_, use, err := r.cfg.Invites.Redeem(ctx, code, p.account().ID, time.Now())
		switch {
		case errors.Is(err, store.ErrNotFound), errors.Is(err, ErrSpent):
			return "", ErrInvite
		case err != nil:
			return "", err
		}
		extra = append(extra, use)
	default:
		return "", ErrClosed
	}
	key, err := r.Add(ctx, p, key, extra...)
	if errors.Is(err, store.ErrConflict) {
		err = ErrInvite // somebody used the code at the same moment
	}
	return key, err
}

// Add stores a new account, in one transaction with the extra changes, and returns its key: a new one if key is "".
func (r *Registry[T, P]) Add(ctx context.Context, p P, key string, extra ...store.Change) (string, error) {
	a, now := p.account(), time.Now()
	r.drop(func(p P) bool { return r.hasEnded(p, now) })
	r.mu.RLock()
	_, taken := r.byID[a.ID]
	full := len(r.live) >= r.cfg.Max
	r.mu.RUnlock()
	if taken {
		return "", ErrTaken
	}
	if full {
		return "", ErrFull
	}
	key = cmp.Or(key, New(r.cfg.Prefix))
	a.Key, a.rev = HashOf(key), store.Absent
	if a.Created.IsZero() {
		a.Created = now.UTC().Round(time.Millisecond)
	}
	err := r.apply(ctx, p, extra)
	if errors.Is(err, store.ErrConflict) { // of the account, or of one of the extra changes
		if _, getErr := r.cfg.Records.Get(ctx, r.cfg.NS, a.ID, now); getErr == nil {
			err = ErrTaken
		}
	}
	return key, err
}

// Read returns an account from the store, to change it: with its next version.
func (r *Registry[T, P]) Read(ctx context.Context, id string) (P, error) {
	rec, err := r.cfg.Records.Get(ctx, r.cfg.NS, id, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrUnknown
	}
	if err != nil {
		return nil, err
	}
	p, err := r.decode(rec)
	if err == nil && !p.account().Removed.IsZero() {
		return nil, ErrUnknown
	}
	p.account().Version++
	return p, err
}

// Edit changes an account from its current state in the store, in one transaction with the extra changes.
func (r *Registry[T, P]) Edit(ctx context.Context, id string, change func(P) error, extra ...store.Change) error {
	return store.Retry(func() error {
		p, err := r.Read(ctx, id)
		if err == nil {
			err = change(p)
		}
		if err == nil {
			err = r.apply(ctx, p, extra)
		}
		return err
	})
}

// Rotate gives an account a new key, approves it, and returns the key. The old key stops working.
func (r *Registry[T, P]) Rotate(ctx context.Context, id string, extra ...store.Change) (string, error) {
	key := New(r.cfg.Prefix)
	return key, r.Edit(ctx, id, func(p P) error {
		p.account().Key, p.account().Pending = HashOf(key), false
		return nil
	}, extra...)
}

// Remove removes an account, in one transaction with the extra changes. The id of an account that the owner did not
// reject stays reserved: another account with it would get what is meant for the old one. If there are too many
// reserved ids, that of the account that was removed first is free again.
func (r *Registry[T, P]) Remove(ctx context.Context, id string, extra ...store.Change) error {
	p, err := r.Read(ctx, id)
	if err != nil {
		return err
	}
	gone := id
	if p.account().Pending || r.cfg.Reserve == 0 {
		err = r.cfg.Records.Apply(ctx, append(extra, r.deletion(id)), time.Now())
	} else {
		if gone = r.oldestReserved(); gone != "" {
			extra = append(extra, r.deletion(gone))
		}
		err = r.Edit(ctx, id, func(p P) error {
			old := *p.account()
			*p = *P(new(T))
			*p.account() = Account{ID: id, Created: old.Created, Removed: time.Now().UTC(), Version: old.Version, rev: old.rev}
			return nil
		}, extra...)
	}
	if err == nil {
		r.drop(func(p P) bool { return p.account().ID == gone })
	}
	return err
}

func (r *Registry[T, P]) deletion(id string) store.Change {
	return store.Change{Record: store.Record{NS: r.cfg.NS, Key: id}, IfRev: store.Any, Delete: true}
}

// drop removes the accounts and reserved ids from memory that match.
func (r *Registry[T, P]) drop(matches func(P) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.byID {
		if matches(p) {
			r.replace(p, nil)
		}
	}
}

// oldestReserved returns the reserved id that must go so that another one has room, or "" if there is room.
func (r *Registry[T, P]) oldestReserved() (id string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.byID)-len(r.live) < r.cfg.Max {
		return ""
	}
	var first time.Time
	for _, p := range r.byID {
		if a := p.account(); !a.Removed.IsZero() && (id == "" || a.Removed.Before(first)) {
			id, first = a.ID, a.Removed
		}
	}
	return id
}

// Claim makes a key of the configuration admit to an account, which is p if there is none yet. It fails with [ErrTaken]
// if the key admits to another account.
func (r *Registry[T, P]) Claim(key string, p P) error {
	id, hash := p.account().ID, HashOf(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if had, ok := r.keys[hash]; ok && had != id {
		return ErrTaken
	}
	if r.byID[id] == nil {
		r.replace(nil, p)
	}
	r.keys[hash] = id
	return nil
}

// Find returns the account to which a key admits, pending or not, or nil.
func (r *Registry[T, P]) Find(key string) P {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if p := r.byID[r.keys[HashOf(key)]]; p != nil && !r.hasEnded(p, time.Now()) {
		return p
	}
	return nil
}

// Get returns an account, or nil.
func (r *Registry[T, P]) Get(id string) P {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if p := r.byID[id]; p != nil && p.account().Removed.IsZero() && !r.hasEnded(p, time.Now()) {
		return p
	}
	return nil
}

// IsTaken reports whether an account has or had this id.
func (r *Registry[T, P]) IsTaken(id string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id] != nil
}

// List returns the accounts in the order of their registration.
func (r *Registry[T, P]) List() []P {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.live)
}

// Count returns the number of accounts.
func (r *Registry[T, P]) Count() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.live)
}

// MarkSeen notes that an account is active. It stores that at most once an hour for each account.
func (r *Registry[T, P]) MarkSeen(ctx context.Context, p P, now time.Time) error {
	if now.Sub(p.account().Seen) < activeEvery {
		return nil
	}
	return r.Edit(ctx, p.account().ID, func(p P) error {
		p.account().Seen = now.UTC()
		return nil
	})
}

// ActiveSince returns how many accounts were active after a time, which [Registry.MarkSeen] rounds.
func (r *Registry[T, P]) ActiveSince(since time.Time) (n int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, p := range r.live {
		if p.account().Seen.After(since) {
			n++
		}
	}
	return n
}
