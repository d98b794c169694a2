package main

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/term"

	"github.com/agentmesh/agentmesh/signing"
)

// Where the passphrase of an encrypted key file comes from, in this order; never from the command line, which
// other users of the machine can see.
const (
	envPassphraseFile = "AGENTMESH_PASSPHRASE_FILE"
	envPassphrase     = "AGENTMESH_PASSPHRASE"
)

func (a *app) passphrase() ([]byte, error) {
	if file, ok := lookup(a.environ, envPassphraseFile); ok {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read passphrase: %w", err)
		}
		return bytes.TrimRight(data, "\r\n"), nil
	}
	if text, ok := lookup(a.environ, envPassphrase); ok {
		return []byte(text), nil
	}
	in, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil, fmt.Errorf("%w: set %s", signing.ErrNoPassphrase, envPassphraseFile)
	}
	fmt.Fprint(a.err, "passphrase of the signing key: ")
	defer fmt.Fprintln(a.err)
	return term.ReadPassword(int(in.Fd()))
}
