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
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// question is the body of a question that the node asks its owner. resolve carries out the owner's decision.
type question interface {
	resolve(ctx context.Context, n *Node, ask acl.Ask, d acl.Decision) error
}

// resolver decodes the body of a question and resolves it.
type resolver[Q question] struct{ n *Node }

// Resolve implements [acl.Resolver].
func (r resolver[Q]) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	var q Q
	if err := json.Unmarshal(ask.Body, &q); err != nil {
		return fmt.Errorf("decode question: %w", err)
	}
	return q.resolve(ctx, r.n, ask, d)
}

// hold stores the message, asks the owner about it, and answers with a signed pending_approval (AM-32, AM-33). If a
// question about the sender is already pending, the message waits behind it.
func (a *acceptance) hold(ctx context.Context) (bridge.Outcome, error) {
	words := rules.WordsFor(a.verdict, a.state, a.in)
	item := a.newItem(ItemHeld)
	item.Pending = true
	ask, changes, err := a.openAsk(ctx, item, words)
	if errors.Is(err, store.ErrQuota) {
		return bridge.Outcome{}, wire.ErrHoldsFull.Because(err)
	}
	if err != nil {
		return bridge.Outcome{}, err
	}
	item.Ask = ask.ID
	a.unit.Add(changes...)
	a.unit.Add(item.change())
	if err := a.recordMessage(ctx); err != nil {
		return bridge.Outcome{}, err
	}
	err = a.unit.Record(conversations.Event{Kind: conversations.HoldOpened, At: a.now, Until: ask.Expires, ID: a.in.MessageID})
	if err != nil {
		return bridge.Outcome{}, err
	}
	if ask.Behind == "" { // otherwise the owner already got a notice about the sender
		kind := "approval"
		if a.in.Intent == wire.Handoff && !a.verdict.Ask {
			kind = "handoff" // about a stranger, the owner gets the same notice for every intent
		}
		notice := a.n.notice(kind, a.in.Peer, a.in.Name, a.key, a.now)
		notice.Ask = ask.ID
		a.unit.Add(a.n.notices.Change(notice))
	}
	out, err := a.answer(ctx, http.StatusAccepted, pendingPayload(a.now, words.Sender))
	out.Held, out.Ask = err == nil, ask.ID
	if ask.Behind != "" && a.in.Native == nil {
		out.Reply = nil // a foreign peer is informed only about the first of its waiting messages
	}
	return out, err
}

// openAsk returns the question about the message, and the changes that store it.
func (a *acceptance) openAsk(ctx context.Context, item Item, words rules.Words) (acl.Ask, []store.Change, error) {
	ask := a.newAsk(item, words)
	ask.Expires = conversations.Sooner(ask.Expires, conversations.Sooner(a.in.Deadline, a.in.Purge))
	switch {
	case a.verdict.Ask:
		return a.n.asks.Join(ctx, ask, a.senderSlot())
	case a.verdict.Bound != "":
		return a.n.asks.Join(ctx, ask, item.boundSlot(a.verdict.Bound))
	}
	ask, changes := a.n.asks.Open(ask, acl.ConversationSlot(a.key, ask.ID))
	return ask, changes, nil
}

// newAsk returns a question about item; the caller must store it.
func (a *acceptance) newAsk(item Item, words rules.Words) acl.Ask {
	body := wire.MustMarshal(owner.HeldBody{
		Item: item.ID, Hold: words.Hold, From: item.Peer, Address: item.Address, Name: item.PeerName,
		Proof: item.Verified, Intent: item.Intent, Reason: words.Owner, Sealed: item.Sealed, Payload: item.Payload,
		Unproven: a.in.Unproven, Bound: string(a.verdict.Bound),
	})
	choices := []acl.Choice{acl.Approve, acl.ApproveConversation, acl.ApproveAlways, acl.Reject, acl.Block}
	if a.verdict.Bound != "" { // as many turns again, any number for a day, or the end
		choices = []acl.Choice{acl.Approve, acl.ApproveConversation, acl.Reject}
	}
	return acl.Ask{
		ID: acl.NewAskID(a.now), Kind: owner.AskMessage, Subject: item.subject(), Conv: a.key,
		Title: fmt.Sprintf("%s from %s", item.Intent, bridge.Party("", item.Address, string(item.Peer))), Body: body, Hash: item.Digest, Size: len(item.Payload),
		Choices: choices,
		Created: a.now, Expires: a.now.Add(a.n.cfg.HoldFor), Rule: words.Rule, Purge: a.in.Purge,
	}
}

// senderSlot returns the [acl.Slot] of the question about the sender. If the owner must accept the sender's key first,
// that key has a slot of its own: one decision must not cover messages that other keys signed under the same id.
func (a *acceptance) senderSlot() acl.Slot {
	holder := a.in.Principal
	if a.in.Unproven != nil {
		holder += " " + a.in.Unproven.Fingerprint
	}
	slot := acl.SenderSlot(holder)
	slot.Sources, slot.Proven = a.in.Sources, a.in.EndpointProven
	return slot
}

// pendingPayload returns a pending_approval. reason tells the sender what the answer waits for.
func pendingPayload(now time.Time, reason string) wire.Value {
	estimate := wire.FormatTime(now.Add(wire.OwnerDecisionTime))
	return actionOf(wire.ActionPending).With("estimated_response", wire.Text(estimate)).With("reason", wire.Text(reason))
}
