package owner

import (
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Refusal is a refused message with the reason. Refusals of one proven sender for the same reason are merged, and so
// are the refusals of all unproven senders for the same reason.
type Refusal struct {
	At     time.Time
	Times  int
	Code   wire.Code
	Status int
	Answer string // the message of the error that the sender got
	Why    string // the cause, which only the owner sees
	// From is the sender: authenticated if Proven is true, and otherwise as the newest message claims.
	From   string
	Proven bool
	Intent wire.Intent
}

// Modes are the access modes of a node.
type Modes struct{ Incoming, Outgoing acl.Mode }
