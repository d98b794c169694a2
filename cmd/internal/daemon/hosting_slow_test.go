//go:build slow

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/store"
)

// TestBridgesOfAnotherProcess: while a process without network.forward_listen runs the bridges, another one answers
// everything except requests for the bridges. It refuses these, and says when to try again.
func TestBridgesOfAnotherProcess(t *testing.T) {
	t.Parallel()
	hs := newHosts(t)
	other := hs.db.Handle("other")
	if _, _, err := store.NewSession(other.Leases(), slog.New(slog.DiscardHandler)).Claim(t.Context(), node.Lease); err != nil {
		t.Fatal(err)
	}
	p := hs.serve("node", nil)
	if status, after, body := p.get(t, "/stats"); status != http.StatusServiceUnavailable || after == "" || !strings.Contains(body, "AGENT_UNAVAILABLE") {
		t.Errorf("a route of a bridge: %d, Retry-After %q, %s", status, after, body)
	}
	if status, _, _ := p.get(t, "/health"); status != http.StatusOK {
		t.Errorf("health: %d", status)
	}
	if err := p.hosting.refuse(t.Context(), p.Process); !goldentest.Refuses(t, "refuse", err) {
		t.Errorf("an operation of a bridge: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	p.awaitEnd(t)
}

// TestForwardToTheHost: requests and WebSockets for a relay reach the process that runs it, through any process. When
// that process ends, its connections end, and another process takes over.
func TestForwardToTheHost(t *testing.T) {
	t.Parallel()
	hs := newHosts(t)
	forward := config.Setting{Key: "network.forward_listen", Value: "127.0.0.1:0"}
	first := hs.serve("directory", nil, forward)
	second := hs.serve("directory", nil, forward)
	third := hs.serve("directory", nil, forward)
	for _, p := range []*served{first, second, third} {
		if status, _, body := p.get(t, "/stats"); status != http.StatusOK || !strings.Contains(body, "agents") {
			t.Errorf("stats of the relay: %d %s", status, body)
		}
	}
	sender, conn := second.join(t, "sender"), third.join(t, "reader")
	if err := sender.Send(websocket.Text([]byte(`{"to":["reader"],"payload":"over three processes"}`))); err != nil {
		t.Fatal(err)
	}
	if err := awaitFrame(conn, "over three processes"); err != nil {
		t.Fatal(err)
	}
	second.shaky.Kill() // the process between cannot read where the host is
	<-time.After(2 * lookEvery)
	second.shaky.Revive()
	if err := sender.Send(websocket.Text([]byte(`{"to":["reader"],"payload":"still connected"}`))); err != nil {
		t.Fatal(err)
	}
	if err := awaitFrame(conn, "still connected"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + first.hosting.listener.Addr().String() + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a stranger at the listener for forwarded requests: %d", resp.StatusCode)
	}

	began := time.Now()
	first.shaky.Kill()
	first.stop()
	if err := awaitFrame(conn, "nothing contains this"); err == nil {
		t.Error("the WebSocket outlives the process that ran the relay")
	}
	var next, rest *served
	select {
	case err := <-second.done:
		second.done <- err
		next, rest = second, third
	case err := <-third.done:
		third.done <- err
		next, rest = third, second
	case <-time.After(takeover):
		t.Fatal("no process takes over")
	}
	next = hs.serve("directory", next, forward)
	if status, _, body := next.get(t, "/stats"); status != http.StatusOK || next.hosting.isElsewhere() || time.Since(began) > takeover {
		t.Errorf("after %v: %d %s", time.Since(began), status, body)
	}
	if conn := rest.join(t, "newcomer"); conn.Send(websocket.Text([]byte(`{"to":["relay"],"type":"ping"}`))) != nil || awaitFrame(conn, "pong") != nil {
		t.Error("the relay does not answer over the process that did not take over")
	}
}

// TestHostWithoutStore: a process that loses its lease because the store is gone keeps serving, and starts again when
// the store is back. Until then, it would fail to start.
func TestHostWithoutStore(t *testing.T) {
	t.Parallel()
	p := newHosts(t).serve("directory", nil)
	p.shaky.Kill()
	duty := p.hosting.leaseCtx
	select {
	case <-duty.Done():
	case <-time.After(takeover):
		t.Fatal("the lease does not end")
	}
	select {
	case err := <-p.done:
		p.done <- err
		t.Fatalf("serve ended without a store: %v", err)
	case <-time.After(2 * hostTTL):
	}
	if status, _, _ := p.get(t, "/v1/health"); status == 0 {
		t.Error("the process does not answer")
	}
	p.shaky.Revive()
	p.awaitEnd(t)
}

// TestStalledHost: a process that stalls beyond its lease stores nothing for a bridge afterwards, and starts again.
func TestStalledHost(t *testing.T) {
	t.Parallel()
	hs := newHosts(t)
	p := hs.serve("directory", nil)
	write := func() error {
		c := store.Change{Record: store.Record{NS: "test", Key: "k"}, IfRev: store.Any}
		return p.bridgeStore.Records().Apply(context.Background(), []store.Change{c}, time.Now())
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	thaw := p.shaky.Freeze()
	written := make(chan error, 1)
	go func() { written <- write() }() // for a request that the process was answering
	other := store.NewSession(hs.db.Handle("other").Leases(), slog.New(slog.DiscardHandler))
	var end func()
	for giveUp := time.Now().Add(takeover); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if _, end, err = other.Claim(t.Context(), leaseBridges); err == nil {
			break
		}
		if time.Now().After(giveUp) {
			t.Fatal(err)
		}
	}
	defer end()
	thaw()
	if err := <-written; !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("write after the lease: %v, want ErrLeaseLost", err)
	}
	p.awaitEnd(t)
}

// TestSlowStart: a process keeps the lease while it starts, however long that takes.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	hs := newHosts(t)
	s := store.Observe(hs.db.Handle("slow"))
	log := slog.New(slog.DiscardHandler)
	p := &Process{store: s, session: store.NewSession(s.Leases(), log), rerun: &rerun{}, log: log}
	if err := p.hosting.claim(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	defer p.hosting.close()
	time.Sleep(2 * hostTTL)
	if _, err := hs.db.Handle("other").Leases().Acquire(t.Context(), leaseBridges); !errors.Is(err, store.ErrLeaseTaken) {
		t.Errorf("another process acquires the lease: %v, want ErrLeaseTaken", err)
	}
	if p.hosting.leaseCtx.Err() != nil {
		t.Error("the lease is lost before the start has ended")
	}
}
