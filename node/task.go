package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// kindTask is the kind of an item that a bridge added. Such an item is in no conversation; the bridge takes the answer.
const kindTask = "task"

// aboutTerm returns the index term of the items that still wait for an answer and have the given About, see
// [bridge.Task].
func aboutTerm(about string) string { return "about:" + about }

// updateTask updates the open items about the subject of t. t.Turn is what is to be done next about the subject, or "".
// An item with another Turn ends. If t has a Turn and no item with that Turn is open, updateTask adds one. t.Taken means
// that the owner has agreed to do the task, t.Done that the owner did it elsewhere.
func (n *Node) updateTask(ctx context.Context, u *conversations.Unit, t bridge.Task) error {
	isOpen := false
	for item, err := range n.allItems(ctx, aboutTerm(t.About)) {
		if err != nil {
			return err
		}
		held := item.State == owner.ItemHeld
		switch {
		case item.Turn != t.Turn:
			item.State = owner.ItemWithdrawn
			if t.Turn == "" && t.Done {
				item.State = owner.ItemAnswered
			}
		case t.Taken && item.State == owner.ItemNew:
			isOpen, item.State = true, owner.ItemRead
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
		ID: newItemID(now), State: owner.ItemNew, Kind: kindTask, About: t.About, Turn: t.Turn, Peer: t.Peer, PeerName: t.Name,
		Intent: t.Intent, Payload: signing.Canonical(t.Payload, signing.JCS), Verified: t.Proof, ActionKnown: true,
		At: now, Digest: hexOf(signing.Digest(t.Payload)), Expires: now.Add(n.cfg.Retention),
	}}
	if t.Taken {
		item.State = owner.ItemRead
	}
	return item
}

// answerTask passes an answer to the bridge of the task, or asks the owner first if the outbound rules require it.
func (o OwnerAPI) answerTask(ctx context.Context, item Item, m owner.NewReply) (owner.Sent, error) {
	n := o.n
	switch {
	case m.Seal == owner.Sealed:
		return owner.Sent{}, owner.Fault(http.StatusBadRequest, "the answer to a task of a bridge cannot be sealed", "")
	case m.Payload.Kind() != wire.Object:
		return owner.Sent{}, owner.Fault(http.StatusBadRequest, "payload must be a JSON object", "")
	case item.State == owner.ItemHeld:
		return owner.Sent{}, owner.Fault(http.StatusConflict, "an answer to this task already waits for the owner", "agentmesh approvals show "+item.Ask)
	}
	out := Outgoing{To: item.Peer, Intent: item.Intent, Payload: m.Payload, Via: owner.Author(m.By)}
	p, err := n.permitJudged(ctx, out)
	if err != nil {
		return owner.Sent{}, err
	}
	if p.NeedsOwner {
		return n.askTaskAnswer(ctx, item, out, p)
	}
	result, err := n.deliverAnswer(ctx, item, m.Payload)
	if err != nil {
		return owner.Sent{}, err
	}
	n.countSent(out, p)
	return owner.Sent{State: owner.SendDelivered, ReplyTree: result}, nil
}

// deliverAnswer gives an answer to the bridge of a task. The bridge stores the given changes in the same unit as the
// answer. If two callers answer the same task at the same time, only one succeeds.
func (n *Node) deliverAnswer(ctx context.Context, item Item, payload wire.Value, changes ...store.Change) (wire.Value, error) {
	kind, _, _ := strings.Cut(item.About, "/")
	connected, _ := n.bridges.find(kind)
	a, ok := connected.service.(bridge.Answerer)
	if !ok {
		return wire.Value{}, owner.Fault(http.StatusConflict, "no bridge for "+kind+" runs here any more", "mark it as read: agentmesh inbox ack "+item.ID)
	}
	for {
		if !item.State.IsUnanswered() {
			return wire.Value{}, ErrAnswered
		}
		result, err := a.Answer(ctx, bridge.Answer{
			About: item.About, Turn: item.Turn, Payload: payload,
			TaskChanges: func(final bool) []store.Change {
				changed := item
				changed.State = owner.ItemRead
				if final {
					changed.State = owner.ItemAnswered
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

// taskAnswer is the body of a question of the kind owner.AskTask.
type taskAnswer struct {
	Item    string          `json:"item"`  // the task in the inbox
	About   string          `json:"about"` // what the task is about, such as "mess/2026-11-22-001"
	To      wire.AgentID    `json:"to"`
	Name    string          `json:"name,omitempty"` // untrusted text
	Intent  wire.Intent     `json:"intent"`
	Asked   json.RawMessage `json:"asked"`   // the payload of the task; untrusted text
	Payload wire.Value      `json:"payload"` // the answer
}

// askTaskAnswer asks the owner to approve the answer to a task (AM-50). The task is held until the owner decides.
func (n *Node) askTaskAnswer(ctx context.Context, item Item, out Outgoing, p rules.Permission) (owner.Sent, error) {
	ask, changes, err := n.openOwnAsk(p, out, item.PeerName,
		acl.Ask{Kind: owner.AskTask, About: item.About, Title: "answer to " + item.About, Created: time.Now()},
		taskAnswer{item.ID, item.About, item.Peer, item.PeerName, item.Intent, item.Payload, out.Payload})
	if err != nil {
		return owner.Sent{}, err
	}
	item.hold(ask)
	err = n.storeItem(ctx, item, changes...)
	switch {
	case isConflict(err):
		return owner.Sent{}, ErrAnswered
	case errors.Is(err, store.ErrQuota):
		return owner.Sent{}, ErrAsksFull
	case err != nil:
		return owner.Sent{}, err
	}
	return owner.Sent{State: owner.SendHeld, Ask: ask.ID, Hint: "it waits for the owner: agentmesh approvals show " + ask.ID}, nil
}

// resolve checks the outbound rules again and delivers an approved answer. A rejected answer returns the task to the
// inbox.
func (q taskAnswer) resolve(ctx context.Context, n *Node, ask acl.Ask, d acl.Decision) error {
	item, err := n.Item(ctx, q.Item)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	stillHeld := err == nil && item.State == owner.ItemHeld && item.Ask == ask.ID
	if d.Choice != acl.Approve && d.Choice != acl.ApproveAlways {
		changes := d.Changes
		if stillHeld {
			item.State, item.Note = owner.ItemNew, noteNotSent
			changes = append(changes, item.change())
		}
		return n.store.Records().Apply(ctx, changes, d.Now)
	}
	if !stillHeld {
		return ErrAnswered
	}
	if err := ask.CheckBody(); err != nil {
		return n.refuseNotShown(ask, err)
	}
	if _, err := n.permit(ctx, Outgoing{To: item.Peer, Intent: q.Intent, Payload: q.Payload}, d.Now); err != nil {
		return err
	}
	changes := d.Changes
	if d.Choice == acl.ApproveAlways {
		changes = append(changes, n.recipients.Change(ask.Subject, acl.Approved, d.Now))
	}
	_, err = n.deliverAnswer(ctx, item, q.Payload, changes...)
	return err
}
