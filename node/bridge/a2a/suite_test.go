package a2a_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// peerAgent is another A2A agent as a test plays it: it has a card, and answers messages as answer says.
type peerAgent struct {
	*httptest.Server
	binding string
	answer  func(method string, params wire.Value) (result string, code int) // code is of JSON-RPC, or an HTTP status
	down    atomic.Bool
	token   string                  // that it requires; "" for none
	card    func(url string) string // changed with setCard

	mu    sync.Mutex
	calls []string // methods
	got   chan wire.Value
}

func newPeerAgent(t *testing.T) *peerAgent {
	p := &peerAgent{binding: "JSONRPC", got: make(chan wire.Value, 100)}
	p.answer = func(method string, params wire.Value) (string, int) {
		switch method {
		case "SendMessage":
			m, _ := params.Get("message")
			return fmt.Sprintf(`{"task":{"id":"task-%s","contextId":%q,"status":{"state":"TASK_STATE_WORKING"}}}`, m.GetStr("messageId"), m.GetStr("contextId")), 0
		case "GetTask":
			return fmt.Sprintf(`{"id":%q,"contextId":"c","status":{"state":"TASK_STATE_WORKING"}}`, params.GetStr("id")), 0
		}
		return "", -32601
	}
	p.card = func(url string) string {
		return `{"name":"Peer","description":"d","version":"1","capabilities":{},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"skills":[],` +
			`"supportedInterfaces":[{"url":"` + url + `/rpc","protocolBinding":"` + p.binding + `","protocolVersion":"1.0"}],"securityRequirements":[{"schemes":{"b":{}}}]}`
	}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

// setAnswer changes the answers while the bridge may ask.
func (p *peerAgent) setAnswer(answer func(method string, params wire.Value) (string, int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// setCard changes the card, which the bridge may fetch at any time.
func (p *peerAgent) setCard(card func(url string) string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.card = card
}

func (p *peerAgent) serve(w http.ResponseWriter, r *http.Request) {
	if p.down.Load() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.HasPrefix(r.URL.Path, "/.well-known/") {
		if r.URL.Path != "/.well-known/agent-card.json" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		p.mu.Lock()
		card := p.card
		p.mu.Unlock()
		_, _ = io.WriteString(w, card(p.URL))
		return
	}
	if p.token != "" && r.Header.Get("Authorization") != "Bearer "+p.token {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":"Unauthorized; send a token"}`)
		return
	}
	data, _ := io.ReadAll(r.Body)
	v, _ := wire.Parse(data)
	method, params := v.GetStr("method"), at(v, "params")
	if p.binding == "HTTP+JSON" {
		switch path := strings.TrimPrefix(r.URL.Path, "/rpc"); {
		case path == "/message:send":
			method, params = "SendMessage", v
		case strings.HasSuffix(path, ":cancel"):
			method, params = "CancelTask", wire.Obj(wire.TextField("id", strings.TrimSuffix(strings.TrimPrefix(path, "/tasks/"), ":cancel")))
		case strings.HasSuffix(path, ":subscribe"):
			method = "SubscribeToTask"
		case path == "/tasks":
			method = "ListTasks"
		default:
			length, _ := wire.Parse([]byte(r.URL.Query().Get("historyLength")))
			method, params = "GetTask", wire.Obj(wire.TextField("id", strings.TrimPrefix(path, "/tasks/")), wire.Field("historyLength", length))
		}
	}
	p.mu.Lock()
	p.calls = append(p.calls, method)
	answer := p.answer
	p.mu.Unlock()
	result, code := answer(method, params)
	if method == "SendMessage" && code == 0 {
		p.got <- params
	}
	switch {
	case code >= 400:
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"a fault of the server"}}`, code)
	case code != 0 && p.binding == "JSONRPC":
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"refused"}}`, code)
	case code != 0:
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":{"code":400,"status":"FAILED_PRECONDITION","message":"refused"}}`)
	case p.binding == "JSONRPC":
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":%s}`, result)
	default:
		_, _ = io.WriteString(w, result)
	}
}

func (p *peerAgent) count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range p.calls {
		if c == method {
			n++
		}
	}
	return n
}

// suiteBridge is a bridge between the node of the suite and two agents, each behind a link with its token.
type suiteBridge struct {
	*a2a.Bridge
	t      *testing.T
	base   string
	tokens map[string]string
	peers  map[string]*peerAgent
	n      atomic.Int64
}

// Inject implements [bridgetest.Bridge]. A broken link cannot carry requests to us either.
func (b *suiteBridge) Inject(ctx context.Context, peer string, raw []byte) {
	req, err := http.NewRequestWithContext(ctx, "POST", b.base+"/message:send", strings.NewReader(string(raw)))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+b.tokens[peer])
	resp, err := http.DefaultClient.Do(req)
	if err != nil { // the server closes the connection of a body that is too large
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}

func (b *suiteBridge) Next(ctx context.Context, peer string) ([]byte, error) {
	select {
	case v := <-b.peers[peer].got:
		return v.JSON(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *suiteBridge) Mirror(raw []byte) []byte {
	v := parse(b.t, string(raw))
	m, _ := v.Get("message")
	return wire.Obj(
		wire.Field("message", m.With("messageId", wire.Text(fmt.Sprint("mirror-", b.n.Add(1))))),
		wire.Field("configuration", parse(b.t, `{"returnImmediately":true}`)),
	).JSON()
}

func (b *suiteBridge) Disconnect() {
	for _, p := range b.peers {
		p.down.Store(true)
	}
}

func (b *suiteBridge) Reconnect() {
	for _, p := range b.peers {
		p.down.Store(false)
	}
}

// TestSuite runs the tests of all bridges.
func TestSuite(t *testing.T) {
	t.Parallel()
	address := func(peer string) bridge.Address { return bridge.Address{Kind: "a2a", Link: peer, Peer: "agent"} }
	bridgetest.Suite{
		Address:   address,
		Principal: func(peer string) string { return address(peer).String() },
		LinkKind:  a2a.LinkKind(),
		Peers:     [2]string{"claw", "reef"},
		New: func(t *testing.T, mesh bridge.Mesh, node *meshtest.Member) bridgetest.Bridge {
			edge := httpapi.New(httpapi.Config{Local: true})
			srv := httptest.NewServer(edge.Handler())
			out := client.NewHTTP(client.HTTPConfig{Local: true})
			b := &suiteBridge{t: t, base: srv.URL + "/a2a/v1", tokens: map[string]string{}, peers: map[string]*peerAgent{}}
			cfg := a2a.Config{Serve: true, URL: srv.URL, Local: true, Mesh: mesh, Store: node.Store, HTTP: out}
			for _, name := range []string{"claw", "reef"} {
				b.peers[name] = newPeerAgent(t)
				cfg.Links = append(cfg.Links, bridge.Link{Name: name, Kind: "a2a", URL: b.peers[name].URL})
			}
			var err error
			if b.Bridge, err = a2a.New(cfg); err != nil {
				t.Fatal(err)
			}
			b.Bridge.Mount(edge.Echo())
			for name := range b.peers {
				token, err := b.Bridge.AddToken(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				b.tokens[name] = token
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- b.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				srv.CloseClientConnections()
				srv.Close()
				out.Close()
			})
			return b
		},
		Message: func(n int) []byte {
			return []byte(message(fmt.Sprint("m", n), "", fmt.Sprint("text ", n), later))
		},
		Kinds: []bridgetest.Kind{
			{Name: "text", Intent: wire.Deliver, Payload: `{"action":"deliver","message":{"body":"hello","reply_requested":true}}`},
			{Name: "text without a reply", Intent: wire.Deliver, Payload: `{"action":"deliver","message":{"body":"hello","subject":"s","priority":"high"}}`},
			{Name: "files", Intent: wire.Deliver, Payload: `{"action":"deliver","message":{"body":"see","reply_requested":true},"parts":[{"text":"see"},{"raw":"aGk=","filename":"a.txt","media_type":"text/plain"},{"url":"https://x.example/"},{"data":{"n":1}}]}`},
			{Name: "appointment", Intent: wire.Schedule, Payload: `{"action":"propose","event":{"title":"Tea","duration":"30m","proposed_times":["2030-01-31T10:00:00Z"]}}`},
			{Name: "question", Intent: wire.RequestInfo, Payload: `{"action":"ask","question":"why?","context":"c"}`},
			{Name: "terms", Intent: wire.Negotiate, Payload: `{"action":"propose","terms":{"description":"d","price":"1"}}`},
			{Name: "handoff", Intent: wire.Handoff, Payload: `{"action":"request_human","reason":"r"}`},
			{Name: "custom", Intent: "com.example.invoice", Payload: `{"total":12.5,"lines":[{"n":1}]}`},
		},
		Hostile: [][]byte{
			[]byte(`{"message":{"messageId":"h1","role":"ROLE_AGENT","parts":[{"text":"x"}]}}`),
			[]byte(`{"message":{"messageId":"h2","role":"ROLE_USER","parts":[]}}`),
			[]byte(`{"message":{"messageId":"h3","role":"ROLE_USER","parts":[{"text":"x","url":"https://x/"}]}}`),
			[]byte(`{"message":{"messageId":"h4","role":"ROLE_USER","taskId":"not-mine","parts":[{"text":"x"}]}}`),
			[]byte(`{"message":{"messageId":"","role":"ROLE_USER","parts":[{"text":"x"}]}}`),
			[]byte(`{"message":{"messageId":"h5","role":"user","kind":"message","parts":[{"kind":"text","text":"x"}]}}`),
			[]byte(`{"message":{"messageId":"h6","role":"ROLE_USER","metadata":{"urn:agentmesh:a2a:v1":{"intent":"mesh.schedule"}},"parts":[{"data":{"action":"propose"}}]}}`),
			[]byte(`{"message":{"messageId":"h7","role":"ROLE_USER","parts":[{"text":"x"}]},"configuration":{"taskPushNotificationConfig":{"url":"http://10.0.0.1/"}}}`),
		},
	}.Run(t)
}
