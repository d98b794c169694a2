//go:build slow

package main

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// watchedOutput collects output and calls seen once, when the output contains text.
type watchedOutput struct {
	text string
	seen func()
	once sync.Once

	mu  sync.Mutex
	all strings.Builder
}

func (l *watchedOutput) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(p)
	if l.seen != nil && strings.Contains(l.all.String(), l.text) {
		l.once.Do(l.seen)
	}
	return len(p), nil
}

func (l *watchedOutput) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// newLockedDir returns a data directory with an agent whose database another process has locked.
func newLockedDir(t *testing.T) (dir string, release func()) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("bolt.Hold holds nothing on Windows")
	}
	dir = filepath.Join(t.TempDir(), "data")
	mustRun(t, dir, "init")
	release, err := bolt.Hold(filepath.Join(dir, datadir.FileDatabase))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return dir, release
}

// TestServeWaitsForACommand: serve waits for a command that briefly uses the data directory.
func TestServeWaitsForACommand(t *testing.T) {
	dir, release := newLockedDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errOut := &watchedOutput{text: "waiting for another process to release " + dir, seen: release}
	started := &watchedOutput{text: `"url":`, seen: cancel}
	code := run(ctx, []string{"serve", "--json", "--data", dir, "--listen", "127.0.0.1:0", "--roles", "node"}, nil, started, errOut)
	if code != exit.OK || !strings.Contains(started.String(), `"url":`) {
		t.Errorf("serve ended with %d:\n%s%s", code, started, errOut)
	}
}

// TestServeDoesNotWaitForAServe: a second serve fails at once, because the first one would not release the directory.
func TestServeDoesNotWaitForAServe(t *testing.T) {
	dir, _ := newLockedDir(t)
	serveOwnerSocket(t, dir, http.NotFoundHandler())
	begun := time.Now()
	errOut := &watchedOutput{}
	code := run(t.Context(), []string{"serve", "--data", dir, "--listen", "127.0.0.1:0"}, nil, &watchedOutput{}, errOut)
	if took := time.Since(begun); code != exit.Unavailable || took >= daemon.ServeWait || !strings.Contains(errOut.String(), "is in use by") {
		t.Errorf("serve ended with %d after %s:\n%s", code, took, errOut)
	}
}

// TestCommandWaitsForAServe: a command waits until a serve that is starting answers.
func TestCommandWaitsForAServe(t *testing.T) {
	dir, _ := newLockedDir(t)
	errOut := &watchedOutput{text: "waiting for another process", seen: func() {
		serveOwnerSocket(t, dir, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"agent_id":"am_asked","store":"ok"}`))
		}))
	}}
	out := &watchedOutput{}
	if code := run(t.Context(), []string{"status", "--data", dir}, nil, out, errOut); code != exit.OK || !strings.Contains(out.String(), "am_asked") {
		t.Errorf("status ended with %d:\n%s%s", code, out, errOut)
	}
}

// TestCommandWaitsForACommand: a command waits until another command releases the data directory.
func TestCommandWaitsForACommand(t *testing.T) {
	dir, release := newLockedDir(t)
	errOut := &watchedOutput{text: "waiting for another process", seen: release}
	out := &watchedOutput{}
	if code := run(t.Context(), []string{"status", "--data", dir}, nil, out, errOut); code != exit.OK || !strings.Contains(out.String(), "am_") {
		t.Errorf("status ended with %d:\n%s%s", code, out, errOut)
	}
}

func serveOwnerSocket(t *testing.T, dir string, h http.Handler) {
	t.Helper()
	l, err := net.Listen("unix", httpapi.OwnerSocket(dir))
	if err != nil {
		t.Error(err)
		return
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-served })
}
