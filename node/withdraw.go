package node

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
)

// cancelHeld withdraws the held messages that the sender cancels with this message (AM-36). Recording the message also
// cancels the agreed event that it names (AM-87). done is false if no held message was withdrawn; then this message
// itself may be held. A sender cannot cancel questions about messages of ours.
func (a *acceptance) cancelHeld(ctx context.Context) (out bridge.Outcome, done bool, err error) {
	action := a.in.Payload.GetStr("action")
	if action != "withdraw" && action != "cancel" || a.unit.Conversation().Holds(a.now) == 0 {
		return bridge.Outcome{}, false, nil
	}
	withdrawn, err := a.n.withdrawAsks(ctx, a.unit, func(ask acl.Ask) bool {
		return ask.Kind == owner.AskMessage && (a.in.Cancels == "" || a.in.Cancels == cmp.Or(ask.OwnHash, ask.Hash))
	})
	if err != nil || len(withdrawn) == 0 {
		return bridge.Outcome{}, false, err
	}
	if err := a.recordMessage(ctx, conversations.Received); err != nil {
		return bridge.Outcome{}, false, err
	}
	for _, ask := range withdrawn {
		if err := a.unit.Record(ctx, conversations.Event{Kind: conversations.HoldEnded, At: a.now, Until: ask.Expires}); err != nil {
			return bridge.Outcome{}, false, err
		}
	}
	out, err = a.answer(ctx, http.StatusOK, receiptPayload())
	return out, true, err
}

// withdrawAsks withdraws the pending questions of the unit's conversation for which isChosen returns true, or all if
// isChosen is nil, and the held items that they are about. It returns the withdrawn questions.
func (n *Node) withdrawAsks(ctx context.Context, u *conversations.Unit, isChosen func(acl.Ask) bool) (withdrawn []acl.Ask, err error) {
	key := u.Conversation().Key
	changes, err := n.asks.Withdraw(ctx, key, func(ask acl.Ask) (selected bool) {
		if selected = isChosen == nil || isChosen(ask); selected {
			withdrawn = append(withdrawn, ask)
		}
		return selected
	}, u.Now)
	if err != nil || len(withdrawn) == 0 {
		return nil, err
	}
	held, err := n.itemsOf(ctx, key, ItemHeld, ItemInterrupted)
	if err != nil {
		return nil, err
	}
	for _, item := range held {
		if slices.ContainsFunc(withdrawn, func(ask acl.Ask) bool { return ask.ID == item.Ask }) {
			item.State = ItemWithdrawn
			changes = append(changes, item.change())
		}
	}
	u.Add(changes...)
	return withdrawn, nil
}
