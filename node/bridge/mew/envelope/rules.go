package envelope

import (
	"strings"
)

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

// Protocol is the protocol version in every envelope (MEW-2).
const Protocol = "mew/v0.4"

// These are the names of the gateway in "from".
const (
	FromSystem = "system:gateway"
	FromStream = "gateway" // for envelopes about streams
)

// These are the kinds of MEW-8, and system/join, which some clients send to join a space.
const (
	KindChat             = "chat"
	KindChatAcknowledge  = "chat/acknowledge"
	KindChatCancel       = "chat/cancel"
	KindRequest          = "mcp/request"
	KindResponse         = "mcp/response"
	KindProposal         = "mcp/proposal"
	KindWithdraw         = "mcp/withdraw"
	KindReject           = "mcp/reject"
	KindGrant            = "capability/grant"
	KindRevoke           = "capability/revoke"
	KindGrantAck         = "capability/grant-ack"
	KindInvite           = "space/invite"
	KindInviteAck        = "space/invite-ack"
	KindKick             = "space/kick"
	KindPause            = "participant/pause"
	KindResume           = "participant/resume"
	KindStatus           = "participant/status"
	KindRequestStatus    = "participant/request-status"
	KindForget           = "participant/forget"
	KindCompact          = "participant/compact"
	KindCompactDone      = "participant/compact-done"
	KindClear            = "participant/clear"
	KindRestart          = "participant/restart"
	KindShutdown         = "participant/shutdown"
	KindReasoningStart   = "reasoning/start"
	KindReasoningThought = "reasoning/thought"
	KindReasoningEnd     = "reasoning/conclusion"
	KindReasoningCancel  = "reasoning/cancel"
	KindStreamRequest    = "stream/request"
	KindStreamOpen       = "stream/open"
	KindStreamClose      = "stream/close"
	KindStreamGrant      = "stream/grant-write"
	KindStreamRevoke     = "stream/revoke-write"
	KindStreamTransfer   = "stream/transfer-ownership"
	KindStreamGranted    = "stream/write-granted"
	KindStreamRevoked    = "stream/write-revoked"
	KindStreamMoved      = "stream/ownership-transferred"
	KindPresence         = "system/presence"
	KindWelcome          = "system/welcome"
	KindError            = "system/error"
	KindSystemJoin       = "system/join"
)
