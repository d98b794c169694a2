package mew

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a gateway with its store and listener.
type rig struct {
	t      testing.TB
	dir    string
	g      *Gateway
	srv    *httptest.Server
	dial   websocket.Dialer
	cancel context.CancelFunc
	done   chan struct{}
	st     *bolt.Store
}

func caps(t testing.TB, texts ...string) []capability.Capability {
	t.Helper()
	out := []capability.Capability{}
	for _, s := range texts {
		out = append(out, capOf(t, s))
	}
	return out
}

// capOf reads a capability: JSON, or a bare kind.
func capOf(t testing.TB, s string) capability.Capability {
	t.Helper()
	v := wire.Text(s)
	if strings.HasPrefix(s, "{") {
		var err error
		if v, err = wire.ParseForeign([]byte(s), envelope.MaxDepth, envelope.MaxValues); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	c, err := capability.Parse(v)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return c
}

// lab is a space with an admin, who may everything, and two who may chat and propose.
func lab(t testing.TB) SpaceConfig {
	some := caps(t, "chat", "chat/*", "mcp/proposal", "mcp/withdraw", "reasoning/*", "stream/*", "participant/*")
	return SpaceConfig{ID: "lab", Participants: []Participant{
		{Name: "admin", Tokens: []string{"admin-token"}, Capabilities: caps(t, "*")},
		{Name: "alice", Tokens: []string{"alice-token"}, Capabilities: some},
		{Name: "bob", Tokens: []string{"bob-token"}, Capabilities: some},
	}}
}

func start(t testing.TB, spaces ...SpaceConfig) *rig {
	t.Helper()
	return startWith(t, t.TempDir(), GatewayConfig{Spaces: spaces})
}

func startWith(t testing.TB, dir string, cfg GatewayConfig) *rig {
	t.Helper()
	return startOn(t, dir, cfg, nil)
}

// startOn serves on l; nil is a socket.
func startOn(t testing.TB, dir string, cfg GatewayConfig, l *pipes) *rig {
	t.Helper()
	r := &rig{dial: plainDial, t: t, dir: dir, done: make(chan struct{})}
	var err error
	if r.st, err = bolt.Open(t.Context(), filepath.Join(dir, "mew.db"), bolt.Config{}); err != nil {
		t.Fatal(err)
	}
	cfg.Records, cfg.PublicURL = r.st.Records(), "ws://gateway.example"
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if r.g, err = NewGateway(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		if err := r.g.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	r.srv = httptest.NewUnstartedServer(r.g)
	if l != nil {
		r.srv.Listener.Close()
		r.srv.Listener, r.dial = l, l.Dial
	}
	r.srv.Start()
	t.Cleanup(r.stop)
	return r
}

// pipes is a listener in memory, for a synctest bubble.
type pipes struct {
	c    chan net.Conn
	done chan struct{}
	once sync.Once
}

func newPipes() *pipes { return &pipes{c: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.c:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (p *pipes) Dial(ctx context.Context, _ *url.URL) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.c <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *rig) stop() {
	if r.st == nil {
		return
	}
	r.cancel()
	<-r.done
	r.srv.Close()
	r.srv.Client().CloseIdleConnections()
	if err := r.st.Close(); err != nil {
		r.t.Error(err)
	}
	r.st = nil
}

func (r *rig) ws(path string) string { return "ws" + strings.TrimPrefix(r.srv.URL, "http") + path }

// player is a client on one connection.
type player struct {
	t    testing.TB
	conn *websocket.Conn
}

func plainDial(ctx context.Context, u *url.URL) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
}

// open connects without a word; token may be empty.
func (r *rig) open(path, token string) *player {
	r.t.Helper()
	h := http.Header{}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	conn, err := websocket.Dial(r.t.Context(), r.dial, r.ws(path), websocket.Options{Header: h})
	if err != nil {
		r.t.Fatal(err)
	}
	p := &player{r.t, conn}
	r.t.Cleanup(p.quit)
	return p
}

// join connects with a header and takes the welcome.
func (r *rig) join(token string) *player {
	r.t.Helper()
	p := r.open("/ws", token)
	p.want("system/welcome")
	return p
}

func (p *player) quit() {
	p.conn.Abort()
	finish(p.conn)
}

func (p *player) send(texts ...string) {
	p.t.Helper()
	for _, s := range texts {
		if err := p.conn.Send(websocket.Text([]byte(s))); err != nil {
			p.t.Fatalf("send %s: %v", s, err)
		}
	}
}

// next returns the next message as text.
func (p *player) next() (websocket.Type, string) {
	p.t.Helper()
	late := time.AfterFunc(20*time.Second, p.conn.Abort)
	defer late.Stop()
	typ, data, err := p.conn.Read()
	if err != nil {
		p.t.Fatalf("read: %v", err)
	}
	return typ, string(data)
}

func parsed(t testing.TB, s string) wire.Value {
	t.Helper()
	v, err := wire.ParseForeign([]byte(s), envelope.MaxDepth, 1<<20)
	if err != nil {
		t.Fatalf("%v: %.300s", err, s)
	}
	return v
}

// want takes the next envelope, which must be of this kind.
func (p *player) want(kind string) wire.Value {
	p.t.Helper()
	_, s := p.next()
	v := parsed(p.t, s)
	if v.GetStr("kind") != kind {
		p.t.Fatalf("got %s, want a %s", s, kind)
	}
	return v
}

// until skips to the next envelope of a kind.
func (p *player) until(kind string) wire.Value {
	p.t.Helper()
	for {
		_, s := p.next()
		if s == "" || s[0] == '#' {
			continue
		}
		if v := parsed(p.t, s); v.GetStr("kind") == kind {
			return v
		}
	}
}

// fence makes sure that everything sent before was handled: it chats and waits for the echo. What comes before it
// is returned.
func (p *player) fence() (before []string) {
	p.t.Helper()
	id := envelope.NewID()
	p.send(`{"id":"` + id + `","kind":"chat","payload":{"text":"fence"}}`)
	for {
		_, s := p.next()
		if strings.Contains(s, id) {
			return before
		}
		before = append(before, s)
	}
}

// closed reads to the end, which must be the peer's close with this code. It returns what came before.
func (p *player) closed(code int) (before []string) {
	p.t.Helper()
	late := time.AfterFunc(20*time.Second, p.conn.Abort)
	defer late.Stop()
	for {
		_, data, err := p.conn.Read()
		if err == nil {
			before = append(before, string(data))
			continue
		}
		ce, ok := errors.AsType[*websocket.CloseError](err)
		if !ok || ce.Code != code || !ce.Remote {
			p.t.Fatalf("the connection ended with %v, want a close with %d", err, code)
		}
		return before
	}
}

// member returns payload.key of an envelope.
func pay(v wire.Value, keys ...string) wire.Value {
	v, _ = v.Get("payload")
	for _, k := range keys {
		v, _ = v.Get(k)
	}
	return v
}

func str(v wire.Value) string { s, _ := v.Str(); return s }

// call makes an HTTP request and returns status and body.
func (r *rig) call(method, path, token, body string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.srv.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.srv.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func (r *rig) post(name, token, body string) (int, string) {
	r.t.Helper()
	return r.call("POST", "/participants/"+name+"/messages", token, body)
}
