package exit

import (
	"errors"
	"strings"
	"testing"
)

// TestSilentError: an error without a text can be joined with others and printed.
func TestSilentError(t *testing.T) {
	err := errors.Join(Fail(Config, errors.New("close")), FailSilently(TryAgain))
	if got := strings.TrimSpace(err.Error()); got != "close" {
		t.Errorf("a joined error has the text %q", got)
	}
}

func TestExitCode(t *testing.T) {
	if got := Code(errors.Join(errors.New("close"), Fail(Config, errors.New("x")))); got != Config {
		t.Errorf("Code of a joined failure = %d, want %d", got, Config)
	}
	if got := Code(errors.New("x")); got != No {
		t.Errorf("Code of a plain error = %d, want %d", got, No)
	}
}
