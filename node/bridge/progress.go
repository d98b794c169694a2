package bridge

import (
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Progress is what a hook, the program behind the node, reports before it answers a message of a foreign peer. Reports
// are not stored and may be lost, so the answer must repeat everything that counts.
type Progress struct {
	Address      string // of the peer
	MessageID    wire.MessageID
	Conversation wire.ConversationID
	Result       hook.Result
}

// ProgressRoom is how many reports may wait for one follower; any others are lost. A report is at most as large as a
// hook's output, 256 KiB.
const ProgressRoom = 32
