package daemon_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// runNew runs a serve on an empty folder until the test ends. It returns its addresses and its configuration file.
func runNew(t *testing.T, settings ...config.Setting) (info daemon.ServeInfo, file string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "agentmesh.yaml")
	src := config.Source{File: file, Settings: append(settings, config.Setting{Key: "listen", Value: "127.0.0.1:0"})}
	load := func() (daemon.Options, error) {
		cfg, err := src.LoadAndCheck(daemon.LinkKinds())
		return daemon.Options{
			Config: cfg, Source: src, Dir: datadir.Dir(dir), Logger: slog.New(slog.DiscardHandler),
			Passphrase: func() ([]byte, error) { return nil, nil }, Note: t.Logf,
		}, err
	}
	o, err := load()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan daemon.ServeInfo, 1), make(chan error, 1)
	go func() {
		done <- daemon.Run(ctx, o, load, func(_ context.Context, _ *daemon.Process, info daemon.ServeInfo) error {
			ready <- info
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	select {
	case info := <-ready:
		return info, file
	case err := <-done:
		done <- nil
		t.Fatalf("serve: %v", err)
	}
	return info, file
}
