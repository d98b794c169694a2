package envelope

import "strings"

// Rule says what the protocol demands of a kind, besides a capability. An envelope of a kind with the zero Rule is only
// delivered.
type Rule struct {
	Reserved   bool // only the gateway sends it (MEW-8, MEW-54)
	DropIn     bool // participants of a drop-in space may send it too
	Correlated bool // correlation_id is required
	Context    bool // context is required (MEW-18)
	Paused     bool // a paused participant may send it (MEW-37)
	Shutdown   bool // a participant that was shut down may send it (MEW-42)
	Kept       bool // a receiver remembers parts of it after its delivery; see [Envelope.Detach]
}

// Rules maps the kinds of MEW-8 to their rules.
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

// IsSystem reports whether only the gateway may send envelopes of this kind. The kind need not be a known one.
func IsSystem(kind string) bool { return strings.HasPrefix(kind, "system/") }

// RuleOf returns the rule of any kind.
func RuleOf(kind string) Rule {
	if IsSystem(kind) {
		return Rule{Reserved: true}
	}
	return Rules[kind]
}
