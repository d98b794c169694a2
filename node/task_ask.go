package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// taskAnswer is the body of an askTask question.
type taskAnswer struct {
	Item    string          `json:"item"`  // the task in the inbox
	About   string          `json:"about"` // its matter, such as "mess/2026-11-22-001"
	To      wire.AgentID    `json:"to"`
	Name    string          `json:"name,omitempty"` // untrusted text
	Intent  wire.Intent     `json:"intent"`
	Asked   json.RawMessage `json:"asked"`   // the payload of the task; untrusted text
	Payload wire.Value      `json:"payload"` // the answer
}

// askTaskAnswer asks the owner to approve the answer to a task, which is held meanwhile (AM-50).
func (n *Node) askTaskAnswer(ctx context.Context, item Item, out Outgoing, p permission) (Sent, error) {
	ask, changes, err := p.openAsk(n, out, item.PeerName,
		acl.Ask{Kind: askTask, About: item.About, Title: "answer to " + item.About, Created: time.Now()},
		taskAnswer{item.ID, item.About, item.Peer, item.PeerName, item.Intent, item.Payload, out.Payload})
	if err != nil {
		return Sent{}, err
	}
	item.State, item.Ask = ItemHeld, ask.ID
	err = n.storeItem(ctx, item, changes)
	switch {
	case isConflict(err):
		return Sent{}, ErrAnswered
	case errors.Is(err, store.ErrQuota):
		return Sent{}, ErrAsksFull
	case err != nil:
		return Sent{}, err
	}
	return Sent{State: SendHeld, Ask: ask.ID, Hint: "it waits for the owner: agentmesh approvals show " + ask.ID}, nil
}

type taskResolver struct{ n *Node }

// Resolve delivers an approved answer after it checked the outbound rules again. A rejected answer returns the task to
// the inbox.
func (r taskResolver) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	n := r.n
	var body taskAnswer
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	item, err := n.Item(ctx, body.Item)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	stillHeld := err == nil && item.State == ItemHeld && item.Ask == ask.ID
	if d.Choice != acl.Approve && d.Choice != acl.ApproveAlways {
		changes := d.Changes
		if stillHeld {
			item.State, item.Note = ItemNew, noteNotSent
			changes = append(changes, item.change())
		}
		return n.store.Records().Apply(ctx, changes, d.Now)
	}
	if !stillHeld {
		return ErrAnswered
	}
	if err := ask.CheckBody(); err != nil {
		return n.logNotShown(ask, err)
	}
	if _, err := n.permit(ctx, Outgoing{To: item.Peer, Intent: body.Intent, Payload: body.Payload}, d.Now); err != nil {
		return err
	}
	changes := d.Changes
	if d.Choice == acl.ApproveAlways {
		changes = append(changes, n.recipients.Change(ask.Subject, acl.Approved, d.Now))
	}
	_, err = n.deliverAnswer(ctx, item, body.Payload, changes)
	return err
}

var _ acl.Resolver = taskResolver{}
