package node

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
)

// viewProposal returns the proposal that is not agreed yet, or nil without such a proposal.
func viewProposal(conv conversations.Conversation) *owner.Proposal {
	if conv.Proposal == nil || conv.Proposal.Accepted {
		return nil
	}
	v := &owner.Proposal{Terms: conv.Proposal.Terms, By: conv.Proposal.By}
	if a := conv.Accept; a != nil {
		v.Accepted = a.By
		if v.Location = a.Location; len(a.Times) == 1 && len(v.Times) > 1 {
			v.Selected = a.Times[0]
		}
	}
	return v
}

// viewAgreement returns what was agreed and what became of it, or nil if nothing was agreed.
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
