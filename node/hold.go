package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The kinds of questions a node asks its owner; bridges add their own.
const (
	askMessage     = "message"     // a message that came in and waits (AM-31)
	askOutgoing    = "outgoing"    // a message of ours that waits (AM-50)
	askTask        = "task"        // an answer of ours to a task that waits (AM-50)
	askInterrupted = "interrupted" // a hook that a crash interrupted (AM-75)
	askKeyChange   = "key-change"  // a peer's key is not the pinned one (AM-11)
)

// holdsFullFor is how long it is believed that there is no room for another stranger, after the store said so.
const holdsFullFor = time.Second

// Why a sender waits, as it is told. Fixed texts: they tell nothing about the owner.
const (
	reasonSender = "The owner of this agent approves new contacts."
	reasonIntent = "The owner of this agent decides on requests of this kind."
	reasonSlow   = "The agent is working on it."
)

// heldMessage is the body of an askMessage question.
type heldMessage struct {
	Item string `json:"item"`
	// Hold is "sender" where the question is whether this sender may write at all, "intent" where it is this message.
	Hold    string          `json:"hold"`
	From    wire.AgentID    `json:"from"`
	Address string          `json:"address,omitempty"`
	Name    string          `json:"name,omitempty"` // as the sender's card says it: untrusted
	Proof   string          `json:"verified"`
	Intent  wire.Intent     `json:"intent"`
	Reason  string          `json:"reason,omitempty"`
	Sealed  bool            `json:"sealed,omitempty"`
	Payload json.RawMessage `json:"payload"`
	// Unproven is the key that approval accepts as the sender's.
	Unproven *bridge.UnprovenKey `json:"unproven,omitempty"`
}

// mustHold is line 15: the owner decides first.
func (a *acceptance) mustHold() bool {
	if a.verdict == acl.HoldSender || a.in.Hold || a.passesOn() {
		return true
	}
	action, answers := a.in.Payload.GetStr("action"), a.thread.Conversation().WroteFirst
	return a.n.cfg.Policy.HoldIntent(a.in.Intent, action, a.route.Handler != nil, answers)
}

// passesOn says whether the handler would take what was sealed to this node to a foreign network, where others read it.
func (a *acceptance) passesOn() bool { return a.seal.sealed && a.route.Foreign }

// hold stores the message as a question to the owner and answers with a signed pending_approval (AM-32, AM-33).
func (a *acceptance) hold(ctx context.Context) (bridge.Outcome, error) {
	if a.verdict == acl.HoldSender && a.now.UnixNano() < a.n.holdsFull.Load() {
		return bridge.Outcome{}, wire.ErrHoldsFull // without a signature and a step, which a flood would cost
	}
	item := a.newItem(ItemHeld)
	item.Pending = true
	why := ""
	if a.passesOn() {
		why = "it came sealed, and " + a.route.Name + " would pass it on open to a foreign network"
	}
	ask, slot := a.question(item, "intent", why)
	ask.Rule = "hold=" + string(a.in.Intent)
	reason := reasonIntent
	if a.verdict == acl.HoldSender {
		ask, slot = a.question(item, "sender", why)
		ask.Rule = a.senderRule()
		reason = reasonSender
	}
	ask.Purge = a.in.Purge
	ask.Expires = conversations.Sooner(ask.Expires, conversations.Sooner(a.in.Deadline, a.in.Purge))
	if err := a.received(conversations.Received); err != nil {
		return bridge.Outcome{}, err
	}
	err := a.thread.Record(conversations.Event{Kind: conversations.HoldOpened, At: a.now, Until: ask.Expires})
	if err != nil {
		return bridge.Outcome{}, err
	}
	ask, changes := a.n.asks.Open(ask, slot)
	item.Ask = ask.ID
	kind := "approval"
	if a.in.Intent == wire.Handoff && a.verdict != acl.HoldSender {
		kind = "handoff" // a stranger is one that waits, whatever it asks for
	}
	notice := a.n.notice(kind, a.in.Peer, a.in.Name, a.key, a.now)
	records := append(changes, item.change(), a.n.notices.Change(notice))
	out, err := a.answer(ctx, http.StatusAccepted, pending(a.now, reason), records)
	out.Held, out.Ask = err == nil, ask.ID
	if errors.Is(err, store.ErrQuota) && a.verdict == acl.HoldSender {
		a.n.holdsFull.Store(a.now.Add(holdsFullFor).UnixNano())
	}
	if errors.Is(err, store.ErrQuota) || isConflict(err) && a.slotTaken(ctx, slot) {
		return bridge.Outcome{}, wire.ErrHoldsFull.Because(err)
	}
	return out, err
}

// slotTaken tells a conflict over the one hold of an unknown sender from one over the conversation's row, which
// only has to be decided anew.
func (a *acceptance) slotTaken(ctx context.Context, slot acl.Slot) bool {
	taken, err := a.n.asks.Taken(ctx, slot, a.now)
	return err == nil && taken
}

// question asks the owner about item. Holds of unknown senders share one quota, those of known ones have one in
// each conversation.
func (a *acceptance) question(item Item, hold, reason string) (acl.Ask, acl.Slot) {
	ask := acl.Ask{
		ID: acl.NewAskID(a.now), Kind: askMessage, Subject: item.acts(), Conv: a.key,
		Title: fmt.Sprintf("%s from %s", item.Intent, item.Peer),
		Hash:  item.Digest, Choices: []acl.Choice{acl.Approve, acl.ApproveAlways, acl.Reject, acl.Block},
		Created: a.now, Expires: a.now.Add(a.n.cfg.HoldFor),
	}
	body, err := json.Marshal(heldMessage{
		Item: item.ID, Hold: hold, From: item.Peer, Address: item.Address, Name: item.PeerName,
		Proof: item.Verified, Intent: item.Intent, Reason: reason, Sealed: item.Sealed, Payload: item.Payload,
		Unproven: a.in.Unproven,
	})
	if err != nil {
		panic(fmt.Sprintf("encode question: %v", err)) // only fields we filled
	}
	ask.Body = body
	if hold == "sender" {
		return ask, a.senderSlot()
	}
	return ask, acl.ConversationSlot(a.key, ask.ID)
}

// senderRule is why the owner decides on the sender.
func (a *acceptance) senderRule() string {
	if a.in.Unproven != nil {
		return RuleUnproven
	}
	return "access.mode=" + string(a.n.modeFor(a.in.Address))
}

// senderSlot is the place that the question about the sender takes. A key that the owner must accept first has a place of
// its own, so that nothing which another key signed under the same id is decided with it.
func (a *acceptance) senderSlot() acl.Slot {
	if a.in.Unproven != nil {
		return acl.SenderSlot(a.in.Principal + " " + a.in.Unproven.Fingerprint)
	}
	return acl.SenderSlot(a.in.Principal)
}

// pending is the payload of AM-32.
func pending(now time.Time, reason string) wire.Value {
	return wire.Obj(
		wire.Member{Key: "action", Value: wire.Text(wire.ActionPending)},
		wire.Member{Key: "estimated_response", Value: wire.Text(wire.FormatTime(now.Add(wire.OwnerDecides)))},
		wire.Member{Key: "reason", Value: wire.Text(reason)},
	)
}
