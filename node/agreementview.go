package node

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
)

// ProposalView is a proposal that stands and is not agreed, as the owner sees it.
type ProposalView struct {
	conversations.Terms
	By       conversations.Side `json:"by"`
	Accepted conversations.Side `json:"accepted_by,omitempty"`   // by an accept that does not count yet
	Selected string             `json:"selected_time,omitempty"` // by that accept, if several times are offered
}

// Standing is what became of an agreement.
type Standing string

const (
	StandingAgreed    Standing = "agreed"
	StandingCancelled Standing = "cancelled"
	StandingFailed    Standing = "failed" // the conversation failed later: nobody knows what the other side makes of it
)

// AgreementView is what was agreed in a conversation, as the owner sees it. It holds only if it stands as agreed.
type AgreementView struct {
	conversations.Agreement
	Standing Standing `json:"standing"`
}

// viewProposal returns what is proposed and not agreed, nil if that is nothing.
func viewProposal(conv conversations.Conversation) *ProposalView {
	if conv.Proposal == nil || conv.Proposal.Accepted {
		return nil
	}
	v := &ProposalView{Terms: conv.Proposal.Terms, By: conv.Proposal.By}
	if a := conv.Accept; a != nil {
		v.Accepted = a.By
		if v.Location = a.Location; len(a.Times) == 1 && len(v.Times) > 1 {
			v.Selected = a.Times[0]
		}
	}
	return v
}

// viewAgreement returns what was agreed and what became of it, nil if nothing was agreed.
func (n *Node) viewAgreement(ctx context.Context, conv conversations.Conversation, now time.Time) (*AgreementView, error) {
	a, err := n.agreement(ctx, conv, now)
	if err != nil || a == nil {
		return nil, err
	}
	v := &AgreementView{Agreement: *a, Standing: StandingAgreed}
	switch {
	case a.Cancelled != nil:
		v.Standing = StandingCancelled
	case conv.State == conversations.Failed:
		v.Standing = StandingFailed
	}
	return v, nil
}
