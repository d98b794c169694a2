package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/engine"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/storetest"
)

const (
	hostTTL  = time.Second     // of the leases in these tests
	takeover = 5 * time.Second // in which another process must take over
)

// hosts are processes of one service that host a relay, over one store.
type hosts struct {
	t   *testing.T
	db  *bolt.Store
	all int
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{LeaseTTL: hostTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return &hosts{t: t, db: db}
}

// served is a process that serves.
type served struct {
	*Process
	shaky *storetest.Shaky
	url   string
	stop  context.CancelFunc
	done  chan error
}

// serve starts a process. before is the process that it replaces, or nil. If that one ended in order to take over the
// bridges, the new process takes them over.
func (hs *hosts) serve(role string, before *served, settings ...config.Setting) *served {
	t := hs.t
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	src := config.Source{File: filepath.Join(dir, "agentmesh.yaml"), Settings: append([]config.Setting{
		{Key: "listen", Value: "127.0.0.1:0"}, {Key: "roles", Value: role}, {Key: "agentrelay.serve", Value: "on"},
	}, settings...)}
	cfg, err := src.LoadAndCheck(LinkKinds())
	if err != nil {
		t.Fatal(err)
	}
	s := &served{shaky: storetest.NewShaky(hs.db.Handle(fmt.Sprint("process ", hs.all)), time.Millisecond), done: make(chan error, 1)}
	hs.all++
	log := slog.New(slog.DiscardHandler)
	s.Process = &Process{
		cfg: cfg, src: src, dataDir: datadir.Dir(dir), log: log, metrics: httpapi.NewMetrics("test"), rerun: &rerun{}, db: hs.db,
		passphrase: func() ([]byte, error) { return nil, nil }, release: func() {}, store: store.Observe(s.shaky),
	}
	if s.keys, err = engine.OpenKeyStore(engine.Options{Config: cfg, Source: src, Dir: s.dataDir, Logger: log}, hs.db, s.passphrase); err != nil {
		t.Fatal(err)
	}
	s.session = store.NewSession(s.store.Leases(), log)
	if before != nil {
		s.rerun.takesOver.Store(before.rerun.takesOver.Load())
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	ready := make(chan ServeInfo, 1)
	go func() {
		s.done <- s.Serve(ctx, func(_ context.Context, info ServeInfo) error { ready <- info; return nil })
	}()
	t.Cleanup(func() {
		stop()
		<-s.done
		s.http.Close()
	})
	select {
	case info := <-ready:
		s.url = info.URL
	case err := <-s.done:
		s.done <- err
		t.Fatalf("serve: %v", err)
	}
	return s
}

// awaitEnd waits until the process has ended in order to start again, and fails the test if that takes too long.
func (s *served) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.done:
		s.done <- err
		if err != nil || !s.rerun.wanted.Load() {
			t.Errorf("serve ended with %v, and starts again: %v", err, s.rerun.wanted.Load())
		}
	case <-time.After(takeover):
		t.Fatal("the process does not start again")
	}
}

func (s *served) get(t *testing.T, path string) (status int, after, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Retry-After"), string(text)
}

func (s *served) join(t *testing.T, agent string) *websocket.Conn {
	t.Helper()
	resp, err := http.Post(s.url+"/register", "application/json", strings.NewReader(`{"agent_id":"`+agent+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct{ Token string }
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.Token == "" {
		t.Fatalf("register: %d, %+v, %v", resp.StatusCode, got, err)
	}
	dial := func(ctx context.Context, u *url.URL) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	}
	conn, err := websocket.Dial(t.Context(), dial, "ws"+strings.TrimPrefix(s.url, "http")+"/arc?token="+got.Token, websocket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Abort)
	if err := awaitFrame(conn, "welcome"); err != nil {
		t.Fatal(err)
	}
	return conn
}

// awaitFrame reads frames until one contains text, or the time for a takeover is over.
func awaitFrame(conn *websocket.Conn, text string) error {
	defer time.AfterFunc(takeover, conn.Abort).Stop()
	for {
		if _, frame, err := conn.Read(); err != nil || strings.Contains(string(frame), text) {
			return err
		}
	}
}

// brokenBridge is a bridge that cannot run.
type brokenBridge struct{ bridge.Service }

var errBroken = errors.New("the bridge is broken")

func (brokenBridge) Run(context.Context) error { return errBroken }

// TestBrokenBridgeEndsTheProcess: a process does not stay without its bridges.
func TestBrokenBridgeEndsTheProcess(t *testing.T) {
	p := &Process{bridges: []runningBridge{{Service: brokenBridge{}}}}
	h := &hosting{leaseCtx: t.Context()}
	failed := make(chan error, 1)
	go func() { failed <- h.run(t.Context(), p) }()
	select {
	case err := <-failed:
		if !errors.Is(err, errBroken) {
			t.Errorf("run = %v, want the error of the bridge", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the process goes on without its bridge")
	}
}

// TestBrokenForwardListenerEndsTheProcess: a process that can no longer take forwarded requests releases its lease.
func TestBrokenForwardListenerEndsTheProcess(t *testing.T) {
	t.Parallel()
	hs := newHosts(t)
	p := hs.serve("directory", nil, config.Setting{Key: "network.forward_listen", Value: "127.0.0.1:0"})
	if err := p.hosting.listener.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.done:
		p.done <- err
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve = %v, want the error of the listener", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the process goes on without its listener for forwarded requests")
	}
	if _, err := hs.db.Handle("other").Leases().Acquire(t.Context(), leaseBridges); err != nil {
		t.Errorf("the lease after the process: %v", err)
	}
}

// TestForwardedOnce: a process does not forward a forwarded request again, even if the record of the host is wrong.
func TestForwardedOnce(t *testing.T) {
	t.Parallel()
	hs := newHosts(t)
	other := store.Observe(hs.db.Handle("other"))
	if _, _, err := store.NewSession(other.Leases(), slog.New(slog.DiscardHandler)).Claim(t.Context(), leaseBridges); err != nil {
		t.Fatal(err)
	}
	forward := config.Setting{Key: "network.forward_listen", Value: "127.0.0.1:0"}
	first, second := hs.serve("directory", nil, forward), hs.serve("directory", nil, forward)
	body, err := json.Marshal(host{URL: "http://" + second.hosting.listener.Addr().String(), Key: second.hosting.key})
	if err != nil {
		t.Fatal(err)
	}
	c := store.Change{Record: store.Record{NS: nsHosting, Key: leaseBridges, Body: body}, IfRev: store.Any}
	if err := other.Records().Apply(t.Context(), []store.Change{c}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*served{first, second} {
		began := time.Now()
		if status, _, body := p.get(t, "/stats"); status != http.StatusServiceUnavailable || time.Since(began) > takeover {
			t.Errorf("%d %s after %v, want 503", status, body, time.Since(began))
		}
	}
}

// countedStore counts how often the store is asked for its leases.
type countedStore struct {
	*storetest.Shaky
	looks atomic.Int64
}

func (s *countedStore) Leases() store.Leases { s.looks.Add(1); return s.Shaky.Leases() }

// TestStandbyDuringAnOutage: while the store does not answer, a process that waits for the lease looks about once per
// second and logs each outage once.
func TestStandbyDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hs := newHosts(t)
		_, release, err := store.NewSession(hs.db.Handle("other").Leases(), slog.New(slog.DiscardHandler)).Claim(t.Context(), leaseBridges)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		counted := &countedStore{Shaky: storetest.NewShaky(hs.db.Handle("standby"), 0)}
		var logged bytes.Buffer
		p := &Process{store: store.Observe(counted), log: slog.New(slog.NewTextHandler(&logged, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go (&hosting{lease: leaseBridges}).await(ctx, p)
		for outage := 1; outage <= 2; outage++ {
			counted.Kill()
			before := counted.looks.Load()
			time.Sleep(10 * lookEvery)
			synctest.Wait()
			if looks := counted.looks.Load() - before; looks < 5 || looks > 15 {
				t.Errorf("outage %d: the process looked %d times in %v", outage, looks, 10*lookEvery)
			}
			if n := strings.Count(logged.String(), "lease of the bridges cannot be read"); n != outage {
				t.Errorf("outage %d: %d log lines in all:\n%s", outage, n, &logged)
			}
			counted.Revive()
			time.Sleep(2 * lookEvery)
			synctest.Wait()
		}
	})
}
