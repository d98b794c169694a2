package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The namespaces of our records. The key of a record is an agent id.
const (
	nsPins  = "pins"
	nsPeers = "peers"
)

// The causes of a pin. They are also its index terms, by which pins are counted.
const (
	byOwner    = "owner"
	byStranger = "stranger"
)

// The bounds on pins that strangers cause: a card and a signature are enough to cause a pin.
const (
	maxStrangerPins = 10_000
	strangerPinLife = 180 * 24 * time.Hour
	maxPinnedName   = 100 // bytes
)

// Pin is the key that we stored for an agent at the first contact (AM-11).
type Pin struct {
	Agent       wire.AgentID `json:"-"`
	Name        string       `json:"name,omitempty"` // from the card with the key: untrusted
	Fingerprint string       `json:"fingerprint"`
	PublicKey   string       `json:"public_key"`
	Directory   string       `json:"directory,omitempty"` // the directory that listed the key; "" if the owner gave the card
	Pinned      time.Time    `json:"pinned"`
	FromOwner   bool         `json:"owner,omitempty"`  // the owner wrote to the agent, let it in, gave its card or accepted its key
	Proven      bool         `json:"proven,omitempty"` // the agent id proved the key, perhaps through a key chain (AM-2)
	Pending     *PendingKey  `json:"pending,omitempty"`
}

// IsUnproven reports whether the agent id has the shape of an id derived from a key, and nothing connects it to the
// pinned key.
func (p Pin) IsUnproven() bool {
	_, digits, _ := strings.Cut(p.Fingerprint, ":")
	return digits != "" && !p.Proven && p.Agent.HasDerivedShape() && !strings.HasPrefix(digits, p.Agent.KeyDigits())
}

// PendingKey is a new key of an agent that waits for the owner's decision.
type PendingKey struct {
	Fingerprint string    `json:"fingerprint"`
	PublicKey   string    `json:"public_key"`
	Directory   string    `json:"directory"`
	Proven      bool      `json:"proven,omitempty"`
	Seen        time.Time `json:"seen"` // when it was last reported
}

// storedPin is a pin as it is stored. The zero value means that no key is pinned.
type storedPin struct {
	Pin
	rev     store.Rev
	expires time.Time
}

// newPin returns the pin for the current key of a peer.
func newPin(p Peer) storedPin {
	return storedPin{Pin: Pin{Agent: p.Card.ID, Name: wire.OneLine(p.Card.Name, maxPinnedName), Fingerprint: p.Key.Fingerprint(), PublicKey: p.Card.PublicKey, Directory: p.Directory, Pinned: p.Pinned, Proven: p.Unproven == nil}}
}

// applyTo sets the fields of an entry that depend on the pin. If less than half of the pin's lifetime is left, Pinned
// stays zero, so that the next verified message writes the pin again.
func (p storedPin) applyTo(e *entry, now time.Time) *entry {
	e.peer.keyPinned = p.Fingerprint == e.peer.Key.Fingerprint()
	if e.peer.keyPinned && (p.expires.IsZero() || p.expires.Sub(now) > strangerPinLife/2) {
		e.peer.Pinned, e.peer.ownerPin = p.Pinned, p.FromOwner
	}
	return e
}

func (c *Cards) loadPin(ctx context.Context, id wire.AgentID, now time.Time) (storedPin, error) {
	rec, err := c.cfg.Records.Get(ctx, nsPins, string(id), now)
	if errors.Is(err, store.ErrNotFound) {
		return storedPin{}, nil
	} else if err != nil {
		return storedPin{}, fmt.Errorf("read the pin of %s: %w", id, err)
	}
	return readPin(rec)
}

func readPin(rec store.Record) (storedPin, error) {
	pin, err := store.Decode[Pin](rec)
	pin.Agent = wire.AgentID(rec.Key)
	return storedPin{Pin: pin, rev: rec.Rev, expires: rec.Expires}, err
}

// change returns the change that writes the pin. It fails if the stored pin has changed since p was read.
func (p storedPin) change(now time.Time) store.Change {
	ch := store.Change{IfRev: p.rev, Record: store.Record{NS: nsPins, Key: string(p.Agent), Body: wire.MustMarshal(p.Pin), Terms: []string{byOwner}}}
	if !p.FromOwner {
		ch.Record.Terms, ch.Record.Expires, ch.Max = []string{byStranger}, now.Add(strangerPinLife), maxStrangerPins
	}
	return ch
}

// pin stores the current key of peer as the agent's key. It is called at the first contact with the agent, and again
// after half of the pin's lifetime. The cause byOwner means that our owner writes to the agent.
func (c *Cards) pin(ctx context.Context, peer Peer, cause string, now time.Time) (Peer, error) {
	id, fingerprint := peer.Card.ID, peer.Key.Fingerprint()
	peer.Pinned, peer.keyPinned = now, true // newPin reads Pinned
	p, err := c.loadPin(ctx, id, now)
	if err != nil {
		return Peer{}, publicError(err)
	}
	if p.Fingerprint != "" && p.Fingerprint != fingerprint {
		c.Drop(id)
		return Peer{}, wire.ErrSignature.Because(errors.New("another key was pinned meanwhile"))
	}
	if p.Fingerprint == "" {
		p = newPin(peer)
	}
	p.Name, p.FromOwner = newPin(peer).Name, p.FromOwner || cause == byOwner
	err = c.cfg.Records.Apply(ctx, []store.Change{p.change(now)}, now)
	switch {
	case errors.Is(err, store.ErrQuota):
		c.cfg.Logger.WarnContext(ctx, "pin not stored: too many pins of strangers", "agent", id)
	case errors.Is(err, store.ErrConflict):
		// Another message of the agent wrote the pin. If it pinned another key, the next look-up finds that.
	case err != nil:
		return Peer{}, publicError(fmt.Errorf("pin the key of %s: %w", id, err))
	}
	peer.Pinned, peer.ownerPin = p.Pinned, p.FromOwner
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.cache.Peek(id); ok && e.peer.Key.Fingerprint() == fingerprint {
		e.peer.Pinned, e.peer.ownerPin, e.peer.keyPinned = peer.Pinned, peer.ownerPin, true
	}
	return peer, nil
}

// The shortest time between two reports about one agent, and between two reports of the same key.
const (
	reportGap     = time.Hour
	reportSameGap = 24 * time.Hour
)

// reportKeyChange returns a *[KeyChangedError] about the offered key. Unless the change was reported recently, it also
// stores the key as pending and calls OnKeyChange.
func (c *Cards) reportKeyChange(ctx context.Context, pin storedPin, offered offeredKey, now time.Time) error {
	e := &KeyChangedError{cause: offered.reason, KeyChange: KeyChange{
		Agent: pin.Agent, Directory: offered.peer.Directory, Old: pin.Fingerprint, New: offered.peer.Key.Fingerprint(), At: now,
		FromOwner: pin.FromOwner,
	}}
	if last := pin.Pending; last != nil {
		if gap := now.Sub(last.Seen); gap < reportGap || gap < reportSameGap && last.Fingerprint == e.New {
			return e
		}
	}
	pin.Pending = &PendingKey{Fingerprint: e.New, PublicKey: offered.peer.Card.PublicKey, Directory: offered.peer.Directory, Proven: offered.peer.Unproven == nil, Seen: now}
	err := c.cfg.Records.Apply(ctx, []store.Change{pin.change(now)}, now)
	if errors.Is(err, store.ErrConflict) {
		return e
	} else if err != nil {
		return fmt.Errorf("record the key change of %s: %w", pin.Agent, err)
	}
	if c.cfg.OnKeyChange != nil {
		c.cfg.OnKeyChange(ctx, e.KeyChange)
	}
	return e
}

// ErrNoKeyChange means that the key does not wait for the owner's decision.
var ErrNoKeyChange = errors.New("no changed key is waiting to be accepted")

// RepinChanges returns the changes that accept a key of id: the pending key or, for an agent without a pin, the key of
// its card. The caller applies them, with its own changes, and then calls [Cards.Drop]. If the key is pinned already
// and no other key is pending, RepinChanges returns no changes. It returns [ErrNoKeyChange] for any other key.
func (c *Cards) RepinChanges(ctx context.Context, id wire.AgentID, fingerprint string, now time.Time) ([]store.Change, error) {
	p, err := c.loadPin(ctx, id, now)
	if err != nil {
		return nil, err
	}
	if p.Fingerprint == fingerprint && p.Pending == nil {
		return nil, nil
	}
	if p.Fingerprint == "" {
		peer, err := c.get(ctx, id, nil, now)
		if err != nil || peer.Key.Fingerprint() != fingerprint {
			return nil, errors.Join(ErrNoKeyChange, err)
		}
		return c.PinChanges(ctx, newPin(peer).Pin, now)
	}
	if p.Pending == nil || p.Pending.Fingerprint != fingerprint {
		return nil, ErrNoKeyChange
	}
	p.Pin = Pin{
		Agent: id, Name: p.Name, Fingerprint: fingerprint, PublicKey: p.Pending.PublicKey, Directory: p.Pending.Directory, Proven: p.Pending.Proven,
		Pinned: now, FromOwner: true,
	}
	return []store.Change{
		p.change(now),
		// A card that the owner gave earlier has the old key, so the directory's card replaces it.
		{Record: store.Record{NS: nsPeers, Key: string(id)}, IfRev: store.Any, Delete: true},
	}, nil
}

// AddPeer stores a card from the owner and pins its key, even if another key was pinned. The card takes precedence over
// the cards of directories. If the card is not acceptable, the error is [ErrUnusableCard].
func (c *Cards) AddPeer(ctx context.Context, card wire.Value, now time.Time) (Peer, error) {
	peer, err := c.newPeer(card, c.cfg.HTTP.reachOf(true), now) // true: we trust a card from the owner
	if err != nil {
		return Peer{}, err
	}
	id := peer.Card.ID
	peer.Pinned, peer.ownerPin, peer.keyPinned, peer.Until = now, true, true, now.Add(maxFresh)
	p := newPin(peer)
	p.FromOwner, p.rev = true, store.Any
	err = c.cfg.Records.Apply(ctx, []store.Change{
		{Record: store.Record{NS: nsPeers, Key: string(id), Body: card.JSON()}, IfRev: store.Any},
		p.change(now),
	}, now)
	if err != nil {
		return Peer{}, fmt.Errorf("add peer %s: %w", id, err)
	}
	c.Drop(id)
	return peer, nil
}

// Forget removes the pin of id, and the card that the owner gave. The next contact pins the agent's key again.
func (c *Cards) Forget(ctx context.Context, id wire.AgentID) error {
	err := c.cfg.Records.Apply(ctx, []store.Change{
		{Record: store.Record{NS: nsPeers, Key: string(id)}, IfRev: store.Any, Delete: true},
		{Record: store.Record{NS: nsPins, Key: string(id)}, IfRev: store.Any, Delete: true},
	}, time.Now())
	if err != nil {
		return fmt.Errorf("forget %s: %w", wire.OneLine(string(id), 140), err)
	}
	c.Drop(id)
	return nil
}

// NameOf returns the agent's name from its cached card, otherwise from its pin, or "". It asks no directory. The name
// is untrusted.
func (c *Cards) NameOf(ctx context.Context, id wire.AgentID, now time.Time) (string, error) {
	c.mu.Lock()
	e, ok := c.cache.Peek(id)
	c.mu.Unlock()
	if ok {
		return wire.OneLine(e.peer.Card.Name, maxPinnedName), nil
	}
	p, err := c.loadPin(ctx, id, now)
	return p.Name, err
}

// PinOf returns the pin of an agent. The zero value means that no key is pinned.
func (c *Cards) PinOf(ctx context.Context, id wire.AgentID, now time.Time) (Pin, error) {
	p, err := c.loadPin(ctx, id, now)
	return p.Pin, err
}

// Pins returns the pins in the order of agent ids or, if id is not "", only the pin of that agent.
func (c *Cards) Pins(ctx context.Context, id wire.AgentID, now time.Time) iter.Seq2[Pin, error] {
	if id == "" {
		return store.DecodeAll(ctx, c.cfg.Records, nsPins, "", now, func(rec store.Record) (Pin, error) {
			p, err := readPin(rec)
			return p.Pin, err
		})
	}
	return func(yield func(Pin, error) bool) {
		if pin, err := c.PinOf(ctx, id, now); err != nil || pin.Agent != "" {
			yield(pin, err)
		}
	}
}
