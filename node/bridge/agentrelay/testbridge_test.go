package agentrelay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/relay"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

// testBridge is a bridge that hosts a relay with open registration and no limits, on a real listener.
type testBridge struct {
	t   *testing.T
	url string // http://…
}

func newTestBridge(t *testing.T) *testBridge {
	t.Helper()
	st, err := bolt.Open(context.Background(), t.TempDir()+"/relay.db", bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	hosted, err := relay.New(t.Context(), relay.Config{
		Records: st.Records(), Registration: credential.Open, PerMinute: -1, PerHour: -1, RegistrationsPerHour: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(Config{Relay: hosted, Serve: true})
	if err != nil {
		t.Fatal(err)
	}
	edge := httpapi.New(httpapi.Config{Local: true, MaxConns: -1, MaxConnsPerAddr: -1})
	b.Mount(edge.Echo())
	srv := httptest.NewServer(apitest.Check(t, edge.Handler()))
	t.Cleanup(srv.Close)
	run(t, b)
	return &testBridge{t, srv.URL}
}

// run runs a bridge until the test ends.
func run(t *testing.T, b *Bridge) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

// ask makes a request, which must succeed, and decodes its answer.
func (s *testBridge) ask(method, path, body string, dst any) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, data, err)
	}
	if err := json.Unmarshal(data, dst); err != nil {
		s.t.Fatal(err)
	}
}

// frames returns how many frames went over the relay in the last minute.
func (s *testBridge) frames() int {
	s.t.Helper()
	var stats struct {
		PerMinute int `json:"messages_per_minute"`
	}
	s.ask(http.MethodGet, "/stats", "", &stats)
	return stats.PerMinute
}

// agent is a client of the relay.
type agent struct {
	t    *testing.T
	conn *websocket.Conn
	in   chan wire.Value
}

// join registers and connects an agent, and reads its welcome.
func (s *testBridge) join(id string) *agent {
	s.t.Helper()
	var got frame.Credentials
	s.ask(http.MethodPost, "/register", fmt.Sprintf(`{"agent_id":%q}`, id), &got)
	dial := func(ctx context.Context, u *url.URL) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	}
	conn, err := websocket.Dial(context.Background(), dial, "ws"+strings.TrimPrefix(s.url, "http")+"/arc",
		websocket.Options{ReadLimit: 1 << 20, Header: http.Header{"Authorization": {"Bearer " + got.Token}}})
	if err != nil {
		s.t.Fatal(err)
	}
	a := &agent{t: s.t, conn: conn, in: make(chan wire.Value, 1000)}
	go func() {
		defer close(a.in)
		for {
			_, data, err := conn.Read()
			if err != nil {
				return
			}
			v, err := wire.ParseForeign(bytes.Clone(data), frame.MaxDepth, 1<<20)
			if err != nil {
				s.t.Errorf("%s got %q: %v", id, data, err)
			}
			a.in <- v
		}
	}()
	s.t.Cleanup(func() {
		conn.Abort()
		for range a.in {
		}
	})
	if f := a.next(); f.GetStr("type") != "welcome" {
		s.t.Fatalf("%s: the first frame is %s, want welcome", id, f.JSON())
	}
	return a
}

func (a *agent) send(data string) {
	a.t.Helper()
	if err := a.conn.Send(websocket.Text([]byte(data))); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) next() wire.Value {
	a.t.Helper()
	select {
	case v := <-a.in:
		return v
	case <-time.After(patience):
		a.t.Fatal("nothing came")
		return wire.Value{}
	}
}

// quiet fails if anything but the answer to a ping arrives. Frames that were queued before the ping would arrive first.
func (a *agent) quiet() {
	a.t.Helper()
	a.send(`{"to":["relay"],"type":"ping","ref":"quiet"}`)
	if f := a.next(); f.GetStr("type") != "pong" {
		a.t.Fatalf("the agent got %s, want nothing", f.JSON())
	}
}

// linkNode links a node to a relay, as an agent of the relay.
func linkNode(t *testing.T, s *testBridge, m *meshtest.Member, id string) *Bridge {
	t.Helper()
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	t.Cleanup(h.Close)
	mesh, err := m.Attach(LinkKind(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(Config{
		Links: []bridge.Link{{Name: "free", Kind: Kind, URL: "ws" + strings.TrimPrefix(s.url, "http") + "/arc", AgentID: id}},
		Dir:   t.TempDir(), Mesh: mesh, Store: m.Store, HTTP: h,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Connect(LinkKind(), b)
	run(t, b)
	eventually(t, "the link is up", func() bool { return b.Links()[0].State == bridge.LinkUp })
	return b
}

// identifyPeer says, as the owner, which agent of the mesh is behind a peer of the link.
func identifyPeer(t *testing.T, b *Bridge, peer string, agent wire.AgentID) {
	t.Helper()
	e := echo.New()
	owner.Mount(e.Group(""), b.Operations()...)
	req := httptest.NewRequest(http.MethodPut, "/agentrelay/links/free/peers/"+peer, strings.NewReader(fmt.Sprintf(`{"agent_id":%q}`, agent)))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if e.ServeHTTP(w, req); w.Code != http.StatusOK {
		t.Fatalf("PUT peer: %d %s", w.Code, w.Body)
	}
}
