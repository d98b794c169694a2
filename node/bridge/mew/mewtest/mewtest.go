// Package mewtest starts a gateway in a test and plays MEW clients. It uses the gateway only as an HTTP handler, so
// tests inside the gateway package can use it too.
package mewtest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// Gateway is a gateway that a rig serves.
type Gateway interface {
	http.Handler
	Run(ctx context.Context) error
}

// Rig is a running gateway with its store and listener.
type Rig[G Gateway] struct {
	T      testing.TB
	dir    string
	G      G // the gateway
	Server *httptest.Server
	Dial   websocket.Dialer // connects to Server
	Cancel context.CancelFunc
	Done   chan struct{} // closed when the gateway has stopped
	Store  *bolt.Store
}

// NewRig opens a store in dir, calls open to make a gateway with that store, and serves the gateway: on l, or on a
// socket if l is nil.
func NewRig[G Gateway](t testing.TB, dir string, l *Pipes, open func(records store.Records) (G, error)) *Rig[G] {
	t.Helper()
	r := &Rig[G]{Dial: PlainDial, T: t, dir: dir, Done: make(chan struct{})}
	var err error
	if r.Store, err = bolt.Open(t.Context(), filepath.Join(dir, "mew.db"), bolt.Config{}); err != nil {
		t.Fatal(err)
	}
	if r.G, err = open(r.Store.Records()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.Cancel = cancel
	go func() {
		defer close(r.Done)
		if err := r.G.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	r.Server = httptest.NewUnstartedServer(r.G)
	if l != nil {
		r.Server.Listener.Close()
		r.Server.Listener, r.Dial = l, l.Dial
	}
	r.Server.Start()
	t.Cleanup(r.Stop)
	return r
}

// Caps parses capabilities; see [Cap].
func Caps(t testing.TB, texts ...string) []capability.Capability {
	t.Helper()
	out := []capability.Capability{}
	for _, s := range texts {
		out = append(out, Cap(t, s))
	}
	return out
}

// Cap parses a capability, which is a JSON object or only a kind.
func Cap(t testing.TB, s string) capability.Capability {
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

// Pipes is a listener in memory, for a synctest bubble.
type Pipes struct {
	c    chan net.Conn
	done chan struct{}
	once sync.Once
}

// NewPipes returns a listener, for [NewRig].
func NewPipes() *Pipes { return &Pipes{c: make(chan net.Conn), done: make(chan struct{})} }

func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.c:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *Pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *Pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// Dial connects to the listener, whatever the URL.
func (p *Pipes) Dial(ctx context.Context, _ *url.URL) (net.Conn, error) {
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

// Stop stops the gateway and closes the store. It also runs at the end of the test.
func (r *Rig[G]) Stop() {
	if r.Store == nil {
		return
	}
	r.Cancel()
	<-r.Done
	r.Server.Close()
	r.Server.Client().CloseIdleConnections()
	if err := r.Store.Close(); err != nil {
		r.T.Error(err)
	}
	r.Store = nil
}

// URL returns the WebSocket URL of a path.
func (r *Rig[G]) URL(path string) string {
	return "ws" + strings.TrimPrefix(r.Server.URL, "http") + path
}

// Player is a client on one connection.
type Player struct {
	t    testing.TB
	Conn *websocket.Conn
}

// NewPlayer returns a player on conn, which is closed when the test ends.
func NewPlayer(t testing.TB, conn *websocket.Conn) *Player {
	p := &Player{t, conn}
	t.Cleanup(p.Quit)
	return p
}

// PlainDial is a [websocket.Dialer] without TLS.
func PlainDial(ctx context.Context, u *url.URL) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
}

// Open connects and sends nothing. token may be empty.
func (r *Rig[G]) Open(path, token string) *Player {
	r.T.Helper()
	h := http.Header{}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	conn, err := websocket.Dial(r.T.Context(), r.Dial, r.URL(path), websocket.Options{Header: h})
	if err != nil {
		r.T.Fatal(err)
	}
	return NewPlayer(r.T, conn)
}

// Join connects with a token in the header and reads the welcome.
func (r *Rig[G]) Join(token string) *Player {
	r.T.Helper()
	p := r.Open("/ws", token)
	p.Want("system/welcome")
	return p
}

// Quit ends the connection without a close.
func (p *Player) Quit() {
	p.Conn.Abort()
	p.Conn.Drain()
}

// Send sends each text as a message.
func (p *Player) Send(texts ...string) {
	p.t.Helper()
	for _, s := range texts {
		if err := p.Conn.Send(websocket.Text([]byte(s))); err != nil {
			p.t.Fatalf("send %s: %v", s, err)
		}
	}
}

// Next returns the type and the text of the next message.
func (p *Player) Next() (websocket.Type, string) {
	p.t.Helper()
	timeout := time.AfterFunc(20*time.Second, p.Conn.Abort)
	defer timeout.Stop()
	typ, data, err := p.Conn.Read()
	if err != nil {
		p.t.Fatalf("read: %v", err)
	}
	return typ, string(data)
}

// Parse parses JSON.
func Parse(t testing.TB, s string) wire.Value {
	t.Helper()
	v, err := wire.ParseForeign([]byte(s), envelope.MaxDepth, 1<<20)
	if err != nil {
		t.Fatalf("%v: %.300s", err, s)
	}
	return v
}

// Want returns the next envelope, which must be of this kind.
func (p *Player) Want(kind string) wire.Value {
	p.t.Helper()
	_, s := p.Next()
	v := Parse(p.t, s)
	if v.GetStr("kind") != kind {
		p.t.Fatalf("got %s, want a %s", s, kind)
	}
	return v
}

// Until skips to the next envelope of a kind and returns it.
func (p *Player) Until(kind string) wire.Value {
	p.t.Helper()
	for {
		_, s := p.Next()
		if s == "" || s[0] == '#' {
			continue
		}
		if v := Parse(p.t, s); v.GetStr("kind") == kind {
			return v
		}
	}
}

// Fence waits until everything that was sent before is handled: it sends a chat and waits for its echo. It returns the
// messages that arrived before the echo.
func (p *Player) Fence() (before []string) {
	p.t.Helper()
	id := envelope.NewID()
	p.Send(`{"id":"` + id + `","kind":"chat","payload":{"text":"fence"}}`)
	for {
		_, s := p.Next()
		if strings.Contains(s, id) {
			return before
		}
		before = append(before, s)
	}
}

// AwaitClose reads until the peer closes the connection with this code. It returns the messages that arrived before.
func (p *Player) AwaitClose(code int) (before []string) {
	p.t.Helper()
	timeout := time.AfterFunc(20*time.Second, p.Conn.Abort)
	defer timeout.Stop()
	for {
		_, data, err := p.Conn.Read()
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

// Payload returns the payload of an envelope, or the value in it to which the keys lead.
func Payload(v wire.Value, keys ...string) wire.Value {
	v, _ = v.Get("payload")
	for _, k := range keys {
		v, _ = v.Get(k)
	}
	return v
}

// Text returns a string value, or "" if v is not a string.
func Text(v wire.Value) string { s, _ := v.Str(); return s }

// Call makes an HTTP request and returns status and body.
func (r *Rig[G]) Call(method, path, token, body string) (int, string) {
	r.T.Helper()
	req, err := http.NewRequestWithContext(r.T.Context(), method, r.Server.URL+path, strings.NewReader(body))
	if err != nil {
		r.T.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.Server.Client().Do(req)
	if err != nil {
		r.T.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		r.T.Fatal(err)
	}
	if route, _, _ := strings.Cut(path, "?"); (method == "GET" || method == "POST") && (route == "/participants" || strings.HasSuffix(route, "/messages")) {
		if err := apitest.Compare(req, []byte(body), resp.StatusCode, resp.Header, data); err != nil {
			r.T.Errorf("%s %s answers %d, which openapi.yaml does not describe: %v", method, path, resp.StatusCode, err)
		}
	}
	return resp.StatusCode, string(data)
}

// Post sends an envelope over HTTP as the participant name.
func (r *Rig[G]) Post(name, token, body string) (int, string) {
	r.T.Helper()
	return r.Call("POST", "/participants/"+name+"/messages", token, body)
}

// Get returns a member, or null if it is absent.
func Get(v wire.Value, key string) wire.Value { v, _ = v.Get(key); return v }

// Held sends a join, which the gateway answers with a welcome, and returns the capabilities that the welcome lists.
func (p *Player) Held() string {
	p.t.Helper()
	p.Send(`{"type":"join"}`)
	return string(Payload(p.Until("system/welcome"), "you", "capabilities").JSON())
}

// Key returns the key of the pending proposal with an envelope id.
func Key(t testing.TB, st view.Space, id string) string {
	t.Helper()
	for _, p := range st.Proposals {
		if p.ID == id {
			return p.Key
		}
	}
	t.Fatalf("no proposal %s waits: %+v", id, st.Proposals)
	return ""
}

// FromNode returns the next envelope of a kind that the node sent.
func (p *Player) FromNode(kind string) wire.Value {
	p.t.Helper()
	for {
		v := p.Until(kind)
		if v.GetStr("from") == "node" {
			return v
		}
	}
}

// About returns the first correlation id of an envelope.
func About(v wire.Value) string {
	c, _ := v.Get("correlation_id")
	if c.Len() == 0 {
		return ""
	}
	return Text(c.At(0))
}

// Control sends an envelope to the node and returns the node's answer, which is of the kind answerKind.
func (p *Player) Control(kind, payload, answerKind string) wire.Value {
	p.t.Helper()
	id := envelope.NewID()
	p.Send(`{"id":"` + id + `","kind":"` + kind + `","to":["node"],"payload":` + payload + `}`)
	for {
		if v := p.FromNode(answerKind); About(v) == id {
			return v
		}
	}
}

// Heap returns the bytes in use after a garbage collection.
func Heap() int64 {
	runtime.GC()
	runtime.GC()
	var st runtime.MemStats
	runtime.ReadMemStats(&st)
	return int64(st.HeapAlloc)
}
