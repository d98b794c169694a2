package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The namespaces of our records; the key is the agent id.
const (
	nsPins  = "pins"
	nsPeers = "peers"
)

// The terms that pins are listed and counted by.
const (
	byOwner    = "owner"
	byStranger = "stranger"
)

// Pins that strangers caused are bounded: with a card and a signature anybody gets one.
const (
	maxStrangerPins = 10_000
	strangerPinLife = 180 * 24 * time.Hour
)

// Pin is the key that an agent is known by (AM-11).
type Pin struct {
	Agent       wire.AgentID `json:"-"`
	Fingerprint string       `json:"fingerprint"`
	PublicKey   string       `json:"public_key"`
	Directory   string       `json:"directory,omitempty"` // where it was seen; "" where the owner gave the card
	Pinned      time.Time    `json:"pinned"`
	Owner       bool         `json:"owner,omitempty"`  // the owner wrote to the agent, gave its card or accepted its key
	Proven      bool         `json:"proven,omitempty"` // the agent id led to the key, by itself or by a key chain (AM-2)
	Pending     *PendingKey  `json:"pending,omitempty"`
}

// IsUnproven reports whether nothing leads from the agent id, which has the shape of a derived one, to the pinned key.
func (p Pin) IsUnproven() bool {
	_, digits, _ := strings.Cut(p.Fingerprint, ":")
	return digits != "" && !p.Proven && p.Agent.HasDerivedShape() && !strings.HasPrefix(digits, p.Agent.KeyDigits())
}

// PendingKey is a key that the agent shows and that waits for the owner.
type PendingKey struct {
	Fingerprint string    `json:"fingerprint"`
	PublicKey   string    `json:"public_key"`
	Directory   string    `json:"directory"`
	Proven      bool      `json:"proven,omitempty"`
	Seen        time.Time `json:"seen"`
}

// pinned is a stored pin; the zero value is none.
type pinned struct {
	Pin
	rev     store.Rev
	expires time.Time
}

func pinOf(p Peer) pinned {
	return pinned{Pin: Pin{Agent: p.Card.ID, Fingerprint: p.Key.Fingerprint(), PublicKey: p.Card.PublicKey, Directory: p.Directory, Pinned: p.Pinned, Proven: p.Unproven == nil}}
}

// mark tells an entry of its pin. A pin that is past half of its life counts as not there, so that the next message
// which verifies writes it anew.
func (p pinned) mark(e *entry, now time.Time) *entry {
	e.peer.known = p.Fingerprint == e.peer.Key.Fingerprint()
	if e.peer.known && (p.expires.IsZero() || p.expires.Sub(now) > strangerPinLife/2) {
		e.peer.Pinned, e.peer.ownerPin = p.Pinned, p.Owner
	}
	return e
}

func (c *Cards) loadPin(ctx context.Context, id wire.AgentID, now time.Time) (pinned, error) {
	if c.cfg.Records == nil {
		return pinned{}, nil
	}
	rec, err := c.cfg.Records.Get(ctx, nsPins, string(id), now)
	if errors.Is(err, store.ErrNotFound) {
		return pinned{}, nil
	} else if err != nil {
		return pinned{}, fmt.Errorf("read the pin of %s: %w", id, err)
	}
	return readPin(rec)
}

func readPin(rec store.Record) (pinned, error) {
	p := pinned{rev: rec.Rev, expires: rec.Expires}
	if err := json.Unmarshal(rec.Body, &p.Pin); err != nil {
		return pinned{}, fmt.Errorf("read the pin of %s: %w", rec.Key, err)
	}
	p.Agent = wire.AgentID(rec.Key)
	return p, nil
}

// change writes the pin in place of the one it was read as.
func (p pinned) change(now time.Time) store.Change {
	body, _ := json.Marshal(p.Pin) // strings and times: cannot fail
	ch := store.Change{IfRev: p.rev, Record: store.Record{NS: nsPins, Key: string(p.Agent), Body: body, Terms: []string{byOwner}}}
	if !p.Owner {
		ch.Record.Terms, ch.Record.Expires, ch.Max = []string{byStranger}, now.Add(strangerPinLife), maxStrangerPins
	}
	return ch
}

// pin stores the key that peer has now as the agent's key: first use, or (owner) the first time that our owner
// writes to it.
func (c *Cards) pin(ctx context.Context, peer Peer, owner bool, now time.Time) (Peer, error) {
	id, fingerprint := peer.Card.ID, peer.Key.Fingerprint()
	peer.Pinned, peer.ownerPin, peer.known = now, owner, true
	if c.cfg.Records != nil {
		p, err := c.loadPin(ctx, id, now)
		if err != nil {
			return Peer{}, publicError(err)
		}
		if p.Fingerprint != "" && p.Fingerprint != fingerprint {
			c.drop(id)
			return Peer{}, wire.ErrSignature.Because(errors.New("another key was pinned meanwhile"))
		}
		if p.Fingerprint == "" {
			p = pinned{Pin: pinOf(peer).Pin}
		}
		p.Owner = p.Owner || owner
		err = c.cfg.Records.Apply(ctx, []store.Change{p.change(now)}, now)
		switch {
		case errors.Is(err, store.ErrQuota):
			c.cfg.Logger.WarnContext(ctx, "pin not stored: too many pins of strangers", "agent", id)
		case errors.Is(err, store.ErrConflict):
			// Another message of the same agent did it at the same time; a different key shows in the next lookup.
		case err != nil:
			return Peer{}, publicError(fmt.Errorf("pin the key of %s: %w", id, err))
		}
		peer.Pinned, peer.ownerPin = p.Pinned, p.Owner
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.known.Peek(id); ok && e.peer.Key.Fingerprint() == fingerprint {
		e.peer.Pinned, e.peer.ownerPin, e.peer.known = peer.Pinned, peer.ownerPin, true
	}
	return peer, nil
}

// Between two reports of a key change: of any key of an agent, and of the same one.
const (
	reportGap     = time.Hour
	reportSameGap = 24 * time.Hour
)

// keyChanged stores the key that is offered as pending and tells the owner.
func (c *Cards) keyChanged(ctx context.Context, pin pinned, o offer, now time.Time) error {
	e := &KeyChangedError{cause: o.why, KeyChange: KeyChange{
		Agent: pin.Agent, Directory: o.peer.Directory, Old: pin.Fingerprint, New: o.peer.Key.Fingerprint(), At: now,
	}}
	if last := pin.Pending; last != nil {
		if gap := now.Sub(last.Seen); gap < reportGap || gap < reportSameGap && last.Fingerprint == e.New {
			return e
		}
	}
	pin.Pending = &PendingKey{Fingerprint: e.New, PublicKey: o.peer.Card.PublicKey, Directory: o.peer.Directory, Proven: o.peer.Unproven == nil, Seen: now}
	if c.cfg.Records != nil {
		err := c.cfg.Records.Apply(ctx, []store.Change{pin.change(now)}, now)
		if errors.Is(err, store.ErrConflict) {
			return e // another lookup reports it
		} else if err != nil {
			return fmt.Errorf("note the key change of %s: %w", pin.Agent, err)
		}
	}
	if c.cfg.OnKeyChange != nil {
		c.cfg.OnKeyChange(ctx, e.KeyChange)
	}
	return e
}

// ErrNoKeyChange: no such key waits for the owner's word.
var ErrNoKeyChange = errors.New("no such key change is pending")

// RepinChanges returns what accepts the pending key of id, or the key of a card whose id does not lead to it, for a step
// that holds more; call [Cards.Drop] after it. There is nothing to change if the key was accepted before. The error is
// [ErrNoKeyChange] if the agent does not show this key.
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
		return c.PinChanges(ctx, pinOf(peer).Pin, now)
	}
	if p.Pending == nil || p.Pending.Fingerprint != fingerprint {
		return nil, ErrNoKeyChange
	}
	p.Pin = Pin{
		Agent: id, Fingerprint: fingerprint, PublicKey: p.Pending.PublicKey, Directory: p.Pending.Directory, Proven: p.Pending.Proven,
		Pinned: now, Owner: true,
	}
	return []store.Change{
		p.change(now),
		// A card that the owner gave earlier has the old key: the directory's takes its place.
		{Record: store.Record{NS: nsPeers, Key: string(id)}, IfRev: store.Any, Delete: true},
	}, nil
}

// Repin accepts the pending key of id, by the owner's word (AM-11). It may be repeated.
func (c *Cards) Repin(ctx context.Context, id wire.AgentID, fingerprint string) error {
	now := time.Now()
	changes, err := c.RepinChanges(ctx, id, fingerprint, now)
	if err == nil && len(changes) > 0 {
		err = c.cfg.Records.Apply(ctx, changes, now)
	}
	if err != nil {
		return fmt.Errorf("accept the key of %s: %w", wire.OneLine(string(id), 140), err)
	}
	c.Drop(id)
	return nil
}

// Drop forgets what is cached of id, after its pin or card was changed elsewhere.
func (c *Cards) Drop(id wire.AgentID) { c.drop(id) }

// AddPeer takes a card from the owner: it is used before any directory's, and its key is pinned, whatever was before.
// A card that is not acceptable is [ErrUnusableCard].
func (c *Cards) AddPeer(ctx context.Context, card wire.Value, now time.Time) (Peer, error) {
	peer, err := c.read(card, c.givenReach(), now)
	if err != nil {
		return Peer{}, err
	}
	if c.cfg.Records == nil {
		return Peer{}, errors.New("add a peer: there is no store to keep it in")
	}
	id := peer.Card.ID
	peer.Pinned, peer.ownerPin, peer.known, peer.Until = now, true, true, now.Add(maxFresh)
	p := pinOf(peer)
	p.Owner, p.rev = true, store.Any
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

// Forget removes the pin of id and the card that the owner gave. The next use pins anew.
func (c *Cards) Forget(ctx context.Context, id wire.AgentID) error {
	if c.cfg.Records != nil {
		err := c.cfg.Records.Apply(ctx, []store.Change{
			{Record: store.Record{NS: nsPeers, Key: string(id)}, IfRev: store.Any, Delete: true},
			{Record: store.Record{NS: nsPins, Key: string(id)}, IfRev: store.Any, Delete: true},
		}, time.Now())
		if err != nil {
			return fmt.Errorf("forget %s: %w", wire.OneLine(string(id), 140), err)
		}
	}
	c.Drop(id)
	return nil
}

// PinOf returns the pin of an agent; the zero value is none.
func (c *Cards) PinOf(ctx context.Context, id wire.AgentID, now time.Time) (Pin, error) {
	p, err := c.loadPin(ctx, id, now)
	return p.Pin, err
}

// Pins lists pins in the order of agent ids, after the one named after; next is "" on the last page.
func (c *Cards) Pins(ctx context.Context, after wire.AgentID, limit int, now time.Time) (pins []Pin, next wire.AgentID, err error) {
	if c.cfg.Records == nil {
		return nil, "", nil
	}
	page, err := c.cfg.Records.List(ctx, nsPins, "", string(after), limit, now)
	if err != nil {
		return nil, "", fmt.Errorf("list pins: %w", err)
	}
	for _, rec := range page.Records {
		p, err := readPin(rec)
		if err != nil {
			return nil, "", err
		}
		pins = append(pins, p.Pin)
	}
	return pins, wire.AgentID(page.Next), nil
}
