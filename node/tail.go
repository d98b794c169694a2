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

// The pauses before a message behind a decided one is tried again, because the store or the hooks had no room.
const (
	firstTailPause = time.Second
	lastTailPause  = 10 * time.Minute
)

// carryOutTail carries out a decision about the messages behind the first one, in their order. running is closed when
// the hook that has the message before them is done; nil: no hook has it. It returns early once a hook is at work. The
// decision is stored in the ended asks, so the next start takes up what a crash leaves undone.
func (n *Node) carryOutTail(ctx context.Context, tail []acl.Ask, running <-chan struct{}) {
	tail, running = n.carryOutNow(ctx, tail, running)
	if len(tail) == 0 {
		return
	}
	n.runs.mu.Lock()
	defer n.runs.mu.Unlock()
	if n.runs.stopping() {
		return
	}
	n.runs.group.Go(func() {
		for pause := firstTailPause; len(tail) > 0; pause = min(2*pause, lastTailPause) {
			again := time.After(pause)
			if running != nil {
				again, pause = nil, firstTailPause
			}
			select {
			case <-n.runs.stopped:
				return
			case <-running:
			case <-again:
			}
			if n.runs.stopping() { // which ends hooks, too
				return
			}
			tail, running = n.carryOutNow(ctx, tail, nil)
		}
	})
}

// carryOutNow carries out a decision about messages of tail until a hook has one or one fails, and returns the rest.
func (n *Node) carryOutNow(ctx context.Context, tail []acl.Ask, running <-chan struct{}) ([]acl.Ask, <-chan struct{}) {
	for len(tail) > 0 && running == nil {
		hook, err := n.carryOutBehind(ctx, tail[0])
		if err != nil {
			n.log.Warn("a decision waits", "ask", tail[0].ID, "err", err)
			break
		}
		tail, running = tail[1:], hook
	}
	return tail, running
}

// carryOutBehind carries out the decision about one message, unless that has happened. An error means: try again.
func (n *Node) carryOutBehind(ctx context.Context, ask acl.Ask) (running <-chan struct{}, err error) {
	v, err := n.verdict(ask, acl.Decision{Choice: ask.Choice, By: ask.By})
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
		return nil, n.dropBehind(ctx, item, refusal)
	}
	return v.running, err
}

// dropBehind ends the wait of a message that may no longer go on as decided. The owner still gets an approved one whose
// conversation has ended since; nothing of a sender that was refused since gets in.
func (n *Node) dropBehind(ctx context.Context, item Item, refusal *wire.Error) error {
	item.State = ItemRejected
	if errors.Is(refusal, wire.ErrConversationClosed) {
		item.State, item.Note = ItemNew, "its conversation ended before it was released"
	}
	n.log.Info("a message is not released as decided", "item", item.ID, "refused", refusal.Row())
	return n.changeItem(ctx, item, nil)
}

// findTails remembers the decisions that earlier processes left undone between the first message and the last.
func (n *Node) findTails(ctx context.Context) error {
	behind := make(map[string][]acl.Ask) // by the ask they were decided with
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
				behind[ask.Behind] = append(behind[ask.Behind], ask)
			}
		}
		if after = next; after == "" {
			break
		}
	}
	for _, tail := range behind {
		slices.SortFunc(tail, func(a, b acl.Ask) int { return a.Seq - b.Seq })
		n.tails = append(n.tails, tail)
	}
	return nil
}
