package registration

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	checkEvery    = 15 * time.Minute // between two checks that a directory still lists the card
	maxRetryPause = time.Hour        // after failures, unless the directory asks for a longer pause
)

// Identity is the node's signing key and the card that names it.
type Identity struct {
	Key  *signing.PrivateKey
	Card wire.Card
}

// Config configures a [Registrar].
type Config struct {
	Identity    Identity
	Directories []*client.Directory
	Credential  client.Credential // required; the bearer tokens for directories are derived from it
	Store       store.Store
	// SaveKey stores a new signing key and its card before the key is used. Nil forbids rotation.
	SaveKey func(key *signing.PrivateKey, card wire.Value) error
	// CurrentKey returns the key that SaveKey stored last. Nil means that no other process rotates the key.
	CurrentKey func() (*signing.PrivateKey, error)
	// RetiredKey returns an earlier signing key by its fingerprint, and FirstKey the key from which an agent id is
	// derived. Both may be nil.
	RetiredKey func(fingerprint string) (*signing.PrivateKey, error)
	FirstKey   func(id wire.AgentID) (*signing.PrivateKey, error)
	// Pause returns how long to wait after the given number of failures in a row.
	Pause func(failures int) time.Duration
	// Reread is called when a change by another process could not be read, or the outcome of a key change is not known.
	// It must arrange for a call of [Registrar.Reread]. Nil means that no other process changes anything.
	Reread func()
	// Changed is called when the state of a registration has changed. May be nil.
	Changed func()
	// Removed is called when the operator of a directory has removed the card. May be nil.
	Removed func(ctx context.Context, l owner.Listing)
	Logger  *slog.Logger
}

// Registrar keeps the node registered in every configured directory, and holds its identity. It calls one directory at
// a time, because an id that one directory assigns must be known before the next call. It is safe for concurrent use.
type Registrar struct {
	cfg    Config
	wakeup chan struct{}

	identity   atomic.Pointer[Identity]
	identityMu sync.Mutex // held from reading or storing an id or a key until identity has it

	work    sync.Mutex                     // held during calls to directories; guards retired
	retired map[string]*signing.PrivateKey // earlier keys, by fingerprint

	mu            sync.Mutex // guards the contents of registrations
	registrations []*registration

	changed waiting.Signal // the state of a registration was set
	newCard atomic.Bool    // SetMetadata has changed the card since the last visits began
	rotated atomic.Int64   // when the key last changed, in Unix seconds
}

// registration is a directory and the state of the node's card there.
type registration struct {
	dir   *client.Directory
	state registrationState
	next  time.Time // of the next visit
}

// registrationState is the stored part of a registration.
type registrationState struct {
	Directory  string       `json:"directory"`
	AgentID    wire.AgentID `json:"agent_id,omitempty"` // empty: not registered
	Registered time.Time    `json:"registered,omitzero"`
	Expires    time.Time    `json:"expires,omitzero"`
	RenewAt    time.Time    `json:"renew_at,omitzero"`
	Card       string       `json:"card,omitempty"`      // hex digest of the card in the directory
	Withdrawn  bool         `json:"withdrawn,omitempty"` // by the owner or, if Refused is set, by the operator
	Error      string       `json:"error,omitempty"`
	Hint       string       `json:"hint,omitempty"`
	Refused    bool         `json:"refused,omitempty"`  // the directory refused and will refuse again
	Failures   int          `json:"failures,omitempty"` // visits that failed in a row
	// ListedKey is the fingerprint of the key on the card in the directory. After a rotation that the directory has not
	// followed yet, that is an earlier key (AM-60).
	ListedKey string `json:"listed_key,omitempty"`
	// Followed is when the directory followed the last rotation.
	Followed time.Time `json:"followed,omitzero"`
}

// isRemoved reports whether the operator of the directory removed the card.
func (s registrationState) isRemoved() bool { return s.Withdrawn && s.Refused }

// New returns a registrar. [Registrar.Restore] reads the state of an earlier process.
func New(cfg Config) *Registrar {
	r := &Registrar{cfg: cfg, wakeup: make(chan struct{}, 1), retired: make(map[string]*signing.PrivateKey)}
	r.identity.Store(&cfg.Identity)
	for _, d := range cfg.Directories {
		r.registrations = append(r.registrations, &registration{dir: d, state: registrationState{Directory: d.Base}})
	}
	return r
}

// Identity returns the node's current identity. The caller must not change it.
func (r *Registrar) Identity() *Identity { return r.identity.Load() }

// ID returns the node's agent id.
func (r *Registrar) ID() wire.AgentID { return r.identity.Load().Card.ID }

// Namespace is the namespace of the records of the registrar and of other state of the node.
const Namespace = "node"

// SharedKeys names the record with the secret keys that all instances share. When it changes, the registrar calls
// [Config.CurrentKey].
const SharedKeys = "keys"

const (
	recordNodeID  = "identity"
	recordRotated = "rotated" // written after each rotation, for the other processes
)

func (p *registration) recordKey() string {
	return "directory/" + wire.HashOf(p.dir.StoredName())
}

// Restore reads the state that an earlier process stored.
func (r *Registrar) Restore(ctx context.Context, now time.Time) error {
	id := nodeID{AgentID: r.ID()}
	if err := r.loadRecord(ctx, recordNodeID, &id, now); err != nil {
		return err
	}
	if err := r.setID(id); err != nil {
		return err
	}
	return r.restoreStates(ctx, now)
}

// Reread takes over everything that another process may have stored since the start.
func (r *Registrar) Reread(ctx context.Context, now time.Time) error {
	return errors.Join(r.takeIdentity(ctx, now), r.restoreStates(ctx, now))
}

func (r *Registrar) restoreStates(ctx context.Context, now time.Time) error {
	for _, p := range r.registrations {
		switch state, rev, err := r.loadState(ctx, p, now); {
		case err != nil:
			return err
		case rev != store.Absent:
			r.takeState(p, state)
		}
	}
	return nil
}

func (r *Registrar) loadState(ctx context.Context, p *registration, now time.Time) (s registrationState, rev store.Rev, err error) {
	if rev, _, err = store.ReadRecord(ctx, r.cfg.Store.Records(), Namespace, p.recordKey(), &s, now); err != nil {
		err = fmt.Errorf("read the registration in %s: %w", p.dir.Base, err)
	}
	s.Directory = p.dir.Base // the directory may have a new address
	return s, rev, err
}

// OnRemote takes over what another process stored: the state of a registration, an adopted id, or a rotated key.
func (r *Registrar) OnRemote(c store.Change) {
	if c.Delete {
		return
	}
	var err error
	switch c.Record.Key {
	case recordNodeID, recordRotated, SharedKeys:
		err = r.takeIdentity(context.Background(), time.Now())
	default:
		err = r.takeRecord(c.Record)
	}
	if err != nil {
		r.cfg.Logger.Error("cannot take over what another process stored about registrations", "key", c.Record.Key, "err", err)
		r.rereadLater()
	}
}

func (r *Registrar) rereadLater() {
	if r.cfg.Reread != nil {
		r.cfg.Reread()
	}
}

// takeRecord takes over the stored state of a registration in a configured directory.
func (r *Registrar) takeRecord(rec store.Record) error {
	i := slices.IndexFunc(r.registrations, func(p *registration) bool { return p.recordKey() == rec.Key })
	if i < 0 {
		return nil
	}
	s, err := store.Decode[registrationState](rec)
	if err == nil {
		s.Directory = r.registrations[i].dir.Base // the directory may have a new address
		r.takeState(r.registrations[i], s)
	}
	return err
}

// takeState sets a state that another process stored, and wakes Run.
func (r *Registrar) takeState(p *registration, s registrationState) {
	r.setState(p, s)
	waiting.Wake(r.wakeup)
}

// loadRecord reads a record into dst, if the record exists.
func (r *Registrar) loadRecord(ctx context.Context, key string, dst any, now time.Time) error {
	if _, _, err := store.ReadRecord(ctx, r.cfg.Store.Records(), Namespace, key, dst, now); err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	return nil
}

func (r *Registrar) storeRecord(ctx context.Context, key string, v any, ifRev store.Rev) error {
	rec := store.Record{NS: Namespace, Key: key, Body: wire.MustMarshal(v)}
	return r.cfg.Store.Records().Apply(ctx, []store.Change{{Record: rec, IfRev: ifRev}}, time.Now())
}

// Credential derives the bearer token for one directory from the node's secret, so that the node stores one secret and
// no directory learns the token for another.
func Credential(secret client.Credential, d *client.Directory) client.Credential {
	bearer, err := hkdf.Key(sha256.New, []byte(secret), nil, "agentmesh-credential "+d.StoredName(), 32)
	if err != nil {
		panic(fmt.Sprintf("derive credential: %v", err)) // only for a length that HKDF cannot produce
	}
	return client.Credential(hex.EncodeToString(bearer))
}

// Credential returns the node's bearer token for a directory.
func (r *Registrar) Credential(d *client.Directory) client.Credential {
	return Credential(r.cfg.Credential, d)
}

// Run visits each directory when it is due, until ctx ends.
func (r *Registrar) Run(ctx context.Context) {
	for {
		wait := checkEvery
		isNew := r.newCard.Swap(false)
		for _, p := range r.registrations {
			if isNew {
				r.setNext(p, time.Time{})
			}
			if !r.isDue(p, time.Now()) {
				continue
			}
			r.work.Lock()
			r.update(ctx, p, renewIfDue)
			r.work.Unlock()
		}
		now := time.Now()
		r.mu.Lock()
		for _, p := range r.registrations {
			if !p.state.Withdrawn {
				wait = min(wait, max(p.next.Sub(now), 0))
			}
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-r.wakeup:
		case <-time.After(wait):
		}
	}
}

// isDue reports whether the directory must be visited now.
func (r *Registrar) isDue(p *registration, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !p.state.Withdrawn && !p.next.After(now)
}

// visitMode controls what a visit to a directory does.
type visitMode uint8

const (
	renewIfDue    visitMode = iota // renew only if the card has changed or its renewal is due
	renewNow                       // renew in any case
	renewAndAdopt                  // renew in any case, and adopt the id that the directory assigns
)

// update visits a directory and stores the resulting state. If another process stores a state during the visit, update
// visits again. The caller must hold r.work.
func (r *Registrar) update(ctx context.Context, p *registration, how visitMode) {
	visits, removed := 0, false
	err := r.change(ctx, p, func(s *registrationState) (next time.Time, err error) {
		visits++
		switch {
		case !s.Withdrawn: // visit it
		case how != renewIfDue:
			s.Withdrawn = false
		case visits > 1: // the owner withdrew the node during the visit, which may have registered it again
			return r.removeCard(ctx, p, s), nil
		default:
			return time.Time{}, nil
		}
		err = r.visit(ctx, p, s, how)
		if err != nil && ctx.Err() != nil {
			return time.Time{}, err // the node stops
		}
		next = r.recordVisit(s, err)
		removed = s.isRemoved()
		return next, nil
	})
	if err == nil && removed && r.cfg.Removed != nil {
		r.mu.Lock()
		l := p.listing(time.Now())
		r.mu.Unlock()
		r.cfg.Removed(ctx, l)
	}
	if err != nil && ctx.Err() == nil {
		r.cfg.Logger.Error("state of a directory not stored; the next visit finds it out again", "directory", p.dir.Base, "err", err) // the next visit finds out the state again
	}
}

// recordVisit records in s whether a visit failed, and returns the time of the next visit.
func (r *Registrar) recordVisit(s *registrationState, err error) (next time.Time) {
	now := time.Now()
	next = now.Add(client.Jitter(checkEvery))
	if s.AgentID != "" && s.RenewAt.Before(next) {
		next = s.RenewAt
	}
	s.Error, s.Hint, s.Refused = "", "", false
	if err == nil {
		s.Failures = 0
		return next
	}
	s.Failures++
	after := time.Duration(0)
	s.Error = wire.OneLine(err.Error(), 300)
	s.Hint = client.HintOf(err)
	if e, ok := errors.AsType[*client.DirectoryError](err); ok {
		after, s.Refused = e.RetryAfter, e.Final()
		if e.Removed != "" {
			*s = registrationState{Directory: s.Directory, Withdrawn: true, Refused: true, Error: s.Error, Hint: s.Hint}
			r.cfg.Logger.Warn("card removed by the operator of a directory", "directory", s.Directory, "err", s.Error)
			return time.Time{}
		}
	} else if _, refused := errors.AsType[*otherIDError](err); refused {
		s.Refused = true
	}
	next = now.Add(max(min(r.cfg.Pause(s.Failures), maxRetryPause), after))
	r.cfg.Logger.Warn("registration failed", "directory", s.Directory, "err", s.Error, "hint", s.Hint, "next", next)
	return next
}

// AwaitListing waits until the directory with the base URL of d lists the node. It returns true at once if that
// directory is not configured, and false if ctx ends first.
func (r *Registrar) AwaitListing(ctx context.Context, d *client.Directory) bool {
	for ctx.Err() == nil {
		changed := r.changed.Wait()
		r.mu.Lock()
		i := slices.IndexFunc(r.registrations, func(p *registration) bool { return p.dir.Base == d.Base })
		listed := i < 0 || r.registrations[i].state.AgentID == r.ID() && !r.registrations[i].state.Withdrawn
		r.mu.Unlock()
		if listed {
			return true
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return false
}

// change calls decide with the stored state of a registration, and stores the state that decide has changed, unless
// decide fails. decide also returns the time of the next visit. If another process stored the state, change first
// takes over the stored id and key. If another process stores a state while decide runs, change calls decide again.
func (r *Registrar) change(ctx context.Context, p *registration, decide func(*registrationState) (next time.Time, err error)) error {
	r.setNext(p, time.Now().Add(r.cfg.Pause(1))) // the next visit if the state cannot be read
	r.mu.Lock()
	known := p.state
	r.mu.Unlock()
	for {
		stored, rev, err := r.loadState(ctx, p, time.Now())
		if err == nil && stored != known {
			err = r.takeIdentity(ctx, time.Now())
		}
		if err != nil {
			return err
		}
		s := stored
		next, err := decide(&s)
		if err != nil {
			return err
		}
		if s != stored {
			err = r.storeRecord(context.WithoutCancel(ctx), p.recordKey(), s, rev)
		}
		if !errors.Is(err, store.ErrConflict) {
			r.setNext(p, next)
			r.setState(p, s)
			return err
		}
		known = registrationState{} // another process has stored a state, so take over what it has
	}
}

func (r *Registrar) setNext(p *registration, next time.Time) {
	r.mu.Lock()
	p.next = next
	r.mu.Unlock()
}

// setState sets the state of a registration, and wakes the callers of AwaitListing.
func (r *Registrar) setState(p *registration, s registrationState) {
	r.mu.Lock()
	differs := p.state != s
	p.state = s
	r.mu.Unlock()
	r.changed.Broadcast()
	if differs && r.cfg.Changed != nil {
		r.cfg.Changed()
	}
}

// visit registers or renews the card, or only checks that it is listed. It stores the directory's answer in s.
func (r *Registrar) visit(ctx context.Context, p *registration, s *registrationState, how visitMode) error {
	id := r.identity.Load()
	card := id.Card.WithoutPrivateLists() // AM-6
	digest := cardDigest(card)
	now := time.Now()
	switch {
	case s.AgentID != id.Card.ID:
		return r.register(ctx, p, s, how)
	case how == renewIfDue && s.Card == digest && now.Before(s.RenewAt):
		_, err := p.dir.Card(ctx, id.Card.ID)
		if errors.Is(err, client.ErrUnknownAgent) {
			return r.registerAgain(ctx, p, s, how)
		}
		return err
	}
	var reg wire.Registered
	var err error
	if previous := r.previousKey(s.ListedKey, id.Key); previous != nil {
		reg, err = p.dir.Rotate(ctx, card, r.Credential(p.dir), id.Key, previous)
	} else {
		reg, err = p.dir.Renew(ctx, card, r.Credential(p.dir), id.Key)
	}
	if errors.Is(err, client.ErrUnknownAgent) || errors.Is(err, client.ErrCredential) {
		return r.registerAgain(ctx, p, s, how)
	}
	if err != nil {
		return err
	}
	s.recordSuccess(reg, id.Key, digest, now)
	return nil
}

// registerAgain registers a card that the directory lost, or whose credential it lost. If the operator removed the card,
// only the owner may register it again.
func (r *Registrar) registerAgain(ctx context.Context, p *registration, s *registrationState, how visitMode) error {
	if how == renewIfDue {
		_, err := p.dir.Card(ctx, s.AgentID)
		if e, ok := errors.AsType[*client.DirectoryError](err); ok && e.Removed != "" {
			return err
		}
	}
	return r.register(ctx, p, s, how)
}

// recordSuccess records a registration or renewal with a card that names key. The next renewal is due after half of
// the lifetime, ± 10 %.
func (s *registrationState) recordSuccess(reg wire.Registered, key *signing.PrivateKey, digest string, now time.Time) {
	s.AgentID, s.Card = reg.AgentID, digest
	fingerprint := key.Public().Fingerprint()
	if s.ListedKey != "" && s.ListedKey != fingerprint {
		s.Followed = now.UTC()
	}
	s.ListedKey = fingerprint // another process may be rotating the key, and then needs a proof by this one
	s.Expires = reg.ExpiresAt.UTC()
	s.Registered = cmp.Or(reg.RegisteredAt.UTC(), s.Registered, now.UTC())
	half := max(reg.ExpiresAt.Sub(now)/2, time.Minute)
	s.RenewAt = now.Add((half + client.Jitter(half)) / 2).UTC()
}

func cardDigest(card wire.Value) string {
	sum := signing.Digest(card)
	return hex.EncodeToString(sum[:])
}
