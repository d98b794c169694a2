package gateway

import "github.com/agentmesh/agentmesh/node/bridge/mew/envelope"

// actions maps a kind to what a space does with a submitted envelope of this kind, besides the delivery.
var actions = map[string]func(*Space, *submission) *envelope.Refusal{
	envelope.KindProposal:       func(s *Space, p *submission) *envelope.Refusal { return s.proposals.remember(p) },
	envelope.KindWithdraw:       func(s *Space, p *submission) *envelope.Refusal { return s.proposals.checkWithdraw(p) },
	envelope.KindGrant:          (*Space).grant,
	envelope.KindRevoke:         (*Space).revoke,
	envelope.KindInvite:         (*Space).invite,
	envelope.KindKick:           (*Space).kick,
	envelope.KindPause:          (*Space).pause,
	envelope.KindResume:         (*Space).resume,
	envelope.KindShutdown:       (*Space).shutDown,
	envelope.KindStreamRequest:  onStreams((*streams).request),
	envelope.KindStreamOpen:     onStreams((*streams).announce),
	envelope.KindStreamClose:    onStreams((*streams).close),
	envelope.KindStreamGrant:    onStreams((*streams).grantWrite),
	envelope.KindStreamRevoke:   onStreams((*streams).revokeWrite),
	envelope.KindStreamTransfer: onStreams((*streams).transfer),
}

// onStreams turns an action on the streams of a space into an action on the space.
func onStreams(act func(*streams, *submission) *envelope.Refusal) func(*Space, *submission) *envelope.Refusal {
	return func(s *Space, p *submission) *envelope.Refusal { return act(&s.streams, p) }
}
