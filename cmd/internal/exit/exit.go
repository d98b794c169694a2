// Package exit defines the exit codes of the program, and errors that carry an exit code up to main.
package exit

import (
	"errors"
	"net/http"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The exit codes. docs/cli.md lists them for users.
const (
	OK          = 0
	No          = 1  // the answer is no, or the peer refused
	Held        = 3  // the message waits for the owner's decision; Go itself exits with 2
	PeerDecides = 4  // the message waits for the decision of the peer's owner
	Usage       = 64 // the command line is wrong
	Input       = 65 // the input is malformed or refused
	Unavailable = 69 // a peer, directory or the local server cannot be reached, or the data is in use
	TryAgain    = 75 // it may work later
	Forbidden   = 77 // not permitted
	Config      = 78 // the configuration or the data directory is wrong
)

// Meaning describes an exit code in docs/cli.md.
type Meaning struct {
	Code int
	Text string
}

// Meanings is the table of exit codes in docs/cli.md.
var Meanings = []Meaning{
	{OK, "done"},
	{No, "no: the signature is invalid, the thing does not exist, or the peer or the owner refused"},
	{Held, "not sent yet: the message waits for your decision"},
	{PeerDecides, "sent: the message waits for the decision of the peer's owner"},
	{Usage, "the command line is wrong"},
	{Input, "the input is malformed or refused"},
	{Unavailable, "a peer, a directory or the local server cannot be reached, or the port or data directory is in use"},
	{TryAgain, "not now: try again later; for status: the store accepts no writes"},
	{Forbidden, "not permitted"},
	{Config, "the configuration or the data directory is wrong"},
}

// Error is an error with an exit code and, if possible, a hint about what to do next.
type Error struct {
	Code int
	Err  error
	Hint string
}

// Error returns the text of the error, or "" for an error of [FailSilently].
func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Fail gives an error its exit code.
func Fail(code int, err error) error { return &Error{Code: code, Err: err} }

// FailHint gives an error its exit code and a hint about what to do next.
func FailHint(code int, err error, hint string) error {
	return &Error{Code: code, Err: err, Hint: hint}
}

// Code returns the exit code for an error.
func Code(err error) int {
	if err == nil {
		return OK
	}
	if f, ok := errors.AsType[*Error](err); ok {
		return f.Code
	}
	e, ok := errors.AsType[*wire.Error](err)
	switch {
	case !ok:
		return No
	case e.Retry:
		return TryAgain
	case e.Code == wire.Unauthorized || e.Code == wire.OwnerRejected:
		return Forbidden
	case e.Status == http.StatusBadGateway, e.Code == wire.AgentUnavailable && e.Status != http.StatusNotFound:
		return Unavailable
	case e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge || e.Status == http.StatusUnsupportedMediaType:
		return Input
	}
	return No
}

// FailSilently returns a failure without a text, for a command that has already printed the reason as its result.
func FailSilently(code int) error { return &Error{Code: code} }

// Unless returns nil if the result of a command is good, and otherwise what [FailSilently] returns.
func Unless(ok bool, code int) error {
	if ok {
		return nil
	}
	return FailSilently(code)
}
