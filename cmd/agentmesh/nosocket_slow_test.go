//go:build slow

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// TestCommandWithoutSocket: a command says at once that serve runs but cannot be reached, instead of waiting for it as
// for a process that starts or stops.
func TestCommandWithoutSocket(t *testing.T) {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	home := filepath.Join(t.TempDir(), "sarah")
	sarah, err := startServe(home, nil, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sarah.Process.Signal(os.Interrupt); sarah.Wait() })
	if err := os.Remove(sarah.info.Socket); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	began := time.Now()
	code := run(t.Context(), []string{"--data", home, "inbox"}, strings.NewReader(""), &out, &out)
	if took := time.Since(began); code != exit.Unavailable || took > 4*time.Second || !strings.Contains(out.String(), "nothing answers at its socket "+sarah.info.Socket) {
		t.Errorf("inbox without the socket: exit %d after %v: %s", code, took, out.String())
	}
}
