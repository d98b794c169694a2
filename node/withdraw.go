package node

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/store"
)

// withdrawHeld withdraws the held messages that the sender takes back with this message (AM-36). Recording the message
// also cancels the agreed event that it names (AM-87).
func (a *acceptance) withdrawHeld(ctx context.Context) (bridge.Outcome, error) {
	a.unit.Add(a.withdrawal...)
	for _, ask := range a.state.Withdrawn {
		if err := a.unit.Record(conversations.Event{Kind: conversations.HoldEnded, At: a.now, Until: ask.Expires}); err != nil {
			return bridge.Outcome{}, err
		}
	}
	return a.answer(ctx, http.StatusOK, receiptPayload())
}

// withdrawAsks withdraws the pending questions of the unit's conversation for which isChosen returns true, or all if
// isChosen is nil, and the held items that they are about. It returns the withdrawn questions.
func (n *Node) withdrawAsks(ctx context.Context, u *conversations.Unit, isChosen func(acl.Ask) bool) ([]acl.Ask, error) {
	withdrawn, changes, err := n.findWithdrawn(ctx, u.Conversation().Key, isChosen, u.Now)
	u.Add(changes...)
	return withdrawn, err
}

// findWithdrawn returns the questions that withdrawAsks withdraws, and the changes that do it.
func (n *Node) findWithdrawn(ctx context.Context, key store.ConvKey, isChosen func(acl.Ask) bool, now time.Time) (withdrawn []acl.Ask, changes []store.Change, err error) {
	changes, err = n.asks.Withdraw(ctx, key, func(ask acl.Ask) (selected bool) {
		if selected = isChosen == nil || isChosen(ask); selected {
			withdrawn = append(withdrawn, ask)
		}
		return selected
	}, now)
	if err != nil || len(withdrawn) == 0 {
		return nil, nil, err
	}
	held, err := n.itemsOf(ctx, key, ItemHeld, ItemInterrupted)
	if err != nil {
		return nil, nil, err
	}
	for _, item := range held {
		if slices.ContainsFunc(withdrawn, func(ask acl.Ask) bool { return ask.ID == item.Ask }) {
			item.State = ItemWithdrawn
			changes = append(changes, item.change())
		}
	}
	return withdrawn, changes, nil
}
