package node

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

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
