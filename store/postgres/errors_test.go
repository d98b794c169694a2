package postgres

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentmesh/agentmesh/store"
)

// failedRead is an error as pgconn returns it for a read, also for the read of the answer to a commit.
type failedRead struct{}

func (failedRead) Error() string     { return "read: connection reset" }
func (failedRead) SafeToRetry() bool { return true }

// TestOpenOfATroubledServer: Open fails with store.ErrUnavailable if the server cannot work now, such as with a full
// disk, or the connection breaks, so that a process that starts again waits.
func TestOpenOfATroubledServer(t *testing.T) {
	for _, tt := range []struct {
		err  error
		wait bool
	}{
		{&pgconn.PgError{Code: "53100"}, true}, // the disk is full
		{&pgconn.PgError{Code: "57P01"}, true}, // the server shuts down
		{io.ErrUnexpectedEOF, true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true},
		{&pgconn.PgError{Code: "42501"}, false}, // not permitted
		{ErrNewerSchema, false},
		{errors.New("cannot parse"), false},
	} {
		if err := classifyOpen(fmt.Errorf("open the database: %w", tt.err)); errors.Is(err, store.ErrUnavailable) != tt.wait || !errors.Is(err, tt.err) {
			t.Errorf("%v: %v, want that the process waits: %v", tt.err, err, tt.wait)
		}
	}
}

// TestUnknownOutcomeIsNotRepeated checks that a group whose commit may have succeeded is not executed a second time.
func TestUnknownOutcomeIsNotRepeated(t *testing.T) {
	unknown := fmt.Errorf("%w: %w", errUnknown, failedRead{})
	if !pgconn.SafeToRetry(unknown) {
		t.Fatal("the error does not look as pgconn makes it")
	}
	if mayRepeat(unknown) {
		t.Error("a commit of unknown outcome may be repeated")
	}
	if !mayRepeat(failedRead{}) || !mayRepeat(fmt.Errorf("%w: %w", errLost, failedRead{})) {
		t.Error("a group that was not committed may not be repeated")
	}
}
