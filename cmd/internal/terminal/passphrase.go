package terminal

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/term"
)

// ReadPassphrase prompts for a line that the terminal, which In must be, does not show. If the user interrupts the
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
	read := make(chan error, 1)
	go func() {
		var err error
		text, err = term.ReadPassword(fd)
		read <- err
	}()
	select {
	case err := <-read:
		return text, err
	case <-u.Interrupted: // the read goes on, and ends with the process
		return nil, errors.Join(errors.New("interrupted"), term.Restore(fd, before))
	}
}
