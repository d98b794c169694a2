package mew

import (
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
)

// rule is what the gateway asks of a kind beside a capability. A kind without one is only passed on.
type rule struct {
	reserved   bool // only the gateway sends it (MEW-8, MEW-54)
	dropIn     bool // a drop-in space lets participants send it all the same
	correlated bool // correlation_id is needed
	context    bool // context is needed (MEW-18)
	paused     bool // a paused participant may send it (MEW-37)
	shutdown   bool // one that was shut down may (MEW-42)
	kept       bool // something of it is remembered longer than it takes to pass it on
	act        func(*Space, *post) *envelope.Refusal
}

// rules maps the kinds of MEW-8 to what is asked of them.
var rules = map[string]rule{
	envelope.KindChat:             {},
	envelope.KindChatAcknowledge:  {correlated: true, paused: true, shutdown: true},
	envelope.KindChatCancel:       {correlated: true, paused: true},
	envelope.KindRequest:          {},
	envelope.KindResponse:         {},
	envelope.KindProposal:         {kept: true, act: (*Space).rememberProposal},
	envelope.KindWithdraw:         {correlated: true, paused: true, act: (*Space).checkWithdraw},
	envelope.KindReject:           {correlated: true, paused: true},
	envelope.KindReasoningStart:   {kept: true},
	envelope.KindReasoningThought: {context: true},
	envelope.KindReasoningEnd:     {context: true},
	envelope.KindReasoningCancel:  {context: true, paused: true},
	envelope.KindGrant:            {kept: true, act: (*Space).grant},
	envelope.KindRevoke:           {act: (*Space).revoke},
	envelope.KindGrantAck:         {paused: true},
	envelope.KindInvite:           {kept: true, act: (*Space).invite},
	envelope.KindInviteAck:        {reserved: true},
	envelope.KindKick:             {act: (*Space).kick},
	envelope.KindPause:            {kept: true, act: (*Space).pause},
	envelope.KindResume:           {paused: true, act: (*Space).resume},
	envelope.KindStatus:           {paused: true, shutdown: true},
	envelope.KindRequestStatus:    {paused: true},
	envelope.KindForget:           {paused: true},
	envelope.KindCompact:          {},
	envelope.KindCompactDone:      {paused: true, shutdown: true},
	envelope.KindClear:            {paused: true},
	envelope.KindRestart:          {},
	envelope.KindShutdown:         {paused: true, act: (*Space).shutDown},
	envelope.KindStreamRequest:    {kept: true, act: (*Space).openStream},
	envelope.KindStreamOpen:       {reserved: true, dropIn: true, kept: true, act: (*Space).announceStream},
	envelope.KindStreamClose:      {paused: true, shutdown: true, act: (*Space).closeStream},
	envelope.KindStreamGrant:      {act: (*Space).grantWrite},
	envelope.KindStreamRevoke:     {act: (*Space).revokeWrite},
	envelope.KindStreamTransfer:   {act: (*Space).transfer},
	envelope.KindStreamGranted:    {reserved: true},
	envelope.KindStreamRevoked:    {reserved: true},
	envelope.KindStreamMoved:      {reserved: true},
	envelope.KindPresence:         {reserved: true},
	envelope.KindWelcome:          {reserved: true},
	envelope.KindError:            {reserved: true},
}

// ruleOf returns the rule of a kind. Every system kind is reserved, known or not.
func ruleOf(kind string) rule {
	if capability.IsSystem(kind) {
		return rule{reserved: true}
	}
	return rules[kind]
}
