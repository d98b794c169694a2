package terminal

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

// openTerminal returns both ends of a terminal: the keyboard of the user, and the input of the program.
func openTerminal(t *testing.T) (keyboard, in *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if in, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return keyboard, in
}

// showsInput reports whether a terminal shows what the user types.
func showsInput(t *testing.T, in *os.File) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

// TestInterruptPassphrase: the first ctrl-c ends the prompt, and the terminal shows input again.
func TestInterruptPassphrase(t *testing.T) {
	keyboard, in := openTerminal(t)
	interrupted, done := make(chan struct{}), make(chan error, 1)
	u := &UI{In: in, Err: io.Discard, Interrupted: interrupted}
	go func() {
		_, err := u.ReadPassphrase("passphrase: ")
		done <- err
	}()
	for showsInput(t, in) {
	}
	close(interrupted)
	if err := <-done; !goldentest.Refuses(t, "ctrl-c", err) {
		t.Errorf("ReadPassphrase = %v, want interrupted", err)
	}
	if !showsInput(t, in) {
		t.Error("the terminal does not show input again")
	}
	if _, err := keyboard.WriteString("\n"); err != nil { // ends the read
		t.Error(err)
	}
}

// TestReadPassphrase: the prompt ends at the end of the line, and the terminal shows input again.
func TestReadPassphrase(t *testing.T) {
	keyboard, in := openTerminal(t)
	if _, err := keyboard.WriteString("secret\nnext line\n"); err != nil {
		t.Fatal(err)
	}
	u := &UI{In: in, Err: io.Discard}
	if text, err := u.ReadPassphrase("passphrase: "); err != nil || string(text) != "secret" {
		t.Errorf("ReadPassphrase = %q, %v", text, err)
	}
	if !showsInput(t, in) {
		t.Error("the terminal does not show input again")
	}
}
