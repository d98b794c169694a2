package terminal

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/term"
)

// ReadPassphrase prompts for a line without showing it. In must be a terminal. If the user interrupts the
// command, ReadPassphrase makes the terminal show input again and returns an error.
func (u *UI) ReadPassphrase(prompt string) ([]byte, error) {
	fd := int(u.In.(*os.File).Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, fmt.Errorf("read passphrase: %w", err)
	}
	fmt.Fprint(u.Err, prompt)
	defer fmt.Fprintln(u.Err)
	var text []byte
	err = u.AwaitInput(func() (err error) { text, err = term.ReadPassword(fd); return err })
	if errors.Is(err, errInterrupted) {
		return nil, errors.Join(err, term.Restore(fd, before))
	}
	return text, err
}
