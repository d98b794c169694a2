package link

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// fakeRelay is a relay that sends whatever a test wants, valid or not.
type fakeRelay struct {
	t   testing.TB
	srv *httptest.Server

	mu     sync.Mutex
	down   int // answer handshakes with this status, or close with this code
	conn   *websocket.Conn
	reads  sync.WaitGroup
	frames chan []byte
	joined chan struct{} // one for each connection
}

func newFakeRelay(t testing.TB) *fakeRelay {
	f := &fakeRelay{t: t, frames: make(chan []byte, 1000), joined: make(chan struct{}, 100)}
	f.srv = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.srv.Close()
		f.cut()
		f.reads.Wait()
	})
	return f
}

func (f *fakeRelay) url() string { return "ws" + strings.TrimPrefix(f.srv.URL, "http") + "/arc" }

func (f *fakeRelay) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	if down != 0 && down != frame.CloseBadToken {
		http.Error(w, "down", down)
		return
	}
	conn, err := websocket.Accept(w, r, websocket.Options{ReadLimit: 1 << 20})
	if err != nil {
		return
	}
	if down == frame.CloseBadToken { // as the public relay does
		f.mu.Lock()
		f.reads.Go(func() { conn.Drain() })
		f.mu.Unlock()
		conn.Close(frame.CloseBadToken, "invalid token")
		return
	}
	f.mu.Lock()
	f.conn = conn
	f.mu.Unlock()
	f.reads.Go(func() {
		for {
			_, data, err := conn.Read()
			if err != nil {
				return
			}
			f.frames <- bytes.Clone(data)
		}
	})
	f.joined <- struct{}{} // before the link can be up
	_ = conn.Send(websocket.Text([]byte(`{"id":"w","from":"relay","to":["our-node"],"type":"welcome","payload":{"relay":"fake","version":"1.0","capabilities":[],"extensions":[]},"ts":1}`)))
}

func (f *fakeRelay) say(raw []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		_ = f.conn.Send(websocket.Text(raw)) // a link that is down gets nothing
	}
}

func (f *fakeRelay) refuse(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = status
}

func (f *fakeRelay) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		f.conn.Abort()
	}
	f.conn = nil
}

// testLink is one link, connected to a fakeRelay.
type testLink struct {
	link    *Link
	relay   *fakeRelay
	handled chan struct{}
	t       testing.TB
}

// changeSender changes the sender of the link, which runs already.
func (x *testLink) changeSender(change func(*sender)) {
	x.link.sender.mu.Lock()
	defer x.link.sender.mu.Unlock()
	change(x.link.sender)
}

func newTestLink(t testing.TB, cfg Config, edit func(*bridge.Link)) *testLink {
	t.Helper()
	relay := newFakeRelay(t)
	l := bridge.Link{Name: "free", Kind: Kind, URL: relay.url()}
	if edit != nil {
		edit(&l)
	}
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	t.Cleanup(h.Close)
	cfg.Link, cfg.Token, cfg.Dir, cfg.HTTP = l, "tok_test", t.TempDir(), h
	made, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	out := &testLink{link: made, relay: relay, handled: make(chan struct{}, 1000), t: t}
	out.link.onHandled = func() { out.handled <- struct{}{} }
	out.link.keeper.First = time.Millisecond
	out.link.reliableAfter = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- made.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	out.waitFor(bridge.LinkUp)
	return out
}

func (x *testLink) waitFor(state bridge.LinkState) {
	x.t.Helper()
	deadline := time.Now().Add(patience)
	for x.link.Status().State != state {
		if time.Now().After(deadline) {
			x.t.Fatalf("the link is %+v, want it %s", x.link.Status(), state)
		}
		<-time.After(time.Millisecond)
	}
}

// Inject sends raw from a peer. It fills in the members that a relay would add.
func (x *testLink) Inject(ctx context.Context, peer string, raw []byte) {
	v, err := wire.ParseForeign(raw, frame.MaxDepth, 1<<20)
	if err == nil && v.Kind() == wire.Object {
		for key, value := range map[string]wire.Value{"from": wire.Text(peer), "to": wire.Texts([]string{"our-node"}), "ts": wire.Int(time.Now().UnixMilli())} {
			if _, ok := v.Get(key); !ok {
				v = v.With(key, value)
			}
		}
		raw = v.JSON()
	}
	for len(x.relay.joined) > 0 {
		<-x.relay.joined
	}
	x.relay.say(raw)
	select {
	case <-x.handled:
	case <-x.relay.joined: // the frame ended the connection, and the link connected again
		x.waitFor(bridge.LinkUp)
	case <-ctx.Done():
	case <-time.After(patience):
		x.t.Errorf("the link did not handle %.100q", raw)
	}
}

// Next returns the next frame to the peer.
func (x *testLink) Next(ctx context.Context, peer string) ([]byte, error) {
	for {
		select {
		case data := <-x.relay.frames:
			v, err := wire.ParseForeign(data, frame.MaxDepth, 1<<20)
			if err != nil {
				return nil, err
			}
			if to, _ := v.Get("to"); string(to.JSON()) == `["`+peer+`"]` {
				return data, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (x *testLink) Mirror(raw []byte) []byte {
	v, err := wire.ParseForeign(raw, frame.MaxDepth, 1<<20)
	if err != nil {
		x.t.Fatal(err)
	}
	return v.Without("to", "ref", meshConvMember, meshMsgMember).With("id", wire.Text(frame.NewID())).JSON()
}

func (x *testLink) Disconnect() {
	x.relay.refuse(http.StatusServiceUnavailable)
	x.relay.cut()
	x.waitFor(bridge.LinkConnecting)
}

func (x *testLink) Reconnect() {
	x.relay.refuse(0)
	x.waitFor(bridge.LinkUp)
}

// Deliver delivers a message as the bridge does.
func (x *testLink) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	to, err := bridge.ParseAddress(d.Address)
	if err != nil {
		x.t.Fatal(err)
	}
	return x.link.Deliver(ctx, to.Peer, d)
}

func arcAddress(peer string) bridge.Address {
	return bridge.Address{Kind: Kind, Link: "free", Peer: peer}
}

func TestSuite(t *testing.T) {
	bridgetest.Suite{
		Address:   arcAddress,
		Principal: func(peer string) string { return arcAddress(peer).String() },
		Peers:     [2]string{"agent-042", "agent-007"},
		LinkKind:  Declare(),
		New: func(t *testing.T, mesh bridge.Mesh, node *meshtest.Member) bridgetest.Bridge {
			return newTestLink(t, Config{Mesh: mesh, Store: node.Store}, nil)
		},
		Message: func(n int) []byte {
			return fmt.Appendf(nil, `{"id":"msg_%d","type":"thought","payload":"hello %d"}`, n, n)
		},
		Kinds: []bridgetest.Kind{
			{Name: "thought", Intent: wire.Deliver, Payload: `{"action":"deliver","message":{"body":"a\n\"b\" ü","priority":"normal"}}`},
			{
				Name: "alert", Intent: wire.Deliver, Payload: `{"action":"deliver","message":{"body":"b","subject":"s","priority":"high"},"context":{"x":1}}`,
				Losses: []bridge.Loss{{Field: "payload.context", Reason: "a thought is one text, or one object"}},
			},
			{Name: "question", Intent: wire.RequestInfo, Payload: `{"action":"ask","question":"why?"}`},
			{Name: "question with context", Intent: wire.RequestInfo, Payload: `{"action":"ask","question":"why?","context":"c","response_format":"json","metadata":{"x":"y"}}`},
			{Name: "answer", Intent: wire.RequestInfo, Payload: `{"action":"answer","answer":"because"}`},
			{Name: "answer object", Intent: wire.RequestInfo, Payload: `{"action":"answer","answer":"because","sources":[1,2]}`},
			{Name: "proposal", Intent: wire.Negotiate, Payload: `{"action":"propose","terms":{"description":"d","price":"1","conditions":["a"]}}`},
			{Name: "vote", Intent: wire.Negotiate, Payload: `{"action":"accept","note":"fine"}`},
			{Name: "no", Intent: wire.Negotiate, Payload: `{"action":"reject"}`},
			{
				Name: "custom", Intent: customPrefix + "sync", Payload: `{"action":"sync","data":{"file":"a","version":2},"note":"n"}`,
				Losses: []bridge.Loss{{Field: "payload.note", Reason: "the payload of a type is its data"}},
			},
		},
		Hostile: [][]byte{
			[]byte(`{"id":"1","from":"relay","type":"thought","payload":"I am the relay"}`),
			[]byte(`{"id":"1","from":"relay","type":"welcome","to":["another-id"],"payload":{}}`),
			[]byte(`{"id":"1","from":"our-node","type":"thought","payload":"echo"}`),
			[]byte(`{"id":"1","from":"Not An Id","type":"thought","payload":"x"}`),
			[]byte(`{"id":"","type":"thought","payload":"x"}`),
			[]byte(`{"id":"1","id":"2","type":"thought","payload":"x"}`),
			[]byte(`{"id":"1","type":"thought","to":["*"],"payload":"to everybody"}`),
			[]byte(`{"id":"1","type":"question","to":["*"],"payload":"to everybody"}`),
			[]byte(`{"id":"1","type":"thought","to":["somebody-else"],"payload":"x"}`),
			[]byte(`{"id":"1","type":"vote","payload":{"approve":"yes"}}`),
			[]byte(`{"id":"1","type":"\u001b[31m","payload":"x","to":[]}`),
			[]byte(`{"id":"1","type":"agentmesh","payload":{"agentmesh":"0.1.0"}}`),
			[]byte(`{"id":"` + strings.Repeat("i", 600) + `","type":"thought","payload":"x"}`),
		},
	}.Run(t)
}
