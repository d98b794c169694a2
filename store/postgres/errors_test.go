package postgres

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// failedRead is an error as pgconn returns it for a read, also for the read of the answer to a commit.
type failedRead struct{}

func (failedRead) Error() string     { return "read: connection reset" }
func (failedRead) SafeToRetry() bool { return true }

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
