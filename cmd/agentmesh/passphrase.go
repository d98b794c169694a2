package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

func (a *app) readKeyPassphrase() ([]byte, error) { return a.readPassphrase("the signing key") }

// readPassphrase returns a passphrase from the environment or from a prompt on the terminal. subject names what the
// passphrase protects, such as "the backup".
func (a *app) readPassphrase(subject string) ([]byte, error) {
	if file, ok := config.Lookup(a.environ, config.EnvPassphraseFile); ok {
		data, err := os.ReadFile(file)
		if err != nil { // not wrapped, because fs.ErrNotExist would mean that the key is missing
			return nil, fmt.Errorf("read the file in %s: %v", config.EnvPassphraseFile, err)
		}
		data, err = wire.FileText(data)
		return bytes.TrimRight(data, "\r\n"), err
	}
	if text, ok := config.Lookup(a.environ, config.EnvPassphrase); ok {
		return []byte(text), nil
	}
	if !terminal.IsTerminal(a.In) {
		return nil, fmt.Errorf("%w: name a file with the passphrase in %s", signing.ErrNoPassphrase, config.EnvPassphraseFile)
	}
	return a.ReadPassphrase("passphrase of " + subject + ": ")
}

// readNewPassphrase returns a new passphrase that is not empty. It prompts twice: a typo would lock the owner out.
func (a *app) readNewPassphrase(subject string) ([]byte, error) {
	text, err := a.readPassphrase(subject)
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
	again, err := a.readPassphrase(subject + ", once more")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(text, again) {
		return nil, errors.New("the two passphrases differ")
	}
	return text, nil
}
