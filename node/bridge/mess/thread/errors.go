package thread

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Refusals are *wire.Error values, so that every transport can show them: REST as {"error": text} with the status,
// AgentMesh with the code.

var plainName = regexp.MustCompile(`^[A-Za-z0-9._:/-]+$`)

// QuoteName returns a space and the name in quotes, or "" if the name is long or has unusual characters.
func QuoteName(name string) string {
	if len(name) > 80 || !plainName.MatchString(name) {
		return ""
	}
	return ` "` + name + `"`
}

// Bad returns a refusal with status 400: the block or body is not acceptable.
func Bad(path, reason string) error {
	text := reason
	if path != "" {
		text = path + ": " + reason
	}
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusBadRequest, Message: text}
}

// Missing returns a refusal with status 404: the thing does not exist, or the actor may not see it.
func Missing(text string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: text}
}

// Conflict returns a refusal with status 409: the state machine does not allow the change.
func Conflict(format string, args ...any) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusConflict, Message: fmt.Sprintf(format, args...)}
}

// ErrTaken answers an executor whose claim came too late. The executor learns nothing else about the thread.
var ErrTaken = Conflict("the thread is held by another executor")

// ErrMoved refuses an answer of the owner if the thread has changed since the owner read the question.
var ErrMoved = Conflict("the thread has changed since this question was asked: read it again")

// ErrNoMatch is returned instead of ErrMoved for a call with If-Match.
var ErrNoMatch = &wire.Error{
	Code: wire.InvalidMessage, Status: http.StatusPreconditionFailed, Message: "the thread has changed since it was read: read it again",
}

// Forbidden returns a refusal with status 403: this actor may not do that.
func Forbidden(text string) error {
	return &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: text}
}

// TooLarge returns a refusal with status 413.
func TooLarge(text string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusRequestEntityTooLarge, Message: text}
}

// TooMany returns a refusal with status 429 and the time to wait.
func TooMany(text string, wait time.Duration) error {
	return &wire.Error{Code: wire.RateLimited, Status: http.StatusTooManyRequests, Retry: true, Message: text, RetryAfter: max(wait, time.Second)}
}

// IsRefusal reports whether an error is a refusal that a retry would not change.
func IsRefusal(err error) bool {
	e, ok := errors.AsType[*wire.Error](err)
	return ok && !e.Retry
}
