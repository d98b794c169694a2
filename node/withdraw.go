package node

import (
	"context"
	"net/http"
	"slices"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
)

// takeBack lets the sender cancel what it sent and what waits for the owner (AM-36), and with that the event which it
// cancels (AM-87). It is never held itself. What the owner is asked about messages of ours is not the sender's to take back.
func (a *acceptance) takeBack(ctx context.Context) (bridge.Outcome, bool, error) {
	action := a.in.Payload.GetStr("action")
	if action != "withdraw" && action != "cancel" || a.unit.Conversation().Holds(a.now) == 0 {
		return bridge.Outcome{}, false, nil
	}
	freed, err := a.n.withdraw(ctx, a.unit, func(ask acl.Ask) bool { return ask.Kind == askMessage })
	if err != nil || len(freed) == 0 {
		return bridge.Outcome{}, false, err
	}
	if err := a.received(ctx, conversations.Received); err != nil {
		return bridge.Outcome{}, false, err
	}
	for _, ask := range freed {
		if err := a.unit.Record(ctx, conversations.Event{Kind: conversations.HoldEnded, At: a.now, Until: ask.Expires}); err != nil {
			return bridge.Outcome{}, false, err
		}
	}
	out, err := a.answer(ctx, http.StatusOK, received())
	return out, true, err
}

// withdraw takes back those pending questions of the unit's conversation that which names, and the held items that they
// are about. It returns the questions.
func (n *Node) withdraw(ctx context.Context, u *conversations.Unit, which func(acl.Ask) bool) (gone []acl.Ask, err error) {
	key := u.Conversation().Key
	changes, err := n.asks.Withdraw(ctx, key, func(ask acl.Ask) bool {
		named := which(ask)
		if named {
			gone = append(gone, ask)
		}
		return named
	}, u.Now)
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	held, err := n.itemsOf(ctx, key, ItemHeld, ItemInterrupted)
	if err != nil {
		return nil, err
	}
	for _, item := range held {
		if slices.ContainsFunc(gone, func(ask acl.Ask) bool { return ask.ID == item.Ask }) {
			item.State = ItemWithdrawn
			changes = append(changes, item.change())
		}
	}
	u.Add(changes...)
	return gone, nil
}

// all names every question.
func all(acl.Ask) bool { return true }
