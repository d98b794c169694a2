package node

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const noteUnanswered = "your agent was woken twice and did not answer"

// remind wakes once more the agents that said they would answer later and have not, and after that tells the owner
// (AM-73).
func (n *Node) remind(ctx context.Context, now time.Time) error {
	if n.cfg.RemindAfter < 0 {
		return nil
	}
	for after := ""; ; {
		page, err := n.store.Records().List(ctx, nsInbox, termWoken, after, 50, now)
		if err != nil {
			return err
		}
		for _, r := range page.Records {
			item, err := decodeItem(r)
			if err != nil {
				return err
			}
			if now.Sub(item.Woken) < n.cfg.RemindAfter {
				continue
			}
			switch err := n.remindOf(ctx, item, now); {
			case errors.Is(err, wire.ErrUnavailable): // too many hooks at work: in a minute
				return nil
			case err != nil && !isConflict(err):
				return err
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// remindOf deals with one message: its agent is woken again, or, where it was, the owner is told.
func (n *Node) remindOf(ctx context.Context, item Item, now time.Time) error {
	thread, err := n.book.Load(ctx, item.key(), now)
	if err != nil {
		return err
	}
	route := n.route(item.Intent)
	over := thread.New() || thread.Conversation().At(now, n.book.IdleFor()) != conversations.Open
	switch {
	case over || route.Handler == nil: // nobody to remind, or nothing to answer any more
		item.Woken = time.Time{}
		return n.changeItem(ctx, item, nil)
	case !item.Reminded.IsZero():
		item.Woken, item.Note = time.Time{}, noteUnanswered
		notice := n.notice("unanswered", item.Peer, item.PeerName, item.key(), now)
		return n.changeItem(ctx, item, []store.Change{n.notices.Change(notice)})
	}
	done, err := n.runs.reserve()
	if err != nil {
		return err
	}
	item.Reminded = now
	return n.runAgain(ctx, item, route, nil, done)
}
