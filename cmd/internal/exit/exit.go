// Package exit has the exit codes of the program, and the errors that carry one through packages that do not exit.
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
	Usage       = 64 // the command line is wrong
	Input       = 65 // the input is malformed or refused
	Unavailable = 69 // a peer, directory or the local server cannot be reached, or the data is in use
	TryAgain    = 75 // it may work later
	Forbidden   = 77 // not permitted
	Config      = 78 // the configuration or the data directory is wrong
)

// Meaning is what docs/cli.md says of a code.
type Meaning struct {
	Code int
	Text string
}

// Meanings is the table of docs/cli.md.
var Meanings = []Meaning{
	{OK, "done"},
	{No, "no: the signature is bad, there is no such thing, the peer or the owner refused"},
	{Usage, "the command line is wrong"},
	{Input, "the input is malformed or refused"},
	{Unavailable, "a peer, a directory or the local server cannot be reached, or the port or data directory is in use"},
	{TryAgain, "not now: it may work later; of status: the store takes no writes"},
	{Forbidden, "not permitted"},
	{Config, "the configuration or the data directory is wrong"},
}

// Error is an error with the code to exit with and, where we know one, a hint what to do.
type Error struct {
	Code int
	Err  error
	Hint string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Fail gives an error its exit code.
func Fail(code int, err error) error { return &Error{Code: code, Err: err} }

// FailHint gives an error its exit code and says what to do about it.
func FailHint(code int, err error, hint string) error {
	return &Error{Code: code, Err: err, Hint: hint}
}

// Code decides what an error means to a shell.
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
	case e.Status == 400 || e.Status == 413 || e.Status == 415:
		return Input
	}
	return No
}

// Quietly is a failure whose reason was printed as a result already.
func Quietly(code int) error { return &Error{Code: code} }
