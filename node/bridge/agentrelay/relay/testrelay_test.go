package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

// testRelay is a relay on a real listener, over a real database.
type testRelay struct {
	*Relay
	t     testing.TB
	store store.Store
	url   string // http://…
	owner *echo.Echo
	stop  func()
}

func openStore(t testing.TB) store.Store {
	t.Helper()
	st, err := bolt.Open(context.Background(), t.TempDir()+"/relay.db", bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// newTestRelay starts a relay with open registration and no limits except those of cfg.
func newTestRelay(t testing.TB, cfg Config) *testRelay {
	t.Helper()
	return newTestRelayOn(t, openStore(t), cfg)
}

func newTestRelayOn(t testing.TB, st store.Store, cfg Config) *testRelay {
	t.Helper()
	cfg.Records = st.Records()
	if cfg.Registration == "" {
		cfg.Registration = credential.Open
	}
	for _, n := range []*int{&cfg.PerMinute, &cfg.PerHour, &cfg.RegistrationsPerHour} {
		if *n == 0 {
			*n = -1
		}
	}
	relay, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	edge := httpapi.New(httpapi.Config{Local: true, Logger: cfg.Logger, MaxConns: -1, MaxConnsPerAddr: -1})
	relay.Mount(edge.Echo())
	private := httpapi.NewOwner(httpapi.OwnerConfig{Dir: t.TempDir()})
	owner.Mount(private.Group(), relay.Operations()...)
	srv := httptest.NewServer(apitest.Check(t, edge.Handler()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	s := &testRelay{Relay: relay, t: t, store: st, url: srv.URL, owner: private.Echo()}
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		srv.Close()
	}
	t.Cleanup(s.stop)
	return s
}

// ask makes a request with a body and returns status and body.
func (s *testRelay) ask(method, path, body string, header ...string) (int, []byte) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, data
}

// register registers an agent and returns its token.
func (s *testRelay) register(id string) string {
	s.t.Helper()
	made, err := s.Relay.register(context.Background(), *newMember(id))
	if err != nil || made.AgentID != id {
		s.t.Fatalf("register %s: %+v, %v", id, made, err)
	}
	return made.Token
}

func newMember(id string) *member {
	return &member{Account: credential.Account{ID: id, Key: credential.HashOf(id), Created: time.Now()}}
}

// agent is a client of the relay.
type agent struct {
	t     testing.TB
	id    string
	token string
	conn  *websocket.Conn
	in    chan []byte
	ended chan *websocket.CloseError
}

func dialer(ctx context.Context, u *url.URL) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
}

func (s *testRelay) address() *url.URL {
	u, err := url.Parse(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	return u
}

// waitConnected waits until an agent is connected, or is not.
func (s *testRelay) waitConnected(id string, connected bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); s.conns.isConnected(id) != connected; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s connected: %v", id, !connected)
		}
	}
}

// dial connects with a token and does not read from the connection.
func (s *testRelay) dial(token string) (*websocket.Conn, error) {
	opt := websocket.Options{
		Header: http.Header{"Authorization": {"Bearer " + token}}, ReadLimit: 1 << 20, QueueFrames: 1 << 12, QueueBytes: 16 << 30, // larger than the relay's queue, which the tests check
	}
	return websocket.Dial(context.Background(), dialer, "ws"+strings.TrimPrefix(s.url, "http")+"/arc", opt)
}

// join registers and connects an agent, and reads its welcome.
func (s *testRelay) join(id string) *agent {
	s.t.Helper()
	return s.connectAs(id, s.register(id))
}

func (s *testRelay) connectAs(id, token string) *agent {
	s.t.Helper()
	conn, err := s.dial(token)
	if err != nil {
		s.t.Fatalf("connect %s: %v", id, err)
	}
	a := s.listen(id, conn)
	a.token = token
	if f := a.next(); f.GetStr("type") != "welcome" {
		s.t.Fatalf("%s: the first frame is %s, want welcome", id, f.JSON())
	}
	return a
}

// listen reads a connection until it ends.
func (s *testRelay) listen(id string, conn *websocket.Conn) *agent {
	a := &agent{t: s.t, id: id, conn: conn, in: make(chan []byte, 4096), ended: make(chan *websocket.CloseError, 1)}
	go func() {
		for {
			_, data, err := conn.Read()
			if err != nil {
				closed, _ := err.(*websocket.CloseError)
				a.ended <- closed
				close(a.in)
				return
			}
			a.in <- bytes.Clone(data)
		}
	}()
	s.t.Cleanup(func() {
		conn.Abort()
		for range a.in {
		}
	})
	return a
}

func (a *agent) send(frame string) {
	a.t.Helper()
	if err := a.conn.Send(websocket.Text([]byte(frame))); err != nil {
		a.t.Fatalf("%s sends: %v", a.id, err)
	}
}

// raw returns the next frame as it came.
func (a *agent) raw() []byte {
	a.t.Helper()
	select {
	case data, ok := <-a.in:
		if !ok {
			a.t.Fatalf("%s: the connection is gone", a.id)
		}
		return data
	case <-time.After(patience):
		a.t.Fatalf("%s: nothing came", a.id)
		return nil
	}
}

func (a *agent) next() wire.Value {
	a.t.Helper()
	data := a.raw()
	v, err := wire.ParseForeign(data, frame.MaxDepth, 1<<20)
	if err != nil {
		a.t.Fatalf("%s got %q: %v", a.id, data, err)
	}
	return v
}

// quiet fails if anything but the answer to a ping arrives. Frames that were queued before the ping would arrive first.
func (a *agent) quiet() {
	a.t.Helper()
	a.send(`{"to":["relay"],"type":"ping","ref":"quiet"}`)
	if f := a.next(); f.GetStr("type") != "pong" {
		a.t.Fatalf("%s got %s, want nothing", a.id, f.JSON())
	}
}

// closed waits for the end of the connection and returns the close code.
func (a *agent) closed() int {
	a.t.Helper()
	select {
	case err := <-a.ended:
		return err.Code
	case <-time.After(patience):
		a.t.Fatalf("%s: the connection lives on", a.id)
		return 0
	}
}

// code returns the code of an error frame, or "" for any other frame.
func code(f wire.Value) string {
	payload, _ := f.Get("payload")
	if f.GetStr("type") != "error" || f.GetStr("from") != frame.RelayID {
		return ""
	}
	return payload.GetStr("code")
}

// callOwner makes a request to the owner API and decodes the answer.
func (s *testRelay) callOwner(method, path, body string, dst any) int {
	s.t.Helper()
	req := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	s.owner.ServeHTTP(w, req)
	if dst != nil {
		if err := json.Unmarshal(w.Body.Bytes(), dst); err != nil {
			s.t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	return w.Code
}
