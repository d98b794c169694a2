package a2a_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// host is a node with an A2A bridge and a listener.
type host struct {
	t      *testing.T
	mesh   *meshtest.Mesh
	node   *meshtest.Member
	bridge *a2a.Bridge
	url    string // of the listener
	base   string // of both interfaces
	owner  http.Handler
	tokens map[string]string
	stop   func()
	cfg    func(*a2a.Config)
	wrap   func(bridge.Mesh) bridge.Mesh // nil: none
}

// serve starts a node with an A2A bridge. The node hands its messages to agent, or to the inbox if agent is nil.
func serve(t *testing.T, agent hook.Handler, setNode func(*node.Config), setBridge func(*a2a.Config)) *host {
	t.Helper()
	return serveAs(t, "home", agent, setNode, setBridge)
}

func serveAs(t *testing.T, name string, agent hook.Handler, setNode func(*node.Config), setBridge func(*a2a.Config)) *host {
	t.Helper()
	h := &host{t: t, mesh: meshtest.New(t), tokens: make(map[string]string), cfg: setBridge}
	h.node = h.mesh.Node(name, h.config(agent, setNode))
	h.start()
	return h
}

func (h *host) config(agent hook.Handler, set func(*node.Config)) func(*node.Config) {
	return func(c *node.Config) {
		c.Rates = acl.Rates{}
		if agent != nil {
			c.Routes = []node.Route{{Pattern: "*", Name: "agent", Handler: agent, Repeatable: true, Replies: true}}
		}
		if set != nil {
			set(c)
		}
	}
}

// restart starts node and bridge again over the same store, as after the restart of a process.
func (h *host) restart(agent hook.Handler, set func(*node.Config)) {
	h.t.Helper()
	h.stop()
	h.node = h.mesh.Restart(h.node, h.config(agent, set))
	h.start()
}

func (h *host) start() {
	h.t.Helper()
	edge := httpapi.New(httpapi.Config{Local: true})
	srv := httptest.NewServer(edge.Handler())
	out := client.NewHTTP(client.HTTPConfig{Local: true})
	h.url, h.base = srv.URL, srv.URL+"/a2a/v1"
	cfg := a2a.Config{
		Serve: true, URL: srv.URL, Version: "test", Local: true, Addresses: edge.Addresses(), Store: h.node.Store, HTTP: out,
		Tokens: make(map[string]client.Credential), Logger: slog.New(slog.DiscardHandler),
	}
	if h.cfg != nil {
		h.cfg(&cfg)
	}
	var err error
	if cfg.Mesh, err = h.node.Attach(a2a.LinkKind(), cfg.Links); err != nil {
		h.t.Fatal(err)
	}
	if h.wrap != nil {
		cfg.Mesh = h.wrap(cfg.Mesh)
	}
	if h.bridge, err = a2a.New(cfg); err != nil {
		h.t.Fatal(err)
	}
	h.node.Connect(a2a.LinkKind(), h.bridge)
	h.bridge.Mount(edge.Echo())
	private := httpapi.NewOwner(httpapi.OwnerConfig{})
	owner.Mount(private.Group(), h.bridge.Operations()...)
	h.owner = private.Handler()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.bridge.Run(ctx); err != nil {
			h.t.Errorf("run: %v", err)
		}
	}()
	stopped := false
	h.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		<-done
		srv.CloseClientConnections()
		srv.Close()
		out.Close()
	}
	h.t.Cleanup(h.stop)
}

// token returns the token of a caller.
func (h *host) token(name string) string {
	h.t.Helper()
	if h.tokens[name] == "" {
		rec := httptest.NewRecorder()
		h.owner.ServeHTTP(rec, httptest.NewRequest("POST", "/owner/a2a/tokens/"+name, nil))
		v := parse(h.t, rec.Body.String())
		if h.tokens[name] = v.GetStr("token"); rec.Code != 200 || h.tokens[name] == "" {
			h.t.Fatalf("token of %s: %d %s", name, rec.Code, rec.Body)
		}
	}
	return h.tokens[name]
}

func parse(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%.300q: %v", text, err)
	}
	return v
}

// at returns the value at a path of members and, for arrays, of "0" for the first element.
func at(v wire.Value, path string) wire.Value {
	for key := range strings.SplitSeq(path, ".") {
		if v.Kind() == wire.Array {
			if v.Len() == 0 {
				return wire.Value{}
			}
			v = v.At(int(key[0] - '0'))
			continue
		}
		v, _ = v.Get(key)
	}
	return v
}

func text(v wire.Value, path string) string { s, _ := at(v, path).Str(); return s }

// request sends a request and returns status, header and body.
func (h *host) request(caller, method, url, body string, header ...string) (int, http.Header, string) {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if caller != "" {
		req.Header.Set("Authorization", "Bearer "+h.token(caller))
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(data)
}

// rpc calls a method of A2A over JSON-RPC and returns the answer.
func (h *host) rpc(caller, method, params string) wire.Value {
	h.t.Helper()
	_, _, body := h.request(caller, "POST", h.base, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, "A2A-Version", "1.0")
	return parse(h.t, body)
}

// send sends a text and returns the result.
func (h *host) send(caller, id, more, text string) wire.Value {
	h.t.Helper()
	return h.rpc(caller, "SendMessage", message(id, more, text, ""))
}

// message returns the parameters of SendMessage. more holds further members of the message, and configuration the
// members of its configuration.
func message(id, more, text, configuration string) string {
	return `{"message":{"messageId":"` + id + `","role":"ROLE_USER","parts":[{"text":"` + text + `"}]` + more + `},"configuration":{` + configuration + `}}`
}

const later = `"returnImmediately":true`

func (h *host) get(caller, task string) wire.Value {
	h.t.Helper()
	return h.rpc(caller, "GetTask", `{"id":"`+task+`"}`)
}

// await waits until a task has a state.
func (h *host) await(caller, task, state string) wire.Value {
	h.t.Helper()
	var v wire.Value
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if v = h.get(caller, task); text(v, "result.status.state") == state {
			return v
		}
	}
	h.t.Fatalf("task %s is %s, want %s", task, v.JSON(), state)
	return v
}

// events opens a stream and returns its events until it ends, or until more returns false.
func (h *host) events(caller, method, url, body string, more func(wire.Value) bool) []wire.Value {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("A2A-Version", "1.0")
	if caller != "" {
		req.Header.Set("Authorization", "Bearer "+h.token(caller))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		data, _ := io.ReadAll(resp.Body)
		h.t.Fatalf("the stream is %s: %s", kind, data)
	}
	var out []wire.Value
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		out = append(out, parse(h.t, string(data)))
		if more != nil && !more(out[len(out)-1]) {
			break
		}
	}
	return out
}

// ask returns the only pending question to the owner.
func (h *host) ask() acl.Ask {
	h.t.Helper()
	mesh, err := h.node.Attach(a2a.LinkKind(), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		asks, _, err := mesh.Asks().List(h.t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err == nil && len(asks) == 1 {
			return asks[0]
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%d questions wait for the owner, %v, want 1", len(asks), err)
		}
	}
}

func (h *host) decide(choice acl.Choice) {
	h.t.Helper()
	mesh, err := h.node.Attach(a2a.LinkKind(), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	ask := h.ask()
	if _, err := mesh.Asks().Decide(h.t.Context(), ask.ID, ask.Hash, choice, "test", time.Now()); err != nil {
		h.t.Fatal(err)
	}
}

// agent is a hook that a test writes as a function.
type agent func(ctx context.Context, c hook.Call) (hook.Answer, error)

func (f agent) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) { return f(ctx, c) }

// payload returns an answer with a payload.
func payload(t testing.TB, text string) hook.Answer {
	v := parse(t, text)
	return hook.Answer{Payload: &v}
}

// echo answers every message with its text.
func echo(t testing.TB) agent {
	return func(_ context.Context, c hook.Call) (hook.Answer, error) {
		v := parse(t, string(c.Payload))
		reply := wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", "you said: "+text(v, "message.body")))))
		return hook.Answer{Payload: &reply}, nil
	}
}

func approval(c *node.Config) { c.Policy = acl.Policy{Mode: acl.Approval} }

var _ bridge.Service = (*a2a.Bridge)(nil)

func limited(c *node.Config) {
	c.Rates = acl.Rates{NewConversations: 5, TokenContexts: 5, Conversation: 5, Total: 50}
}
