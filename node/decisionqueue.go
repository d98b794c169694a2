package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The shortest and the longest pause before a queued message is tried again, if the store failed or no hook was free.
const (
	firstQueuePause = time.Second
	maxQueuePause   = 10 * time.Minute
)

// resolveQueue carries out a decision about the messages that wait behind the first one, in their order. running is
// closed when the hook that handles the message before them is done; it is nil if no hook does. If resolveQueue must
// wait, for a hook or after an error, it continues in the background. The decision is stored in the ended questions, so
// after a crash the next start continues.
func (n *Node) resolveQueue(ctx context.Context, tail []acl.Ask, running <-chan struct{}) {
	tail, running = n.resolveReady(ctx, tail, running)
	if len(tail) == 0 {
		return
	}
	n.runs.Go(func(ctx context.Context) {
		for pause := firstQueuePause; len(tail) > 0; pause = min(2*pause, maxQueuePause) {
			again := time.After(pause)
			if running != nil {
				again, pause = nil, firstQueuePause
			}
			select {
			case <-ctx.Done():
				return
			case <-running:
			case <-again:
			}
			if ctx.Err() != nil { // the stop also ends the hooks
				return
			}
			tail, running = n.resolveReady(context.WithoutCancel(ctx), tail, nil)
		}
	})
}

// resolveReady carries out a decision until a hook handles a message or an error occurs, and returns the rest of tail.
func (n *Node) resolveReady(ctx context.Context, tail []acl.Ask, running <-chan struct{}) ([]acl.Ask, <-chan struct{}) {
	for len(tail) > 0 && running == nil {
		hook, err := n.resolveQueuedAsk(ctx, tail[0])
		if err != nil {
			n.log.Warn("a decision waits", "ask", tail[0].ID, "err", err)
			break
		}
		tail, running = tail[1:], hook
	}
	return tail, running
}

// resolveQueuedAsk carries out the decision about one message, unless that was done before. running is closed when the
// hook that the decision started is done; it is nil if the decision started none. After an error, the caller must try
// again.
func (n *Node) resolveQueuedAsk(ctx context.Context, ask acl.Ask) (running <-chan struct{}, err error) {
	v, err := n.newHeldDecision(ask, acl.Decision{Choice: ask.Choice, By: ask.By})
	if err != nil {
		n.log.Error("carry out a decision", "ask", ask.ID, "err", err)
		return nil, nil
	}
	var item Item
	err = n.book.Insist(ctx, ask.Conv, func(u *conversations.Unit) (err error) {
		item, err = n.Item(ctx, v.held.Item)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && item.State != ItemHeld:
			return nil
		case err != nil:
			return err
		}
		v.d.Now = u.Now
		return v.carryOut(ctx, u)
	})
	if refusal, refused := errors.AsType[*wire.Error](err); refused && !refusal.Retry {
		return nil, n.dropQueuedItem(ctx, item, refusal)
	}
	return v.running, err
}

// dropQueuedItem settles a message that can no longer be released as decided. If the conversation has ended,
// the owner still gets the approved message. If the sender was refused meanwhile, the message is not let in.
func (n *Node) dropQueuedItem(ctx context.Context, item Item, refusal *wire.Error) error {
	item.State = ItemRejected
	if errors.Is(refusal, wire.ErrConversationClosed) {
		item.State, item.Note = ItemNew, "its conversation ended before it was released"
	}
	n.log.Info("a message is not released as decided", "item", item.ID, "refused", refusal.Row())
	return n.storeItem(ctx, item, nil)
}

// finishDecisions continues the decisions that an earlier process carried out for their first message, but not for all
// messages behind it.
func (n *Node) finishDecisions(ctx context.Context) error {
	tails := make(map[string][]acl.Ask) // by the id of the question that was decided
	for after := ""; ; {
		items, next, err := n.Inbox(ctx, ItemHeld, after, 50)
		if err != nil {
			return err
		}
		for _, item := range items {
			ask, err := n.asks.Get(ctx, item.Ask, time.Now())
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if ask.Kind == askMessage && ask.Behind != "" && (ask.State == acl.AskApproved || ask.State == acl.AskRejected) {
				tails[ask.Behind] = append(tails[ask.Behind], ask)
			}
		}
		if after = next; after == "" {
			break
		}
	}
	for _, tail := range tails {
		slices.SortFunc(tail, func(a, b acl.Ask) int { return a.Seq - b.Seq })
		n.resolveQueue(context.WithoutCancel(ctx), tail, nil)
	}
	return nil
}
