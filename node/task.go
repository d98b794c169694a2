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

// kindTask is an item that a bridge laid into the inbox. It is in no conversation: its bridge takes the answer.
const kindTask = "task"

// aboutTerm finds the items that can still be answered about a matter.
func aboutTerm(about string) string { return "about:" + about }

// lay adds what becomes of the items about a matter, and a new one if none stands.
func (n *Node) lay(ctx context.Context, u *conversations.Unit, t bridge.Task) error {
	page, err := n.store.Records().List(ctx, nsInbox, aboutTerm(t.About), "", 100, u.Now)
	if err != nil {
		return err
	}
	stands := false
	for _, rec := range page.Records {
		item, err := decodeItem(rec)
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
			stands, item.State = true, ItemRead
		default:
			stands = true
			continue
		}
		u.Add(item.change())
		if held { // an answer to it waits for the owner
			stale, err := n.asks.WithdrawAbout(ctx, t.About, func(a acl.Ask) bool { return a.ID == item.Ask }, u.Now)
			if err != nil {
				return err
			}
			u.Add(stale...)
		}
	}
	if t.Turn != "" && !stands {
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

// answerTask hands the answer to a task to its bridge, or asks the owner first where the rules for what leaves say so.
func (n *Node) answerTask(ctx context.Context, item Item, payload wire.Value) (Sent, error) {
	if payload.Kind() != wire.Object {
		return Sent{}, owner.Fault(http.StatusBadRequest, "payload must be a JSON object", "")
	}
	if item.State == ItemHeld {
		return Sent{}, owner.Fault(http.StatusConflict, "an answer to it waits for the owner", "agentmesh approvals show "+item.Ask)
	}
	out := Outgoing{To: item.Peer, Intent: item.Intent, Payload: payload, Via: "owner"}
	p, err := n.permit(ctx, out, time.Now())
	if err != nil {
		return Sent{}, err
	}
	if p.asks {
		return n.askTaskAnswer(ctx, item, out, p)
	}
	result, err := n.deliverAnswer(ctx, item, payload, nil)
	if err != nil {
		return Sent{}, err
	}
	n.countSent(out, p)
	return Sent{State: SendDelivered, ReplyTree: result}, nil
}

// deliverAnswer hands an answer to the bridge of a task, in one unit with changes. Of two that answer one task, one does.
func (n *Node) deliverAnswer(ctx context.Context, item Item, payload wire.Value, changes []store.Change) (wire.Value, error) {
	kind, _, _ := strings.Cut(item.About, "/")
	served, _ := n.bridges.of(kind)
	a, ok := served.service.(bridge.Answerer)
	if !ok {
		return wire.Value{}, owner.Fault(http.StatusConflict, "nothing here serves "+kind+" any more", "mark it as read: agentmesh inbox ack "+item.ID)
	}
	for {
		if err := item.answerable(); err != nil {
			return wire.Value{}, err
		}
		result, err := a.Answer(ctx, bridge.Answer{
			About: item.About, Turn: item.Turn, Payload: payload,
			Ends: func(over bool) []store.Change {
				after := item
				if after.State = ItemRead; over {
					after.State = ItemAnswered
				}
				return append(slices.Clone(changes), after.change())
			},
		})
		if err == nil {
			return result, nil
		}
		now, again := n.Item(ctx, item.ID)
		if again != nil || now.rev == item.rev {
			return wire.Value{}, err
		}
		item = now // somebody was faster with it: what they did says whether there is still something to answer
	}
}
