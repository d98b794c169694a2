package node

import (
	"context"
	"net/http"
	"slices"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
)

// cancelHeld lets the sender cancel its own held messages (AM-36), and the event that it cancels (AM-87). The
// cancellation is never held. Questions about messages of ours are not the sender's to cancel.
func (a *acceptance) cancelHeld(ctx context.Context) (bridge.Outcome, bool, error) {
	action := a.in.Payload.GetStr("action")
	if action != "withdraw" && action != "cancel" || a.unit.Conversation().Holds(a.now) == 0 {
		return bridge.Outcome{}, false, nil
	}
	freed, err := a.n.withdrawAsks(ctx, a.unit, func(ask acl.Ask) bool { return ask.Kind == askMessage })
	if err != nil || len(freed) == 0 {
		return bridge.Outcome{}, false, err
	}
	if err := a.recordMessage(ctx, conversations.Received); err != nil {
		return bridge.Outcome{}, false, err
	}
	for _, ask := range freed {
		if err := a.unit.Record(ctx, conversations.Event{Kind: conversations.HoldEnded, At: a.now, Until: ask.Expires}); err != nil {
			return bridge.Outcome{}, false, err
		}
	}
	out, err := a.answer(ctx, http.StatusOK, receiptPayload())
	return out, true, err
}

// withdrawAsks withdraws the pending questions of the unit's conversation that which selects, and the held items that
// they are about. It returns the withdrawn questions.
func (n *Node) withdrawAsks(ctx context.Context, u *conversations.Unit, which func(acl.Ask) bool) (gone []acl.Ask, err error) {
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

// anyAsk selects every question.
func anyAsk(acl.Ask) bool { return true }
