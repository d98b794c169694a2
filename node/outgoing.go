package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// maxOutgoingAsks bounds the messages of ours that wait for the owner.
const maxOutgoingAsks = 200

// askOutgoing puts a message of ours before the owner (AM-50). It is neither signed nor part of its conversation
// until the owner lets it go.
func (n *Node) askOutgoing(ctx context.Context, out Outgoing) (Sent, error) {
	now := time.Now()
	body, err := json.Marshal(out)
	if err != nil {
		return Sent{}, fmt.Errorf("encode outgoing message: %w", err)
	}
	shown, err := wire.ParseObject(body)
	if err != nil {
		return Sent{}, fmt.Errorf("encode outgoing message: %w", err)
	}
	id := acl.NewAskID(now)
	ask, changes := n.asks.Open(acl.Ask{
		ID: id, Kind: askOutgoing, Subject: principal(out), Conv: out.key(),
		Title: fmt.Sprintf("send %s to %s", out.Intent, out.To), Body: body,
		Hash:    hexOf(signing.Digest(shown)),
		Choices: []acl.Choice{acl.Approve, acl.Reject}, Created: now, Expires: now.Add(n.cfg.HoldFor),
	}, acl.Slot{Key: "outgoing/" + id, Term: "outgoing", Max: maxOutgoingAsks})
	notice := n.notice("approval", out.To, "", out.key(), now)
	records := append(changes, n.notices.Change(notice))
	if err := n.store.Records().Apply(ctx, records, now); err != nil {
		return Sent{}, err
	}
	n.published(records)
	return Sent{Conversation: out.Conv, State: SendHeld, Ask: ask.ID, Hint: "it waits for the owner: agentmesh approvals list"}, nil
}

// outgoingResolver carries out what the owner decided about a message of ours.
type outgoingResolver struct{ n *Node }

// Resolve sends the message, under the outbound allowlist as it is now, or drops it.
func (r outgoingResolver) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	if d.Choice != acl.Approve {
		if err := r.n.store.Records().Apply(ctx, d.Changes, d.Now); err != nil {
			return err
		}
		r.n.published(d.Changes)
		return nil
	}
	var out Outgoing
	if err := json.Unmarshal(ask.Body, &out); err != nil {
		return fmt.Errorf("decode outgoing message: %w", err)
	}
	if !r.n.cfg.Outbound.allows(out) {
		return ErrOutbound
	}
	_, err := r.n.dispatch(ctx, out, d.Changes, 0)
	return err
}

var _ acl.Resolver = outgoingResolver{}
