package node

import (
	"context"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/store"
)

// takeBack lets the sender cancel what it sent and what waits for the owner (AM-36), and with that the event which it
// cancels (AM-87). It is never held itself. What the owner is asked about messages of ours is not the sender's to take back.
func (a *acceptance) takeBack(ctx context.Context) (bridge.Outcome, bool, error) {
	action := a.in.Payload.GetStr("action")
	if action != "withdraw" && action != "cancel" || a.thread.Conversation().Holds(a.now) == 0 {
		return bridge.Outcome{}, false, nil
	}
	var ends []time.Time
	freed, items, err := a.n.withdraw(ctx, a.key, func(ask acl.Ask) bool {
		if ask.Kind == askMessage {
			ends = append(ends, ask.Expires)
		}
		return ask.Kind == askMessage
	}, a.now)
	if err != nil || len(freed) == 0 {
		return bridge.Outcome{}, false, err
	}
	uid := eventOf(a.in.Intent, a.in.Payload, a.thread.Conversation())
	cancelled, err := a.n.cancelledBy(ctx, uid, a.in.Payload, a.key, a.in.Peer, a.in.Name, a.now)
	if err != nil {
		return bridge.Outcome{}, false, err
	}
	if err := a.received(conversations.Received); err != nil {
		return bridge.Outcome{}, false, err
	}
	for _, end := range ends {
		if err := a.thread.Record(conversations.Event{Kind: conversations.HoldEnded, At: a.now, Until: end}); err != nil {
			return bridge.Outcome{}, false, err
		}
	}
	out, err := a.answer(ctx, http.StatusOK, received(), append(append(freed, items...), cancelled...))
	return out, true, err
}

// withdraw returns the changes that take back those pending questions of a conversation that which names, and the
// held items that they are about.
func (n *Node) withdraw(ctx context.Context, key store.ConvKey, which func(acl.Ask) bool, now time.Time) (asks, items []store.Change, err error) {
	taken := make(map[string]bool)
	asks, err = n.asks.Withdraw(ctx, key, func(ask acl.Ask) bool {
		taken[ask.ID] = which(ask)
		return taken[ask.ID]
	}, now)
	if err != nil || len(asks) == 0 {
		return nil, nil, err
	}
	held, err := n.itemsOf(ctx, key, ItemHeld, ItemInterrupted)
	if err != nil {
		return nil, nil, err
	}
	for _, item := range held {
		if taken[item.Ask] {
			item.State = ItemWithdrawn
			items = append(items, item.change())
		}
	}
	return asks, items, nil
}

// all names every question.
func all(acl.Ask) bool { return true }
