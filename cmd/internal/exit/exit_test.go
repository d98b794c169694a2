package exit

import (
	"errors"
	"testing"
)

func TestExitCode(t *testing.T) {
	if got := Code(errors.Join(errors.New("close"), Fail(Config, errors.New("x")))); got != Config {
		t.Errorf("Code of a joined failure = %d, want %d", got, Config)
	}
	if got := Code(errors.New("x")); got != No {
		t.Errorf("Code of a plain error = %d, want %d", got, No)
	}
}
