package agentrelay

import (
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// errCarry: trying again does not help.
var errCarry = errors.New("the message cannot be carried")

// carryError says why; it matches errCarry.
type carryError struct{ reason string }

func (e carryError) Error() string        { return e.reason }
func (e carryError) Is(target error) bool { return target == errCarry }

// Why a message waits, for the owner.
const (
	unprepared = "the link could not read or store what it knows of the conversation"
	overBudget = "the link sends no more than the relay takes"
)

// later asks the outbox to come again, and says why for the owner.
func later(after time.Duration, why string) error {
	return &client.SendError{Retry: true, After: after, Status: wire.ErrUnavailable.Status, Refusal: wire.ErrUnavailable.At(why)}
}

// away says for the owner why nothing leaves over the link now.
func (l *link) away() string {
	s := l.status()
	if s.State == bridge.LinkDown {
		return "the link " + s.Name + " is down: " + s.Error
	}
	return "the link " + s.Name + " is not connected"
}
