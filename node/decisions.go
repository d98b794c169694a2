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
)

// ListApprovals implements [owner.Approvals].
func (o OwnerAPI) ListApprovals(ctx context.Context, q owner.Query) (owner.List[owner.Approval], error) {
	if err := q.CheckAfter("ask_", "a question"); err != nil {
		return owner.List[owner.Approval]{}, err
	}
	asks, next, err := o.n.asks.List(ctx, acl.AskFilter{State: acl.AskState(q.State)}, q.After, q.Limit, time.Now())
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
			decided.Sent = &Sent{State: SendDelivered}
		}
	}
	return decided, nil
}

// RejectStrangers implements [owner.Approvals].
func (o OwnerAPI) RejectStrangers(ctx context.Context, by string) (int, error) {
	rejected, err := rejectStrangers(ctx, o.n.asks, o.n.rules, by)
	if err != nil {
		o.n.log.Warn("reject strangers", "rejected", rejected, "err", err)
		return rejected, owner.Fault(http.StatusConflict, fmt.Sprintf("%d senders were rejected, but some could not be", rejected), "see agentmesh approvals list, and try again")
	}
	return rejected, nil
}

// The bounds on the pause of resolveQueue, which doubles while nothing changes.
const (
	firstQueuePause = time.Second
	maxQueuePause   = 10 * time.Minute
)

// resolveQueue carries out one decision about several messages, in the order of asks. Each message waits until the hook
// that handles the previous one is done, in whichever process it runs. If resolveQueue must wait, for a hook or after
// an error, it continues in the background. The ended questions store the decision. If this process dies, another one
// carries out the rest with finishDecisions.
func (n *Node) resolveQueue(ctx context.Context, asks []acl.Ask) {
	rest, _ := n.resolveReady(ctx, asks)
	if len(rest) == 0 {
		return
	}
	n.runs.GoOnce(asks[0].ID, func(ctx context.Context) {
		for pause := firstQueuePause; ; pause = min(2*pause, maxQueuePause) {
			changed, before, busy := n.inboxChanged.Wait(), len(rest), false
			if rest, busy = n.resolveReady(context.WithoutCancel(ctx), rest); len(rest) == 0 {
				return
			}
			if busy || len(rest) < before {
				pause = firstQueuePause
			}
			if !busy { // an error stopped the decision, so a change of the inbox does not help
				changed = nil
			}
			select {
			case <-ctx.Done(): // the node is stopping
				return
			case <-changed:
			case <-time.After(pause):
			}
		}
	})
}

// resolveReady carries out a decision until an error occurs or it must wait for a hook, and returns the remaining asks.
// busy is set if a hook handles the first of them, or is about to.
func (n *Node) resolveReady(ctx context.Context, asks []acl.Ask) (rest []acl.Ask, busy bool) {
	for ; len(asks) > 0; asks = asks[1:] {
		busy, err := n.resolveQueuedAsk(ctx, asks[0])
		if err != nil {
			n.log.Warn("a decision cannot be carried out yet", "ask", asks[0].ID, "err", err)
		}
		if err != nil || busy && len(asks) > 1 { // the next message waits for the hook
			return asks, busy
		}
	}
	return nil, false
}

// resolveQueuedAsk carries out the decision about one message, unless that was done before. busy is set if a hook
// handles the message now, or will as soon as it can. After an error, try again.
func (n *Node) resolveQueuedAsk(ctx context.Context, ask acl.Ask) (busy bool, err error) {
	v, err := n.newHeldDecision(ask, acl.Decision{Choice: ask.Choice, By: ask.By})
	if err != nil {
		n.log.Error("carry out a decision", "ask", ask.ID, "err", err)
		return false, nil
	}
	var item Item
	err = n.book.Insist(ctx, ask.Conv, func(u *conversations.Unit) (err error) {
		item, err = n.Item(ctx, v.held.Item)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && (item.State != ItemHeld || item.Ask != ask.ID): // perhaps its answer waits now
			return nil
		case err != nil:
			return err
		}
		v.d.Now = u.Now
		return v.carryOut(ctx, u)
	})
	if refusal, refused := errors.AsType[*wire.Error](err); refused && !refusal.Retry {
		return false, n.dropQueuedItem(ctx, item, ask, refusal)
	}
	if err == nil {
		item, err = n.Item(ctx, v.held.Item)
	}
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return item.State == ItemRunning || item.State == ItemWaiting && !item.RetryAt.After(time.Now()), err
}

// dropQueuedItem settles a message that cannot be released as decided. The owner still gets an approved message whose
// conversation has ended. A message whose sender was refused meanwhile is not let in.
func (n *Node) dropQueuedItem(ctx context.Context, item Item, ask acl.Ask, refusal *wire.Error) error {
	item.State = ItemRejected
	if errors.Is(refusal, wire.ErrConversationClosed) {
		item.State, item.Note = ItemNew, "its conversation ended before it was released"
	}
	n.log.Info("a message is not released as decided", "item", item.ID, "refused", refusal.Row())
	return n.endHold(ctx, item, ask, time.Now())
}

// finishDecisions carries out the decisions that another process began but did not apply to every message that waited
// behind the decided question, perhaps because the process died.
func (n *Node) finishDecisions(ctx context.Context) error {
	continued := make(map[string]bool) // by the id of the question that was decided
	for item, err := range n.allItems(ctx, stateTerm(ItemHeld)) {
		if err != nil {
			return err
		}
		ask, err := n.asks.Get(ctx, item.Ask, time.Now())
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		decided := ask.State == acl.AskApproved || ask.State == acl.AskRejected
		if !decided || ask.Kind != owner.AskMessage || ask.Behind == "" || continued[ask.Behind] {
			continue
		}
		continued[ask.Behind] = true
		// Tail needs only these fields. Waiting tells it that questions wait behind this one.
		asks, err := n.asks.Tail(ctx, acl.Ask{ID: ask.Behind, State: ask.State, Waiting: 1}, time.Now())
		if err != nil {
			return err
		}
		if first, err := n.asks.Get(ctx, ask.Behind, time.Now()); err == nil { // unless its conversation was deleted
			asks = append([]acl.Ask{first}, asks...)
		}
		n.resolveQueue(context.WithoutCancel(ctx), asks)
	}
	return nil
}
