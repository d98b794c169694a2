package owner

import (
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Refusal is a message that was not taken in, and why. The same refusal of the same sender is counted, not repeated.
type Refusal struct {
	At     time.Time
	Times  int
	Code   wire.Code
	Status int
	Told   string // to the sender
	Why    string // the cause, which only the owner sees
	// From is the sender. Proven reports that a signature proves it; without it From is what the newest of the messages
	// claims.
	From   string
	Proven bool
	Intent wire.Intent
}

// Limits are what a node allows, for people.
type Limits struct {
	Mode, Outgoing  acl.Mode
	Rates           acl.Rates
	Hold            []acl.HoldRule
	HoldFor         time.Duration // a question waits
	Idle, Retention time.Duration // a silent conversation is open, an ended one is kept
	MaxKept         int           // conversations
	MaxBytes        int64         // of messages in all of them
}
