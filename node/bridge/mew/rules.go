package mew

import "github.com/agentmesh/agentmesh/node/bridge/mew/capability"

// rule is what the gateway asks of a kind beside a capability. A kind without one is only passed on.
type rule struct {
	reserved   bool // only the gateway sends it (MEW-8, MEW-54)
	dropIn     bool // a drop-in space lets participants send it all the same
	correlated bool // correlation_id is needed
	context    bool // context is needed (MEW-18)
	paused     bool // a paused participant may send it (MEW-37)
	shutdown   bool // one that was shut down may (MEW-42)
	kept       bool // something of it is remembered longer than it takes to pass it on
	act        func(*Space, *post) *refusal
}

// rules maps the kinds of MEW-8 to what is asked of them.
var rules = map[string]rule{
	kindChat:             {},
	kindChatAcknowledge:  {correlated: true, paused: true, shutdown: true},
	kindChatCancel:       {correlated: true, paused: true},
	kindRequest:          {},
	kindResponse:         {},
	kindProposal:         {kept: true, act: (*Space).rememberProposal},
	kindWithdraw:         {correlated: true, paused: true, act: (*Space).checkWithdraw},
	kindReject:           {correlated: true, paused: true},
	kindReasoningStart:   {kept: true},
	kindReasoningThought: {context: true},
	kindReasoningEnd:     {context: true},
	kindReasoningCancel:  {context: true, paused: true},
	kindGrant:            {kept: true, act: (*Space).grant},
	kindRevoke:           {act: (*Space).revoke},
	kindGrantAck:         {paused: true},
	kindInvite:           {kept: true, act: (*Space).invite},
	kindInviteAck:        {reserved: true},
	kindKick:             {act: (*Space).kick},
	kindPause:            {kept: true, act: (*Space).pause},
	kindResume:           {paused: true, act: (*Space).resume},
	kindStatus:           {paused: true, shutdown: true},
	kindRequestStatus:    {paused: true},
	kindForget:           {paused: true},
	kindCompact:          {},
	kindCompactDone:      {paused: true, shutdown: true},
	kindClear:            {paused: true},
	kindRestart:          {},
	kindShutdown:         {paused: true, act: (*Space).shutDown},
	kindStreamRequest:    {kept: true, act: (*Space).openStream},
	kindStreamOpen:       {reserved: true, dropIn: true, kept: true, act: (*Space).announceStream},
	kindStreamClose:      {paused: true, shutdown: true, act: (*Space).closeStream},
	kindStreamGrant:      {act: (*Space).grantWrite},
	kindStreamRevoke:     {act: (*Space).revokeWrite},
	kindStreamTransfer:   {act: (*Space).transfer},
	kindStreamGranted:    {reserved: true},
	kindStreamRevoked:    {reserved: true},
	kindStreamMoved:      {reserved: true},
	kindPresence:         {reserved: true},
	kindWelcome:          {reserved: true},
	kindError:            {reserved: true},
}

// ruleOf returns the rule of a kind. Every system kind is reserved, known or not.
func ruleOf(kind string) rule {
	if capability.IsSystem(kind) {
		return rule{reserved: true}
	}
	return rules[kind]
}
