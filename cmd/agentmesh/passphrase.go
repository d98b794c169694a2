package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/term"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/signing"
)

func (a *app) passphrase() ([]byte, error) { return a.secretFor("the signing key") }

// secretFor is the passphrase of something. On a terminal it is asked for.
func (a *app) secretFor(what string) ([]byte, error) {
	if file, ok := config.Lookup(a.environ, config.EnvPassphraseFile); ok {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read passphrase: %w", err)
		}
		return bytes.TrimRight(data, "\r\n"), nil
	}
	if text, ok := config.Lookup(a.environ, config.EnvPassphrase); ok {
		return []byte(text), nil
	}
	in, ok := a.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil, fmt.Errorf("%w: set %s", signing.ErrNoPassphrase, config.EnvPassphraseFile)
	}
	fmt.Fprintf(a.Err, "passphrase of %s: ", what)
	defer fmt.Fprintln(a.Err)
	return term.ReadPassword(int(in.Fd()))
}

// newSecret is the passphrase of something new. On a terminal it is asked for twice: a slip would lock its owner out.
func (a *app) newSecret(what string) ([]byte, error) {
	text, err := a.secretFor(what)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, errors.New("the passphrase is empty")
	}
	for _, name := range []string{config.EnvPassphraseFile, config.EnvPassphrase} {
		if _, ok := config.Lookup(a.environ, name); ok {
			return text, nil
		}
	}
	again, err := a.secretFor(what + ", once more")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(text, again) {
		return nil, errors.New("the two passphrases differ")
	}
	return text, nil
}
