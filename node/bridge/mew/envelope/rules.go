package envelope

import "strings"

// Rule is what the protocol demands of the envelopes of a kind, in addition to a capability of the sender. The zero
// Rule demands nothing more, but a participant that is paused or shut down may not send such an envelope.
type Rule struct {
	GatewayOnly      bool // participants may not send it (MEW-8, MEW-54)
	UnlessDropIn     bool // exception to GatewayOnly: in a space of `agentmesh mew gateway`, participants may send it
	NeedsCorrelation bool // correlation_id is required, except in a space of `agentmesh mew gateway`
	NeedsContext     bool // context is required (MEW-18), with the same exception
	WhilePaused      bool // a paused participant may send it (MEW-37)
	AfterShutdown    bool // a participant that was shut down may send it (MEW-42)
	Remembered       bool // receivers keep parts of the envelope after its delivery; see [Envelope.Detach]
}

// Rules maps the kinds of MEW-8 to their rules.
var Rules = map[string]Rule{
	KindChat:             {},
	KindChatAcknowledge:  {NeedsCorrelation: true, WhilePaused: true, AfterShutdown: true},
	KindChatCancel:       {NeedsCorrelation: true, WhilePaused: true},
	KindRequest:          {},
	KindResponse:         {},
	KindProposal:         {Remembered: true},
	KindWithdraw:         {NeedsCorrelation: true, WhilePaused: true},
	KindReject:           {NeedsCorrelation: true, WhilePaused: true},
	KindReasoningStart:   {Remembered: true},
	KindReasoningThought: {NeedsContext: true},
	KindReasoningEnd:     {NeedsContext: true},
	KindReasoningCancel:  {NeedsContext: true, WhilePaused: true},
	KindGrant:            {Remembered: true},
	KindRevoke:           {},
	KindGrantAck:         {WhilePaused: true},
	KindInvite:           {Remembered: true},
	KindInviteAck:        {GatewayOnly: true},
	KindKick:             {},
	KindPause:            {Remembered: true},
	KindResume:           {WhilePaused: true},
	KindStatus:           {WhilePaused: true, AfterShutdown: true},
	KindRequestStatus:    {WhilePaused: true},
	KindForget:           {WhilePaused: true},
	KindCompact:          {},
	KindCompactDone:      {WhilePaused: true, AfterShutdown: true},
	KindClear:            {WhilePaused: true},
	KindRestart:          {},
	KindShutdown:         {WhilePaused: true},
	KindStreamRequest:    {Remembered: true},
	KindStreamOpen:       {GatewayOnly: true, UnlessDropIn: true, Remembered: true},
	KindStreamClose:      {WhilePaused: true, AfterShutdown: true},
	KindStreamGrant:      {},
	KindStreamRevoke:     {},
	KindStreamTransfer:   {},
	KindStreamGranted:    {GatewayOnly: true},
	KindStreamRevoked:    {GatewayOnly: true},
	KindStreamMoved:      {GatewayOnly: true},
	KindPresence:         {GatewayOnly: true},
	KindWelcome:          {GatewayOnly: true},
	KindError:            {GatewayOnly: true},
}

// IsSystem reports whether a kind begins with system/. Only the gateway may send such kinds, known or not.
func IsSystem(kind string) bool { return strings.HasPrefix(kind, "system/") }

// RuleOf returns the rule of a kind. For an unknown kind that participants may send, it returns the zero Rule.
func RuleOf(kind string) Rule {
	if IsSystem(kind) {
		return Rule{GatewayOnly: true}
	}
	return Rules[kind]
}
