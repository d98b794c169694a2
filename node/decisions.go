package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// ListApprovals implements [owner.Approvals].
func (o OwnerAPI) ListApprovals(ctx context.Context, q owner.Query) (owner.List[owner.Approval], error) {
	if err := q.CheckAfter("ask_", "a question"); err != nil {
		return owner.List[owner.Approval]{}, err
	}
	asks, next, err := o.n.asks.List(ctx, acl.AskFilter{State: acl.AskState(q.State), Newest: q.Newest}, q.After, q.Limit, time.Now())
	views := make([]owner.Approval, len(asks))
	for i, ask := range asks {
		if views[i], err = owner.NewApproval(ctx, o.n.asks, ask); err != nil {
			break
		}
	}
	return owner.Page(views, next), err
}

// FindApproval implements [owner.Approvals].
func (o OwnerAPI) FindApproval(ctx context.Context, id string) (owner.Approval, error) {
	ask, err := o.findAsk(ctx, id)
	if err != nil {
		return owner.Approval{}, err
	}
	return owner.NewApproval(ctx, o.n.asks, ask)
}

// findAsk returns the question with this id, or with this unique prefix of an id. If that question waits behind another
// one, findAsk returns the other one.
func (o OwnerAPI) findAsk(ctx context.Context, id string) (acl.Ask, error) {
	ask, err := o.n.asks.Get(ctx, id, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		var next []acl.Ask
		next, _, err = o.n.asks.List(ctx, acl.AskFilter{IncludeBehind: true}, id, 2, time.Now()) // two show whether the prefix is unique
		if err == nil {
			ask, err = uniqueMatch(next, func(a acl.Ask) string { return a.ID }, id)
		}
	}
	if err == nil && ask.Behind != "" {
		return o.n.asks.Get(ctx, ask.Behind, time.Now())
	}
	return ask, err
}

// Decide implements [owner.Approvals].
func (o OwnerAPI) Decide(ctx context.Context, id string, d owner.Decision, wait time.Duration) (owner.Decided, error) {
	ask, err := o.findAsk(ctx, id)
	if err != nil {
		return owner.Decided{}, err
	}
	released, end := o.n.expectRelease(ask.ID)
	defer end()
	answer := o.n.expectAnswer()
	defer answer.stop()
	if err := owner.CheckAnswer(ask.Kind, d.Text); err != nil {
		return owner.Decided{}, err
	}
	ask, err = o.n.asks.Answer(ctx, ask.ID, d.Hash, d.Choice, d.Text, d.By, time.Now())
	decided := owner.Decided{Ask: ask}
	if err != nil {
		return decided, err
	}
	select {
	case p := <-released:
		sent := p.await(ctx, wait)
		if wait > 0 && p.out.Address != "" && !p.out.isClose() { // a foreign peer answers in a separate message
			sent = answer.awaitAnswer(ctx, p.out.key(), sent, wait)
		}
		decided.Sent = &sent
	default: // the question was not about a message to send, or it was not approved
		if ask.Kind == owner.AskTask && ask.State == acl.AskApproved {
			decided.Sent = &owner.Sent{State: owner.SendDelivered}
		}
	}
	return decided, nil
}

// RejectStrangers implements [owner.Approvals].
func (o OwnerAPI) RejectStrangers(ctx context.Context, by string) (int, error) {
	rejected, err := rejectStrangers(ctx, o.n.asks, o.n.rules, by)
	if err != nil {
		o.n.log.Warn("some strangers not rejected", "rejected", rejected, "err", err)
		return rejected, owner.Fault(http.StatusConflict, fmt.Sprintf("%d senders were rejected, but some could not be", rejected), "see agentmesh approvals list, and try again")
	}
	return rejected, nil
}

// workDecision carries out one decision about several messages, in their order. Each message waits until the hook that
// handles the previous one is done, in whichever process it runs. ask is the first question.
func (n *Node) workDecision(ctx context.Context, ask acl.Ask, settle []store.Change) (work.Later, error) {
	tail, err := n.asks.Tail(ctx, ask, time.Now())
	if err != nil {
		return work.Later{}, err
	}
	busy, err := n.resolveReady(ctx, append([]acl.Ask{ask}, tail...))
	if busy != "" || err != nil {
		return work.Later{Gate: busy, Pause: time.Minute}, err
	}
	return work.Later{}, n.store.Records().Apply(ctx, settle, time.Now())
}

// resolveReady carries out a decision until an error occurs or it must wait for the hook of a message. busy is the id of
// that message in the inbox.
func (n *Node) resolveReady(ctx context.Context, asks []acl.Ask) (busy string, err error) {
	for i, ask := range asks {
		busy, err := n.resolveQueuedAsk(ctx, ask)
		if err != nil || busy != "" && i < len(asks)-1 { // the next message waits for the hook
			return busy, err
		}
	}
	return "", nil
}

// resolveQueuedAsk carries out the decision about one message, unless that was done before. If a hook handles the message
// now, or will as soon as it can, busy is the id of the message in the inbox. After an error, try again.
func (n *Node) resolveQueuedAsk(ctx context.Context, ask acl.Ask) (busy string, err error) {
	v, err := n.newHeldDecision(ask, acl.Decision{Choice: ask.Choice, By: ask.By})
	if err != nil {
		n.log.Error("decision cannot be carried out", "ask", ask.ID, "err", err)
		return "", nil
	}
	var item Item
	err = n.book.Insist(ctx, ask.Conv, func(u *conversations.Unit) (err error) {
		item, err = n.Item(ctx, v.held.Item)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && (item.State != owner.ItemHeld || item.Ask != ask.ID): // perhaps its answer waits now
			return nil
		case err != nil:
			return err
		}
		v.d.Now = u.Now
		return v.carryOut(ctx, u)
	})
	if refusal, refused := errors.AsType[*wire.Error](err); refused && !refusal.Retry {
		return "", n.dropQueuedItem(ctx, item, ask, refusal)
	}
	if err == nil {
		item, err = n.Item(ctx, v.held.Item)
	}
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if item.State == owner.ItemRunning || item.State == owner.ItemWaiting && !item.RetryAt.After(time.Now()) {
		return item.ID, err
	}
	return "", err
}

// dropQueuedItem settles a message that cannot be released as decided. The owner still gets an approved message whose
// conversation has ended. A message whose sender was refused meanwhile is not let in.
func (n *Node) dropQueuedItem(ctx context.Context, item Item, ask acl.Ask, refusal *wire.Error) error {
	item.State = owner.ItemRejected
	if errors.Is(refusal, wire.ErrConversationClosed) {
		item.State, item.Note = owner.ItemNew, "its conversation ended before it was released"
	}
	n.log.Info("a message is not released as decided", "item", item.ID, "refused", refusal.Row())
	return n.endHold(ctx, item, ask, time.Now())
}
