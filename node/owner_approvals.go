package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// ListApprovals implements [owner.Approvals].
func (o OwnerAPI) ListApprovals(ctx context.Context, q owner.Query) (owner.List[owner.Approval], error) {
	if err := q.CheckAfter("ask_", "a question"); err != nil {
		return owner.List[owner.Approval]{}, err
	}
	asks, next, err := o.n.asks.List(ctx, acl.AskFilter{State: acl.AskState(q.State)}, q.After, q.Limit, time.Now())
	views := make([]owner.Approval, len(asks))
	for i, ask := range asks {
		if views[i], err = viewAsk(ctx, o.n.asks, ask); err != nil {
			break
		}
	}
	return owner.Page(views, next), err
}

// FindApproval implements [owner.Approvals].
func (o OwnerAPI) FindApproval(ctx context.Context, id string) (owner.Approval, error) {
	ask, err := o.findAsk(ctx, id)
	if err != nil {
		return owner.Approval{}, err
	}
	return viewAsk(ctx, o.n.asks, ask)
}

// findAsk returns the question with this id, or with this unique prefix of an id. If that question waits behind another
// one, findAsk returns the other one.
func (o OwnerAPI) findAsk(ctx context.Context, id string) (acl.Ask, error) {
	ask, err := o.n.asks.Get(ctx, id, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		var next []acl.Ask
		next, _, err = o.n.asks.List(ctx, acl.AskFilter{IncludeBehind: true}, id, 2, time.Now()) // two show whether the prefix is unique
		if err == nil {
			ask, err = uniqueMatch(next, func(a acl.Ask) string { return a.ID }, id)
		}
	}
	if err == nil && ask.Behind != "" {
		return o.n.asks.Get(ctx, ask.Behind, time.Now())
	}
	return ask, err
}

// Decide implements [owner.Approvals].
func (o OwnerAPI) Decide(ctx context.Context, id string, d owner.Decision, wait time.Duration) (owner.Decided, error) {
	ask, err := o.findAsk(ctx, id)
	if err != nil {
		return owner.Decided{}, err
	}
	released, end := o.n.expectRelease(ask.ID)
	defer end()
	answer := o.n.expectAnswer()
	defer answer.stop()
	if err := owner.CheckAnswer(ask.Kind, d.Text); err != nil {
		return owner.Decided{}, err
	}
	ask, err = o.n.asks.Answer(ctx, ask.ID, d.Hash, d.Choice, d.Text, d.By, time.Now())
	decided := owner.Decided{Ask: ask}
	if err != nil {
		return decided, err
	}
	select {
	case p := <-released:
		sent := p.await(ctx, wait)
		if wait > 0 && p.out.Address != "" && !p.out.isClose() { // a foreign peer answers in a separate message
			sent = answer.awaitAnswer(ctx, p.out.key(), sent, wait)
		}
		decided.Sent = &sent
	default: // the question was not about a message to send, or it was not approved
		if ask.Kind == owner.AskTask && ask.State == acl.AskApproved {
			decided.Sent = &Sent{State: SendDelivered}
		}
	}
	return decided, nil
}

// RejectStrangers implements [owner.Approvals].
func (o OwnerAPI) RejectStrangers(ctx context.Context, by string) (int, error) {
	rejected, err := rejectStrangers(ctx, o.n.asks, o.n.rules, by)
	if err != nil {
		o.n.log.Warn("reject strangers", "rejected", rejected, "err", err)
		return rejected, owner.Fault(http.StatusConflict, fmt.Sprintf("%d senders were rejected, but some could not be", rejected), "see agentmesh approvals list, and try again")
	}
	return rejected, nil
}
