package thread

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Refusals are *wire.Error values, so that every door can show them: REST as {"error": text} with the status, AgentMesh
// with the code. The text is ours; it names entries and fields, and of the input it quotes short plain names alone, to who
// sent them.

var plainName = regexp.MustCompile(`^[A-Za-z0-9._:/-]{1,80}$`)

// Quoted is a name of the input with a space before it; "" where it is no plain one.
func Quoted(name string) string {
	if !plainName.MatchString(name) {
		return ""
	}
	return ` "` + name + `"`
}

// Bad is a 400: the block or body is not acceptable.
func Bad(path, reason string) error {
	text := reason
	if path != "" {
		text = path + ": " + reason
	}
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusBadRequest, Message: text}
}

// Missing is a 404: there is no such thing, or none that the actor may see.
func Missing(what string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: what}
}

// Conflict is a 409: the state machine does not allow it.
func Conflict(format string, args ...any) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusConflict, Message: fmt.Sprintf(format, args...)}
}

// ErrTaken is all that who claims too late is told.
var ErrTaken = Conflict("the thread is held by another executor")

// ErrMoved: what the owner says is to what was asked when the owner read it, and to nothing that came in its place.
var ErrMoved = Conflict("the thread has changed since this was asked: read it again")

// ErrNoMatch is errMoved for who named the thread with If-Match.
var ErrNoMatch = &wire.Error{
	Code: wire.InvalidMessage, Status: http.StatusPreconditionFailed, Message: "the thread has changed since it was read: read it again",
}

// Forbidden is a 403: somebody else may.
func Forbidden(text string) error {
	return &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: text}
}

// TooLarge is a 413.
func TooLarge(text string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusRequestEntityTooLarge, Message: text}
}

// IsRefusal reports whether an error is a refusal that stays one.
func IsRefusal(err error) bool {
	e, ok := errors.AsType[*wire.Error](err)
	return ok && !e.Retry
}
