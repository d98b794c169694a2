package registration

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	checkEvery    = 15 * time.Minute // how soon a directory that lost the card gets it again
	maxKeeperWait = time.Hour        // between two tries while something is wrong
)

// Identity is who the node is: its signing key and the card that says so.
type Identity struct {
	Key  *signing.PrivateKey
	Card wire.Card
}

// Config is what a registrar is made of.
type Config struct {
	Identity    Identity
	Directories []*client.Directory
	// Credential is the secret from which bearers for directories are derived; empty: the registrar makes one and keeps it.
	Credential client.Credential
	Store      store.Store
	// SaveKey keeps a new signing key, and the card that has it, before it is used; nil: the key cannot be rotated.
	SaveKey func(key *signing.PrivateKey, card wire.Value) error
	// RetiredKey returns a signing key from before a rotation by its fingerprint, and FirstKey the one that an agent id is
	// derived from. nil finds none.
	RetiredKey func(fingerprint string) (*signing.PrivateKey, error)
	FirstKey   func(id wire.AgentID) (*signing.PrivateKey, error)
	// Pause returns how long to wait after so many failures in a row.
	Pause  func(failures int) time.Duration
	Logger *slog.Logger
}

// Registrar keeps the node listed in every configured directory, and its identity. One call is under way at a time: an id
// that one directory gives is known before the next one is asked. It is safe for concurrent use.
type Registrar struct {
	cfg      Config
	identity atomic.Pointer[Identity]
	kick     chan struct{}

	work    sync.Mutex                     // held over calls to directories; guards retired
	retired map[string]*signing.PrivateKey // keys from before a rotation, by fingerprint

	mu     sync.Mutex // guards what places hold, and moved
	places []*place
	moved  chan struct{} // closed when a place stands otherwise than it did

	rotated atomic.Int64 // when the key last changed, in Unix seconds
}

// place is one directory and what is known of our card there.
type place struct {
	dir   *client.Directory
	state placeState
	next  time.Time
}

// placeState is what a restart must know of a place.
type placeState struct {
	Directory  string       `json:"directory"`
	AgentID    wire.AgentID `json:"agent_id,omitempty"` // empty: not registered
	Registered time.Time    `json:"registered,omitzero"`
	Expires    time.Time    `json:"expires,omitzero"`
	RenewAt    time.Time    `json:"renew_at,omitzero"`
	Card       string       `json:"card,omitempty"` // hex digest of the card that it has
	Withdrawn  bool         `json:"withdrawn,omitempty"`
	Error      string       `json:"error,omitempty"`
	Hint       string       `json:"hint,omitempty"`
	Refused    bool         `json:"refused,omitempty"`
	Failures   int          `json:"failures,omitempty"`
	// PreviousKey is the fingerprint of the key that the directory still lists, until it has followed a rotation (AM-60).
	PreviousKey string `json:"previous_key,omitempty"`
}

// New returns a registrar that knows nothing of an earlier process, see [Registrar.Restore].
func New(cfg Config) *Registrar {
	r := &Registrar{cfg: cfg, kick: make(chan struct{}, 1), moved: make(chan struct{}), retired: make(map[string]*signing.PrivateKey)}
	r.identity.Store(&cfg.Identity)
	for _, d := range cfg.Directories {
		r.places = append(r.places, &place{dir: d, state: placeState{Directory: d.Base}})
	}
	return r
}

// Identity returns who the node is now. The caller must not change it.
func (r *Registrar) Identity() *Identity { return r.identity.Load() }

// ID returns the node's agent id.
func (r *Registrar) ID() wire.AgentID { return r.identity.Load().Card.ID }

// namespace has the records of the registrar, beside other state of the node.
const namespace = "node"

const (
	keyNodeID     = "identity"
	keyCredential = "credential"
)

func (p *place) recordKey() string {
	sum := sha256.Sum256([]byte(p.dir.StoredName()))
	return "directory/" + hex.EncodeToString(sum[:])
}

// Restore reads what an earlier process knew.
func (r *Registrar) Restore(ctx context.Context, now time.Time) error {
	id := nodeID{AgentID: r.ID()}
	if _, err := r.recall(ctx, keyNodeID, &id, now); err != nil {
		return err
	}
	if err := r.rename(id); err != nil {
		return err
	}
	for _, p := range r.places {
		if _, err := r.recall(ctx, p.recordKey(), &p.state, now); err != nil {
			return err
		}
		p.state.Directory = p.dir.Base // it may have moved
	}
	return r.restoreCredential(ctx, now)
}

// recall reads a record of the node's own state; false where there is none.
func (r *Registrar) recall(ctx context.Context, key string, dst any, now time.Time) (bool, error) {
	rec, err := r.cfg.Store.Records().Get(ctx, namespace, key, now)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(rec.Body, dst)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", key, err)
	}
	return true, nil
}

// keep writes a record of the node's own state.
func (r *Registrar) keep(ctx context.Context, key string, body []byte, now time.Time) error {
	return r.cfg.Store.Records().Apply(ctx, []store.Change{{Record: store.Record{NS: namespace, Key: key, Body: body}, IfRev: store.Any}}, now)
}

// restoreCredential makes sure that there is a secret to derive bearers from.
func (r *Registrar) restoreCredential(ctx context.Context, now time.Time) error {
	if r.cfg.Credential != "" {
		return nil
	}
	var kept string
	if ok, err := r.recall(ctx, keyCredential, &kept, now); err != nil {
		return err
	} else if !ok {
		kept = string(client.NewCredential())
		body, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		if err := r.keep(ctx, keyCredential, body, now); err != nil {
			return err
		}
	}
	r.cfg.Credential = client.Credential(kept)
	return nil
}

// Credential is the bearer for one directory, made of the node's secret, so that no directory learns the bearer for
// another one and there is one secret to keep.
func Credential(secret client.Credential, d *client.Directory) client.Credential {
	bearer, err := hkdf.Key(sha256.New, []byte(secret), nil, "agentmesh-credential "+d.StoredName(), 32)
	if err != nil {
		panic(fmt.Sprintf("derive credential: %v", err)) // only for a length that HKDF cannot make
	}
	return client.Credential(hex.EncodeToString(bearer))
}

// Credential returns the node's bearer for a directory.
func (r *Registrar) Credential(d *client.Directory) client.Credential {
	return Credential(r.cfg.Credential, d)
}

// Run looks after every directory when it is due, until ctx ends.
func (r *Registrar) Run(ctx context.Context) {
	for {
		wait := checkEvery
		for _, p := range r.places {
			if !r.due(p, time.Now()) {
				continue
			}
			r.work.Lock()
			r.tend(ctx, p, ifNeeded)
			r.work.Unlock()
		}
		now := time.Now()
		r.mu.Lock()
		for _, p := range r.places {
			if !p.state.Withdrawn {
				wait = min(wait, max(p.next.Sub(now), 0))
			}
		}
		r.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (r *Registrar) due(p *place, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !p.state.Withdrawn && !p.next.After(now)
}

// visiting says how a directory is visited.
type visiting uint8

const (
	ifNeeded visiting = iota // renew only if the card has changed or its renewal is due
	renewing                 // renew in any case
	adopting                 // likewise, and take over the id that the directory gives
)

// tend does what a place needs now and stores how it stands. The caller holds work.
func (r *Registrar) tend(ctx context.Context, p *place, how visiting) {
	r.mu.Lock()
	s := p.state
	r.mu.Unlock()
	err := r.visit(ctx, p, &s, how)
	if err != nil && ctx.Err() != nil {
		return // stopping
	}
	now := time.Now()
	next := now.Add(client.Jitter(checkEvery))
	if until := s.RenewAt; s.AgentID != "" && until.Before(next) {
		next = until
	}
	s.Error, s.Hint, s.Refused = "", "", false
	if err != nil {
		s.Failures++
		after := time.Duration(0)
		s.Error = wire.OneLine(err.Error(), 300)
		s.Hint = client.HintOf(err)
		if e, ok := errors.AsType[*client.DirectoryError](err); ok {
			after, s.Refused = e.RetryAfter, e.Final()
		} else if _, refused := errors.AsType[*otherIDError](err); refused {
			s.Refused = true
		}
		next = now.Add(max(min(r.cfg.Pause(s.Failures), maxKeeperWait), after))
		r.cfg.Logger.Warn("keep listed", "directory", s.Directory, "err", s.Error, "hint", s.Hint, "next", next)
	} else {
		s.Failures = 0
	}
	if err := r.put(ctx, p, s, next); err != nil {
		r.cfg.Logger.Error("store directory state", "directory", s.Directory, "err", err) // the directory tells it again
	}
}

// AwaitListed waits until the directory at d's base lists the node, and reports whether it does: not if ctx ends first.
func (r *Registrar) AwaitListed(ctx context.Context, d *client.Directory) bool {
	for ctx.Err() == nil {
		r.mu.Lock()
		moved := r.moved
		i := slices.IndexFunc(r.places, func(p *place) bool { return p.dir.Base == d.Base })
		listed := i < 0 || r.places[i].state.AgentID == r.ID() && !r.places[i].state.Withdrawn
		r.mu.Unlock()
		if listed {
			return true
		}
		select {
		case <-ctx.Done():
		case <-moved:
		}
	}
	return false
}

// put remembers how a place stands.
func (r *Registrar) put(ctx context.Context, p *place, s placeState, next time.Time) error {
	r.mu.Lock()
	changed := p.state != s
	p.state, p.next = s, next
	close(r.moved)
	r.moved = make(chan struct{})
	r.mu.Unlock()
	if !changed {
		return nil
	}
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return r.keep(context.WithoutCancel(ctx), p.recordKey(), body, time.Now())
}

// visit registers, renews or only looks, and fills s by what the directory says.
func (r *Registrar) visit(ctx context.Context, p *place, s *placeState, how visiting) error {
	id := r.identity.Load()
	card := id.Card.WithoutPrivateLists() // AM-6
	digest := cardDigest(card)
	now := time.Now()
	switch {
	case s.AgentID != id.Card.ID:
		return r.register(ctx, p, s, how)
	case how == ifNeeded && s.Card == digest && now.Before(s.RenewAt):
		_, err := p.dir.Card(ctx, id.Card.ID)
		if errors.Is(err, client.ErrUnknownAgent) {
			return r.register(ctx, p, s, how) // it was lost
		}
		return err
	}
	var reg wire.Registered
	var err error
	if previous := r.previousKey(s.PreviousKey, id.Key); previous != nil {
		reg, err = p.dir.Rotate(ctx, card, r.Credential(p.dir), id.Key, previous)
	} else {
		reg, err = p.dir.Renew(ctx, card, r.Credential(p.dir), id.Key)
	}
	if errors.Is(err, client.ErrUnknownAgent) || errors.Is(err, client.ErrCredential) { // it was lost, or our credential was
		return r.register(ctx, p, s, how)
	}
	if err != nil {
		return err
	}
	s.listed(reg, digest, now)
	return nil
}

// listed notes a registration or renewal. The next one is due at half of its lifetime, a tenth more or less.
func (s *placeState) listed(reg wire.Registered, digest string, now time.Time) {
	s.AgentID, s.Card, s.PreviousKey = reg.AgentID, digest, ""
	s.Expires = reg.ExpiresAt.UTC()
	s.Registered = cmp.Or(reg.RegisteredAt.UTC(), s.Registered, now.UTC())
	half := max(reg.ExpiresAt.Sub(now)/2, time.Minute)
	s.RenewAt = now.Add((half + client.Jitter(half)) / 2).UTC()
}

func cardDigest(card wire.Value) string {
	sum := signing.Digest(card)
	return hex.EncodeToString(sum[:])
}
