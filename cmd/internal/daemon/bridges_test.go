package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node"
)

// TestBridgesOfAnotherProcess: while another process has the lease, the routes of bridges refuse requests and say when
// to try again, and everything else answers. When the lease is free, the process starts again to run the bridges.
func TestBridgesOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	src := config.Source{File: filepath.Join(dir, "agentmesh.yaml"), Settings: []config.Setting{
		{Key: "listen", Value: "127.0.0.1:0"}, {Key: "roles", Value: "node"}, {Key: "agentrelay.serve", Value: "on"},
	}}
	cfg, err := src.LoadAndCheck(LinkKinds())
	if err != nil {
		t.Fatal(err)
	}
	p, err := OpenToServe(t.Context(), Options{
		Config: cfg, Source: src, Dir: datadir.Dir(dir), Logger: slog.New(slog.DiscardHandler),
		Passphrase: func() ([]byte, error) { return nil, nil }, Note: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	other := p.db.Handle("other")
	if _, err := other.Leases().Acquire(t.Context(), node.Lease); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ready, done := make(chan ServeInfo, 1), make(chan error, 1)
	go func() {
		done <- p.Serve(ctx, func(_ context.Context, info ServeInfo) error { ready <- info; return nil })
	}()
	info := <-ready
	get := func(path string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, info.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	resp := get("/stats")
	var body struct {
		Error struct{ Code string } `json:"error"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || resp.StatusCode != http.StatusServiceUnavailable ||
		resp.Header.Get("Retry-After") == "" || body.Error.Code != "AGENT_UNAVAILABLE" {
		t.Errorf("a route of a bridge: %d, Retry-After %q, %+v, %v", resp.StatusCode, resp.Header.Get("Retry-After"), body, err)
	}
	if resp := get("/health"); resp.StatusCode != http.StatusOK {
		t.Errorf("health: %d", resp.StatusCode)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil || !p.rerun.wanted.Load() {
			t.Errorf("serve ended with %v, and starts again: %v", err, p.rerun.wanted.Load())
		}
	case <-time.After(5 * time.Second):
		t.Error("the process has not taken over")
	}
}
