package mew

// Protocol is the version that every envelope names (MEW-2).
const Protocol = "mew/v0.4"

// Who the gateway is, on the wire.
const (
	fromSystem = "system:gateway"
	fromStream = "gateway" // of the life of streams
)

// The kinds that the gateway acts on or sends (MEW-8).
const (
	kindChat             = "chat"
	kindChatAcknowledge  = "chat/acknowledge"
	kindChatCancel       = "chat/cancel"
	kindRequest          = "mcp/request"
	kindResponse         = "mcp/response"
	kindProposal         = "mcp/proposal"
	kindWithdraw         = "mcp/withdraw"
	kindReject           = "mcp/reject"
	kindGrant            = "capability/grant"
	kindRevoke           = "capability/revoke"
	kindGrantAck         = "capability/grant-ack"
	kindInvite           = "space/invite"
	kindInviteAck        = "space/invite-ack"
	kindKick             = "space/kick"
	kindPause            = "participant/pause"
	kindResume           = "participant/resume"
	kindStatus           = "participant/status"
	kindRequestStatus    = "participant/request-status"
	kindForget           = "participant/forget"
	kindCompact          = "participant/compact"
	kindCompactDone      = "participant/compact-done"
	kindClear            = "participant/clear"
	kindRestart          = "participant/restart"
	kindShutdown         = "participant/shutdown"
	kindReasoningStart   = "reasoning/start"
	kindReasoningThought = "reasoning/thought"
	kindReasoningEnd     = "reasoning/conclusion"
	kindReasoningCancel  = "reasoning/cancel"
	kindStreamRequest    = "stream/request"
	kindStreamOpen       = "stream/open"
	kindStreamClose      = "stream/close"
	kindStreamGrant      = "stream/grant-write"
	kindStreamRevoke     = "stream/revoke-write"
	kindStreamTransfer   = "stream/transfer-ownership"
	kindStreamGranted    = "stream/write-granted"
	kindStreamRevoked    = "stream/write-revoked"
	kindStreamMoved      = "stream/ownership-transferred"
	kindPresence         = "system/presence"
	kindWelcome          = "system/welcome"
	kindError            = "system/error"
	kindSystemJoin       = "system/join"
)
