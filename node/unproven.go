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

// RuleUnproven is the rule of a question about an agent whose id does not lead to its key (AM-2).
const RuleUnproven = owner.RuleUnproven

// ErrOtherKey: the key that the owner was shown is not the one that the agent is known by since.
var ErrOtherKey = &wire.Error{
	Code: wire.InvalidSignature, Status: http.StatusConflict, Message: "another key of this agent was accepted meanwhile; reject this",
}

// doubtOf returns the key of a peer that the owner must accept first, nil if there is nothing to accept.
func doubtOf(peer client.Peer) *bridge.UnprovenKey {
	if !peer.IsDoubtful() {
		return nil
	}
	return &bridge.UnprovenKey{
		Fingerprint: peer.Key.Fingerprint(), PublicKey: peer.Card.PublicKey, Directory: peer.Directory,
		Why: (&client.UnprovenError{Peer: peer}).Error(),
	}
}

// doubtIn returns the peer and its key that the owner must accept first, from the error of a look-up.
func doubtIn(err error) (client.Peer, *bridge.UnprovenKey) {
	e, ok := errors.AsType[*client.UnprovenError](err)
	if !ok {
		return client.Peer{}, nil
	}
	return e.Peer, doubtOf(e.Peer)
}

// acceptKey returns the changes that pin the key of an agent as the owner was shown it; none for nil.
func (n *Node) acceptKey(ctx context.Context, agent wire.AgentID, shown *bridge.UnprovenKey, now time.Time) ([]store.Change, error) {
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
