package node

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
)

func (n *Node) viewAgreement(ctx context.Context, conv conversations.Conversation, now time.Time) (*owner.Agreement, error) {
	a, err := n.agreement(ctx, conv, now)
	if err != nil || a == nil {
		return nil, err
	}
	v := &owner.Agreement{Agreement: *a, Standing: owner.StandingAgreed}
	switch {
	case a.Cancelled != nil:
		v.Standing = owner.StandingCancelled
	case conv.State == conversations.Failed:
		v.Standing = owner.StandingFailed
	}
	return v, nil
}
