package node

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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

// keeper keeps the node listed in every configured directory. One call is under way at a time: an id that one
// directory gives is known before the next one is asked.
type keeper struct {
	n     *Node
	kick  chan struct{}
	moved signal // a place stands otherwise than it did

	work    sync.Mutex                     // held over calls to directories; guards retired
	retired map[string]*signing.PrivateKey // keys from before a rotation, by fingerprint

	mu     sync.Mutex // guards what places hold
	places []*place

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

func newKeeper(n *Node) *keeper {
	k := &keeper{n: n, kick: make(chan struct{}, 1), retired: make(map[string]*signing.PrivateKey)}
	for _, d := range n.cfg.Directories {
		k.places = append(k.places, &place{dir: d, state: placeState{Directory: d.Base}})
	}
	return k
}

const (
	keyNodeID     = "identity"
	keyCredential = "credential"
)

func (p *place) recordKey() string {
	sum := sha256.Sum256([]byte(p.dir.Known()))
	return "directory/" + hex.EncodeToString(sum[:])
}

// restore reads what an earlier process knew.
func (k *keeper) restore(ctx context.Context, now time.Time) error {
	id := nodeID{AgentID: k.n.ID()}
	if _, err := k.n.recall(ctx, keyNodeID, &id, now); err != nil {
		return err
	}
	if err := k.n.rename(id); err != nil {
		return err
	}
	for _, p := range k.places {
		if _, err := k.n.recall(ctx, p.recordKey(), &p.state, now); err != nil {
			return err
		}
		p.state.Directory = p.dir.Base // it may have moved
	}
	return k.restoreCredential(ctx, now)
}

// recall reads a record of the node's own state; false where there is none.
func (n *Node) recall(ctx context.Context, key string, dst any, now time.Time) (bool, error) {
	r, err := n.store.Records().Get(ctx, nsState, key, now)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(r.Body, dst)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", key, err)
	}
	return true, nil
}

// restoreCredential makes sure that there is a secret to derive bearers from.
func (k *keeper) restoreCredential(ctx context.Context, now time.Time) error {
	if k.n.cfg.Credential != "" {
		return nil
	}
	var kept string
	if ok, err := k.n.recall(ctx, keyCredential, &kept, now); err != nil {
		return err
	} else if !ok {
		kept = string(client.NewCredential())
		body, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		if err := k.n.keep(ctx, keyCredential, body, now); err != nil {
			return err
		}
	}
	k.n.cfg.Credential = client.Credential(kept)
	return nil
}

// Credential is the bearer for one directory, made of the node's secret, so that no directory learns the bearer for
// another one and there is one secret to keep.
func Credential(secret client.Credential, d *client.Directory) client.Credential {
	bearer, err := hkdf.Key(sha256.New, []byte(secret), nil, "agentmesh-credential "+d.Known(), 32)
	if err != nil {
		panic(fmt.Sprintf("derive credential: %v", err)) // only for a length that HKDF cannot make
	}
	return client.Credential(hex.EncodeToString(bearer))
}

func (k *keeper) credential(d *client.Directory) client.Credential {
	return Credential(k.n.cfg.Credential, d)
}

// run looks after every directory when it is due, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for {
		wait := checkEvery
		for _, p := range k.places {
			if !k.due(p, time.Now()) {
				continue
			}
			k.work.Lock()
			k.tend(ctx, p, ifNeeded)
			k.work.Unlock()
		}
		now := time.Now()
		k.mu.Lock()
		for _, p := range k.places {
			if !p.state.Withdrawn {
				wait = min(wait, max(p.next.Sub(now), 0))
			}
		}
		k.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (k *keeper) due(p *place, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
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
func (k *keeper) tend(ctx context.Context, p *place, how visiting) {
	k.mu.Lock()
	s := p.state
	k.mu.Unlock()
	err := k.visit(ctx, p, &s, how)
	if err != nil && ctx.Err() != nil {
		return // stopping
	}
	now := time.Now()
	next := now.Add(jitter(checkEvery))
	if until := s.RenewAt; s.AgentID != "" && until.Before(next) {
		next = until
	}
	s.Error, s.Hint, s.Refused = "", "", false
	if err != nil {
		s.Failures++
		after := time.Duration(0)
		s.Error = wire.OneLine(err.Error(), 300)
		s.Hint = hintOf(err)
		if e, ok := errors.AsType[*client.DirectoryError](err); ok {
			after, s.Refused = e.RetryAfter, e.Final()
		} else if _, refused := errors.AsType[*otherIDError](err); refused {
			s.Refused = true
		}
		next = now.Add(max(min(pauseAfter(s.Failures, 0), maxKeeperWait), after))
		k.n.log.Warn("keep listed", "directory", s.Directory, "err", s.Error, "hint", s.Hint, "next", next)
	} else {
		s.Failures = 0
	}
	if err := k.put(ctx, p, s, next); err != nil {
		k.n.log.Error("store directory state", "directory", s.Directory, "err", err) // the directory tells it again
	}
}

// awaitListed waits until the directory at d's base lists the node, and reports whether it does: not if ctx ends first.
func (k *keeper) awaitListed(ctx context.Context, d *client.Directory) bool {
	for ctx.Err() == nil {
		news := k.moved.wait()
		k.mu.Lock()
		i := slices.IndexFunc(k.places, func(p *place) bool { return p.dir.Base == d.Base })
		listed := i < 0 || k.places[i].state.AgentID == k.n.ID() && !k.places[i].state.Withdrawn
		k.mu.Unlock()
		if listed {
			return true
		}
		select {
		case <-ctx.Done():
		case <-news:
		}
	}
	return false
}

// put remembers how a place stands.
func (k *keeper) put(ctx context.Context, p *place, s placeState, next time.Time) error {
	k.mu.Lock()
	changed := p.state != s
	p.state, p.next = s, next
	k.mu.Unlock()
	k.moved.give()
	if !changed {
		return nil
	}
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return k.n.keep(context.WithoutCancel(ctx), p.recordKey(), body, time.Now())
}

// visit registers, renews or only looks, and fills s by what the directory says.
func (k *keeper) visit(ctx context.Context, p *place, s *placeState, how visiting) error {
	id := k.n.identity.Load()
	card := id.Card.WithoutPrivateLists() // AM-6
	digest := cardDigest(card)
	now := time.Now()
	switch {
	case s.AgentID != id.Card.ID:
		return k.register(ctx, p, s, how)
	case how == ifNeeded && s.Card == digest && now.Before(s.RenewAt):
		_, err := p.dir.Card(ctx, id.Card.ID)
		if errors.Is(err, client.ErrUnknownAgent) {
			return k.register(ctx, p, s, how) // it was lost
		}
		return err
	}
	var reg wire.Registered
	var err error
	if previous := k.previousKey(s.PreviousKey, id.Key); previous != nil {
		reg, err = p.dir.Rotate(ctx, card, k.credential(p.dir), id.Key, previous)
	} else {
		reg, err = p.dir.Renew(ctx, card, k.credential(p.dir), id.Key)
	}
	if errors.Is(err, client.ErrUnknownAgent) || errors.Is(err, client.ErrCredential) { // it was lost, or our credential was
		return k.register(ctx, p, s, how)
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
	s.RenewAt = now.Add((half + jitter(half)) / 2).UTC()
}

func cardDigest(card wire.Value) string {
	sum := signing.Digest(card)
	return hex.EncodeToString(sum[:])
}

// hintOf returns what the owner can do about an error of a directory, "" if nothing comes to mind.
func hintOf(err error) string {
	type hinter interface {
		error
		Hint() string
	}
	if e, ok := errors.AsType[hinter](err); ok {
		return e.Hint()
	}
	return ""
}
