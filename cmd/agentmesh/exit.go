package main

import (
	"errors"
	"net/http"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The exit codes. docs/cli.md lists them for users.
const (
	exitOK          = 0
	exitNo          = 1  // the answer is no, or the peer refused
	exitUsage       = 64 // the command line is wrong
	exitInput       = 65 // the input is malformed or refused
	exitUnavailable = 69 // a peer, directory or the local server cannot be reached, or the data is in use
	exitTryAgain    = 75 // it may work later
	exitForbidden   = 77 // not permitted
	exitConfig      = 78 // the configuration or the data directory is wrong
)

// exitMeanings is the table of docs/cli.md.
var exitMeanings = []struct {
	code    int
	meaning string
}{
	{exitOK, "done"},
	{exitNo, "no: the signature is bad, there is no such thing, the peer or the owner refused"},
	{exitUsage, "the command line is wrong"},
	{exitInput, "the input is malformed or refused"},
	{exitUnavailable, "a peer, a directory or the local server cannot be reached, or the port or data directory is in use"},
	{exitTryAgain, "not now: it may work later; of status: the store takes no writes"},
	{exitForbidden, "not permitted"},
	{exitConfig, "the configuration or the data directory is wrong"},
}

// failure is an error with the code to exit with and, where we know one, a hint what to do.
type failure struct {
	code int
	err  error
	hint string
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(code int, err error) error { return &failure{code: code, err: err} }

func failHint(code int, err error, hint string) error {
	return &failure{code: code, err: err, hint: hint}
}

// exitCode decides what an error means to a shell.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	e, ok := errors.AsType[*wire.Error](err)
	switch {
	case !ok:
		return exitNo
	case e.Retry:
		return exitTryAgain
	case e.Code == wire.Unauthorized || e.Code == wire.OwnerRejected:
		return exitForbidden
	case e.Status == http.StatusBadGateway, e.Code == wire.AgentUnavailable && e.Status != http.StatusNotFound:
		return exitUnavailable
	case e.Status == 400 || e.Status == 413 || e.Status == 415:
		return exitInput
	}
	return exitNo
}

// quietly is a failure whose reason was printed as a result already.
func quietly(code int) error { return &failure{code: code} }
