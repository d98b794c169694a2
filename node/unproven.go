package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// RuleUnproven is the rule of a question about an agent whose derived id does not lead to its key (AM-2).
const RuleUnproven = owner.RuleUnproven

// ErrOtherKey means that another key of the agent was accepted after the owner was asked about this one.
var ErrOtherKey = &wire.Error{
	Code: wire.InvalidSignature, Status: http.StatusConflict, Message: "another key of this agent was accepted meanwhile; reject this",
}

// unprovenKeyOf returns the key of a peer that the owner must accept first, or nil.
func unprovenKeyOf(peer client.Peer) *bridge.UnprovenKey {
	if !peer.IsDoubtful() {
		return nil
	}
	return &bridge.UnprovenKey{
		Fingerprint: peer.Key.Fingerprint(), PublicKey: peer.Card.PublicKey, Directory: peer.Directory,
		Why: (&client.UnprovenError{Peer: peer}).Error(),
	}
}

// findRecipient returns the card of an agent. It also returns an agent whose key the owner must accept first, with that
// key.
func (n *Node) findRecipient(ctx context.Context, id wire.AgentID) (client.Peer, *bridge.UnprovenKey, error) {
	peer, err := n.cards.Find(ctx, id, time.Now())
	if e, ok := errors.AsType[*client.UnprovenError](err); ok {
		if key := unprovenKeyOf(e.Peer); key != nil {
			return e.Peer, key, nil
		}
	}
	return peer, nil, err
}

// pinChanges returns the changes that pin the key that the owner was shown, if any.
func (n *Node) pinChanges(ctx context.Context, agent wire.AgentID, shown *bridge.UnprovenKey, now time.Time) ([]store.Change, error) {
	if shown == nil {
		return nil, nil
	}
	changes, err := n.cards.PinChanges(ctx, client.Pin{
		Agent: agent, Fingerprint: shown.Fingerprint, PublicKey: shown.PublicKey, Directory: shown.Directory,
	}, now)
	if errors.Is(err, client.ErrOtherKey) {
		return nil, ErrOtherKey
	}
	return changes, err
}
