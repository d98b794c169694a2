package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

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
	item := a.newItem(owner.ItemHeld)
	item.Pending = true
	ask, changes, err := a.openAsk(ctx, item, words)
	if errors.Is(err, store.ErrQuota) {
		return bridge.Outcome{}, wire.ErrHoldsFull.Because(err)
	}
	if err != nil {
		return bridge.Outcome{}, err
	}
	item.hold(ask)
	a.n.countBound(a.unit, ask)
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
	return acl.Ask{
		ID: acl.NewAskID(a.now), Kind: owner.AskMessage, Subject: item.subject(), Conv: a.key,
		Title: fmt.Sprintf("%s from %s", item.Intent, bridge.Party("", item.Address, string(item.Peer))), Body: body, Hash: item.Digest, Size: len(item.Payload),
		Choices: rules.Choices(words.Hold, item.Verified),
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

const rejectBatch = 20 // questions decided at once

// rejectStrangers rejects every waiting sender who is unknown to the owner, and remembers each rejection (AM-35).
// It decides several questions at once, so that they share disk writes. If a question cannot be decided, it stays
// as it was, and the next ones are still tried; if the questions cannot be listed, the loop ends. rejectStrangers
// returns the number of rejections. The argument by is the command or page that the owner used.
func rejectStrangers(ctx context.Context, queue *acl.Asks, rules *acl.Rules, by string) (rejected int, err error) {
	began := time.Now()
	var rejections atomic.Int64
	for after := ""; ; {
		asks, next, listErr := queue.List(ctx, acl.AskFilter{State: acl.AskPending}, after, rejectBatch, began)
		if listErr != nil {
			return int(rejections.Load()), errors.Join(err, listErr)
		}
		var group errgroup.Group
		for _, ask := range asks {
			if ask.Created.After(began) { // the loop might never end if it took new questions
				next = ""
				break
			}
			group.Go(func() error { return rejectStranger(ctx, queue, rules, ask, by, &rejections) })
		}
		err = errors.Join(err, group.Wait())
		if after = next; after == "" {
			return int(rejections.Load()), err
		}
	}
}

// rejectStranger rejects the sender of a question if the owner does not know the sender, and counts the rejection.
func rejectStranger(ctx context.Context, queue *acl.Asks, rules *acl.Rules, ask acl.Ask, by string, rejections *atomic.Int64) error {
	if !isAboutSender(ask) {
		return nil
	}
	standing, err := rules.Standing(ctx, ask.Subject, time.Now())
	if err != nil || standing != acl.Unknown {
		return err
	}
	_, err = queue.Decide(ctx, ask.ID, ask.Hash, acl.Reject, by, time.Now())
	switch {
	case errors.Is(err, acl.ErrAskGone), errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("reject %s: %w", ask.ID, err)
	}
	rejections.Add(1)
	return nil
}

// isAboutSender reports whether the question asks if a sender may write at all.
func isAboutSender(ask acl.Ask) bool {
	var held owner.HeldBody
	return ask.Kind == owner.AskMessage && json.Unmarshal(ask.Body, &held) == nil && held.Hold == "sender"
}
