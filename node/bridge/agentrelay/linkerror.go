package agentrelay

import (
	"errors"
	"strings"
	"time"
	"unicode"

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

// printable makes a text of a stranger fit for a log or a terminal: at most n bytes, without what controls either.
func printable(s string, n int) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, cut(strings.ToValidUTF8(s, "."), n))
}
