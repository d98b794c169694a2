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

// lines is standard error: it calls seen, once, when a text comes by.
type lines struct {
	text string
	seen func()
	once sync.Once

	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(p)
	if l.seen != nil && strings.Contains(l.all.String(), l.text) {
		l.once.Do(l.seen)
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// held is a data directory with an agent in it that another process has.
func held(t *testing.T) (dir string, release func()) {
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

// A command that has the data directory for a moment made a serve fail that was started just then.
func TestServeWaitsForACommand(t *testing.T) {
	dir, release := held(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := &lines{text: "waiting for another process to let go of " + dir, seen: release}
	started := &lines{text: `"url":`, seen: cancel}
	code := run(ctx, []string{"serve", "--json", "--data", dir, "--listen", "127.0.0.1:0", "--roles", "node"}, nil, started, said)
	if code != exit.OK || !strings.Contains(started.String(), `"url":`) {
		t.Errorf("serve ended with %d:\n%s%s", code, started, said)
	}
}

// One that serves does not let go, so nobody waits for it.
func TestServeDoesNotWaitForAServe(t *testing.T) {
	dir, _ := held(t)
	answers(t, dir, http.NotFoundHandler())
	begun := time.Now()
	said := &lines{}
	code := run(t.Context(), []string{"serve", "--data", dir, "--listen", "127.0.0.1:0"}, nil, &lines{}, said)
	if took := time.Since(begun); code != exit.Unavailable || took >= daemon.ServeWait || !strings.Contains(said.String(), "is in use by") {
		t.Errorf("serve ended with %d after %s:\n%s", code, took, said)
	}
}

// A command that meets a serve which starts waits until that answers.
func TestCommandWaitsForAServe(t *testing.T) {
	dir, _ := held(t)
	said := &lines{text: "waiting for another process", seen: func() {
		answers(t, dir, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"agent_id":"am_asked","store":"ok"}`))
		}))
	}}
	out := &lines{}
	if code := run(t.Context(), []string{"status", "--data", dir}, nil, out, said); code != exit.OK || !strings.Contains(out.String(), "am_asked") {
		t.Errorf("status ended with %d:\n%s%s", code, out, said)
	}
}

func TestCommandWaitsForACommand(t *testing.T) {
	dir, release := held(t)
	said := &lines{text: "waiting for another process", seen: release}
	out := &lines{}
	if code := run(t.Context(), []string{"status", "--data", dir}, nil, out, said); code != exit.OK || !strings.Contains(out.String(), "am_") {
		t.Errorf("status ended with %d:\n%s%s", code, out, said)
	}
}

// answers is a serve, as far as others see: its owner's socket.
func answers(t *testing.T, dir string, h http.Handler) {
	t.Helper()
	socket, err := httpapi.OwnerSocket(dir)
	if err != nil {
		t.Error(err)
		return
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Error(err)
		return
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-served })
}
