package envelope

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
