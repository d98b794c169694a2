//go:build slow

package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
)

// TestRunStartsAgainEarly: a process starts again if its configuration changes before it has called started. If it
// ended without an error instead, systemd would not start it again.
func TestRunStartsAgainEarly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "agentmesh.yaml")
	if err := os.WriteFile(file, []byte("directories: [http://127.0.0.1:1/v1]\n"), 0o600); err != nil { // so started is called late
		t.Fatal(err)
	}
	src := config.Source{File: file, Settings: []config.Setting{{Key: "listen", Value: "127.0.0.1:0"}}}
	load := func() (Options, error) { return loadOptions(t, dir, src) }
	o, err := load()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	starts, done := make(chan bool, 2), make(chan error, 1)
	reload := func() (Options, error) {
		starts <- false
		return load()
	}
	go func() {
		done <- Run(ctx, o, reload, func(context.Context, *Process, ServeInfo) error {
			starts <- true
			return nil
		})
	}()
	var client *Client
	for client == nil {
		client = Running(t.Context(), dir)
		<-time.After(10 * time.Millisecond)
	}
	_, err = Fetch(t.Context(), client, AddLink.With(NewLink{Name: "own-agent", Kind: "a2a", URL: "http://127.0.0.1:1"})) // such a name needs a new start
	if err := errors.Join(err, client.Close()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} {
		select {
		case started := <-starts:
			if started != want {
				t.Fatalf("started was called: %v, want %v", started, want)
			}
		case err := <-done:
			t.Fatalf("the process ended: %v", err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}
