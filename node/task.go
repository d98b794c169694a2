package node

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// kindTask is the kind of an item that a bridge added. It is in no conversation: its bridge takes the answer.
const kindTask = "task"

// aboutTerm returns the term of the items about a matter that can still be answered.
func aboutTerm(about string) string { return "about:" + about }

// updateTask updates the items about the matter of t. If t has a turn and no item is open, it adds one.
func (n *Node) updateTask(ctx context.Context, u *conversations.Unit, t bridge.Task) error {
	isOpen := false
	for item, err := range n.allItems(ctx, aboutTerm(t.About)) {
		if err != nil {
			return err
		}
		held := item.State == ItemHeld
		switch {
		case item.Turn != t.Turn:
			item.State = ItemWithdrawn
			if t.Turn == "" && t.Done {
				item.State = ItemAnswered
			}
		case t.Taken && item.State == ItemNew:
			isOpen, item.State = true, ItemRead
		default:
			isOpen = true
			continue
		}
		u.Add(item.change())
		if held { // an answer to the item waits for the owner
			stale, err := n.asks.WithdrawAbout(ctx, t.About, func(a acl.Ask) bool { return a.ID == item.Ask }, u.Now)
			if err != nil {
				return err
			}
			u.Add(stale...)
		}
	}
	if t.Turn != "" && !isOpen {
		u.Add(n.newTask(t, u.Now).change())
	}
	return nil
}

func (n *Node) newTask(t bridge.Task, now time.Time) Item {
	item := Item{Item: owner.Item{
		ID: newItemID(now), State: ItemNew, Kind: kindTask, About: t.About, Turn: t.Turn, Peer: t.Peer, PeerName: t.Name,
		Intent: t.Intent, Payload: signing.Canonical(t.Payload, signing.JCS), Verified: t.Proof, ActionKnown: true,
		At: now, Digest: hexOf(signing.Digest(t.Payload)), Expires: now.Add(n.cfg.Retention),
	}}
	if t.Taken {
		item.State = ItemRead
	}
	return item
}

// answerTask gives the answer to a task to its bridge, or asks the owner first if the outbound rules require it.
func (n *Node) answerTask(ctx context.Context, item Item, payload wire.Value, via string) (Sent, error) {
	if payload.Kind() != wire.Object {
		return Sent{}, owner.Fault(http.StatusBadRequest, "payload must be a JSON object", "")
	}
	if item.State == ItemHeld {
		return Sent{}, owner.Fault(http.StatusConflict, "an answer to it waits for the owner", "agentmesh approvals show "+item.Ask)
	}
	out := Outgoing{To: item.Peer, Intent: item.Intent, Payload: payload, Via: via}
	p, err := n.permit(ctx, out, time.Now())
	if err != nil {
		return Sent{}, err
	}
	if p.needsOwner {
		return n.askTaskAnswer(ctx, item, out, p)
	}
	result, err := n.deliverAnswer(ctx, item, payload, nil)
	if err != nil {
		return Sent{}, err
	}
	n.countSent(out, p)
	return Sent{State: SendDelivered, ReplyTree: result}, nil
}

// deliverAnswer gives an answer to the bridge of a task, in one unit with changes. Of two answers, only one succeeds.
func (n *Node) deliverAnswer(ctx context.Context, item Item, payload wire.Value, changes []store.Change) (wire.Value, error) {
	kind, _, _ := strings.Cut(item.About, "/")
	served, _ := n.bridges.find(kind)
	a, ok := served.service.(bridge.Answerer)
	if !ok {
		return wire.Value{}, owner.Fault(http.StatusConflict, "nothing here serves "+kind+" any more", "mark it as read: agentmesh inbox ack "+item.ID)
	}
	for {
		if err := item.checkAnswerable(); err != nil {
			return wire.Value{}, err
		}
		result, err := a.Answer(ctx, bridge.Answer{
			About: item.About, Turn: item.Turn, Payload: payload,
			Ends: func(over bool) []store.Change {
				changed := item
				if changed.State = ItemRead; over {
					changed.State = ItemAnswered
				}
				return append(slices.Clone(changes), changed.change())
			},
		})
		if err == nil {
			return result, nil
		}
		current, getErr := n.Item(ctx, item.ID)
		if getErr != nil || current.rev == item.rev {
			return wire.Value{}, err
		}
		item = current // another caller changed the item first: check it again
	}
}
