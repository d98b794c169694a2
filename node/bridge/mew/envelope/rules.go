package envelope

import "strings"

// Rule is what the protocol asks of a kind beside a capability. A kind with the zero Rule is only passed on.
type Rule struct {
	Reserved   bool // only the gateway sends it (MEW-8, MEW-54)
	DropIn     bool // a drop-in space lets participants send it all the same
	Correlated bool // correlation_id is needed
	Context    bool // context is needed (MEW-18)
	Paused     bool // a paused participant may send it (MEW-37)
	Shutdown   bool // a participant that was shut down may send it (MEW-42)
	Kept       bool // a receiver remembers something of it longer than it takes to pass it on: see [Envelope.Detach]
}

// Rules holds the rules of the kinds of MEW-8.
var Rules = map[string]Rule{
	KindChat:             {},
	KindChatAcknowledge:  {Correlated: true, Paused: true, Shutdown: true},
	KindChatCancel:       {Correlated: true, Paused: true},
	KindRequest:          {},
	KindResponse:         {},
	KindProposal:         {Kept: true},
	KindWithdraw:         {Correlated: true, Paused: true},
	KindReject:           {Correlated: true, Paused: true},
	KindReasoningStart:   {Kept: true},
	KindReasoningThought: {Context: true},
	KindReasoningEnd:     {Context: true},
	KindReasoningCancel:  {Context: true, Paused: true},
	KindGrant:            {Kept: true},
	KindRevoke:           {},
	KindGrantAck:         {Paused: true},
	KindInvite:           {Kept: true},
	KindInviteAck:        {Reserved: true},
	KindKick:             {},
	KindPause:            {Kept: true},
	KindResume:           {Paused: true},
	KindStatus:           {Paused: true, Shutdown: true},
	KindRequestStatus:    {Paused: true},
	KindForget:           {Paused: true},
	KindCompact:          {},
	KindCompactDone:      {Paused: true, Shutdown: true},
	KindClear:            {Paused: true},
	KindRestart:          {},
	KindShutdown:         {Paused: true},
	KindStreamRequest:    {Kept: true},
	KindStreamOpen:       {Reserved: true, DropIn: true, Kept: true},
	KindStreamClose:      {Paused: true, Shutdown: true},
	KindStreamGrant:      {},
	KindStreamRevoke:     {},
	KindStreamTransfer:   {},
	KindStreamGranted:    {Reserved: true},
	KindStreamRevoked:    {Reserved: true},
	KindStreamMoved:      {Reserved: true},
	KindPresence:         {Reserved: true},
	KindWelcome:          {Reserved: true},
	KindError:            {Reserved: true},
}

// IsSystem reports whether only the gateway may send envelopes of this kind, whether the kind is known or not.
func IsSystem(kind string) bool { return strings.HasPrefix(kind, "system/") }

// RuleOf returns the rule of any kind.
func RuleOf(kind string) Rule {
	if IsSystem(kind) {
		return Rule{Reserved: true}
	}
	return Rules[kind]
}
