package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// checkID returns an error if the card's id has the shape of an id derived from a key, but does not prove key.
func checkID(card wire.Card, key *signing.PublicKey, now time.Time) error {
	if !card.ID.HasDerivedShape() {
		return nil
	}
	return signing.ProvesID(card, key, now)
}

// CheckCardID returns an error if the id of the card in tree has the shape of an id derived from a key, but does not
// prove the card's key (AM-2).
func CheckCardID(tree wire.Value, now time.Time) error {
	card := wire.Card{ID: wire.AgentID(tree.GetStr("agent_id"))}
	card.Metadata, _ = tree.Get("metadata")
	key, err := signing.ParsePublicKey(tree.GetStr("public_key"))
	if err != nil {
		return err
	}
	return checkID(card, key, now)
}

// UnprovenError means that the id of a new agent has the shape of an id derived from a key, but does not prove the key
// on its card (AM-2). Another agent may have registered the id, so the owner decides.
type UnprovenError struct{ Peer Peer }

func (e *UnprovenError) Error() string {
	return fmt.Sprintf("somebody else may have registered %s: its card at %s has the key %s; %v",
		e.Peer.Card.ID, wire.OneLine(e.Peer.Directory, 200), e.Peer.Key.Fingerprint(), e.Peer.Unproven)
}

// Unwrap returns [ErrUnusableCard] and the reason why the id does not prove the key.
func (e *UnprovenError) Unwrap() []error { return []error{ErrUnusableCard, e.Peer.Unproven} }

// Hint returns what a person can do.
func (e *UnprovenError) Hint() string {
	return fmt.Sprintf("ask its owner over another channel whether this is the agent's key, and only then: agentmesh peers repin %s %s",
		e.Peer.Card.ID, e.Peer.Key.Fingerprint())
}

// recheck updates a doubtful peer if the owner has accepted its key since the card was cached.
func (c *Cards) recheck(ctx context.Context, peer Peer, now time.Time) (Peer, error) {
	if !peer.IsDoubtful() {
		return peer, nil
	}
	pin, err := c.loadPin(ctx, peer.Card.ID, now)
	if err != nil {
		return Peer{}, err
	}
	return pin.applyTo(&entry{peer: peer}, now).peer, nil
}

// ErrOtherKey means that another key of the agent was accepted after the owner saw this one.
var ErrOtherKey = errors.New("another key of this agent was accepted meanwhile")

// PinChanges returns the changes that pin the key in shown, which the owner has seen and accepts, or that keep the pinned
// key for good, if shown has no key. The caller applies them, with its own changes. If the owner has pinned the key
// already, PinChanges returns no changes. If another key is pinned, the error is [ErrOtherKey].
func (c *Cards) PinChanges(ctx context.Context, shown Pin, now time.Time) ([]store.Change, error) {
	p, err := c.loadPin(ctx, shown.Agent, now)
	switch {
	case err != nil:
		return nil, err
	case p.Fingerprint != "" && shown.Fingerprint != "" && p.Fingerprint != shown.Fingerprint:
		return nil, ErrOtherKey
	case p.FromOwner, p.Fingerprint == "" && shown.Fingerprint == "":
		return nil, nil
	case p.Fingerprint == "":
		p.Pin = shown
		p.Pinned = now
	}
	p.FromOwner = true
	return []store.Change{p.change(now)}, nil
}

// UnprovenKey is a key that the agent's id does not prove (AM-2), as the owner sees it.
type UnprovenKey struct {
	Fingerprint string `json:"fingerprint"`
	PublicKey   string `json:"public_key"`
	Directory   string `json:"directory,omitempty"` // the directory that lists the key
	Why         string `json:"why"`                 // why the id does not prove the key
}
