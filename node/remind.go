package node

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// noteUnanswered is the note on an item whose agent ignored a reminder.
const noteUnanswered = "your agent was woken twice and did not answer"

// remind wakes each agent that has not sent a promised answer within RemindAfter. If the agent ignored an earlier
// reminder, remind notifies the owner instead (AM-73).
func (n *Node) remind(ctx context.Context, now time.Time) error {
	if n.cfg.RemindAfter < 0 {
		return nil
	}
	for item, err := range n.allItems(ctx, termWoken) {
		if err != nil {
			return err
		}
		if now.Sub(item.Woken) < n.cfg.RemindAfter {
			continue
		}
		switch err := n.remindItem(ctx, item, now); {
		case errors.Is(err, wire.ErrUnavailable): // too many hooks are running: the next call tries again
			return nil
		case err != nil && !isConflict(err):
			return err
		}
	}
	return nil
}

// remindItem wakes the agent of one item again, or notifies the owner if the agent was reminded before.
func (n *Node) remindItem(ctx context.Context, item Item, now time.Time) error {
	thread, err := n.book.Load(ctx, item.key(), now)
	if err != nil {
		return err
	}
	standing, err := n.rules.Standing(ctx, item.subject(), now)
	if err != nil {
		return err
	}
	route := n.route(item.Intent)
	switch {
	// The reminder has lost its purpose, or its hook.
	case !thread.IsOpen() || route.Handler == nil || standing == acl.Blocked:
		item.Woken = time.Time{}
		return n.storeItem(ctx, item, nil)
	case !item.Reminded.IsZero():
		item.Woken, item.Note = time.Time{}, noteUnanswered
		notice := n.notice("unanswered", item.Peer, item.PeerName, item.key(), now)
		return n.storeItem(ctx, item, []store.Change{n.notices.Change(notice)})
	}
	done, err := n.runs.Reserve()
	if err != nil {
		return err
	}
	item.Reminded = now
	return n.runAgain(ctx, item, route, nil, done)
}
