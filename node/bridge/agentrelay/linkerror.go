package agentrelay

import (
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
)

// errCarry: trying again does not help.
var errCarry = errors.New("the message cannot be carried")

// carryError says why; it matches errCarry.
type carryError struct{ reason string }

func (e carryError) Error() string        { return e.reason }
func (e carryError) Is(target error) bool { return target == errCarry }

// later asks the outbox to come again.
func later(after time.Duration) error { return &client.SendError{Retry: true, After: after} }
