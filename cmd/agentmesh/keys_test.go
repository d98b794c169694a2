package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// TestKeysGenerateEmptyPassphrase: with --encrypt, an empty passphrase does not leave the private key unencrypted.
func TestKeysGenerateEmptyPassphrase(t *testing.T) {
	empty, file := filepath.Join(t.TempDir(), "empty"), filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{environ: []string{config.EnvPassphraseFile + "=" + empty}}
	err := (&keysGenerateCmd{Kind: "ed25519", Encrypt: true, File: file}).Run(t.Context(), a)
	if exit.Code(err) != exit.Usage {
		t.Errorf("keys generate returned %v", err)
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key file: %v", err)
	}
}
