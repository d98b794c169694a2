package moltspeak

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

var us = message.Agent{Agent: "me", Org: "home"}

func seedOf(name string) []byte { sum := sha256.Sum256([]byte("test " + name)); return sum[:] }

func keyOf(name string) *signing.PrivateKey { return signing.NewEd25519FromSeed(seedOf(name)) }
func boxOf(name string) *signing.BoxKey     { return signing.NewBoxKey(seedOf(name)) }

func self(name string) message.Agent {
	a, _ := message.ParseName(name)
	a.Key, a.EncKey = message.Ed25519Prefix+keyOf(name).Public().Text64(), "x25519:"+boxOf(name).Public().String()
	return a
}

// rig is a bridge with foreign agents that the test plays.
type rig struct {
	t      testing.TB
	b      *Bridge
	store  store.Store
	server *httptest.Server
	down   atomic.Bool
	status int // status of every peer's answers; 0: as usual
	made   atomic.Int64
	reply  func(peer string, got wire.Value) []byte // the answer of a peer to a message; nil: {}

	mu     sync.Mutex
	queues map[string]chan []byte
}

func newRig(t testing.TB, mesh bridge.Mesh, s store.Store, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, store: s, queues: make(map[string]chan []byte)}
	r.server = httptest.NewServer(http.HandlerFunc(r.foreign))
	t.Cleanup(r.server.Close)
	http := client.NewHTTP(client.HTTPConfig{Local: true})
	t.Cleanup(http.Close)
	cfg := Config{
		Agent: us, Key: keyOf("me@home"), Box: boxOf("me@home"), Serve: true, Mesh: mesh, Store: s, HTTP: http,
		Links: []bridge.Link{
			{Name: "cats", Kind: Kind, URL: r.server.URL + "/cat@acme/message", Options: map[string]string{"peer": "cat@acme"}},
			{Name: "dogs", Kind: Kind, URL: r.server.URL + "/dog@acme/message", Options: map[string]string{"peer": "dog@acme"}},
		},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.b, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) foreign(w http.ResponseWriter, req *http.Request) {
	if r.down.Load() {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	peer := strings.Split(req.URL.Path, "/")[1]
	if r.status != 0 {
		http.Error(w, "no", r.status)
		return
	}
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	p, e := message.ReadPacket(raw, boxOf(peer))
	if e != nil {
		http.Error(w, e.Error(), http.StatusBadRequest)
		return
	}
	r.queue(peer) <- raw
	if r.reply != nil {
		w.Write(r.reply(peer, p.Tree))
		return
	}
	w.WriteHeader(http.StatusAccepted)
	io.WriteString(w, "{}")
}

func (r *rig) queue(peer string) chan []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queues[peer] == nil {
		r.queues[peer] = make(chan []byte, 100)
	}
	return r.queues[peer]
}

func (r *rig) draft(peer string, op message.Op, p string) message.Draft {
	return message.Draft{
		ID: fmt.Sprintf("m%d", r.made.Add(1)), Op: op, Time: time.Now(), From: self(peer), To: us, P: mustTree(r.t, p), Class: message.Internal,
	}
}

func (r *rig) sign(peer string, d message.Draft) []byte {
	r.t.Helper()
	tree := message.Sign(d.Tree(), keyOf(peer))
	return tree.JSON()
}

// say sends a signed message and returns the answer with its status.
func (r *rig) say(peer string, d message.Draft) (message.Message, int) {
	r.t.Helper()
	return r.sendRaw(peer, r.sign(peer, d))
}

func (r *rig) sendRaw(peer string, raw []byte) (message.Message, int) {
	r.t.Helper()
	reply := r.b.Receive(r.t.Context(), raw, nil, nil)
	if bytes.Equal(reply.Body, noAnswer) {
		return message.Message{}, reply.Status
	}
	p, e := message.ReadPacket(reply.Body, boxOf(peer))
	if e != nil {
		r.t.Fatalf("the reply is not a packet: %v: %s", e, reply.Body)
	}
	m, e := message.Parse(p.Tree)
	if e != nil {
		r.t.Fatalf("the reply is not a message: %v: %s", e, p.Tree.JSON())
	}
	if e := m.Verify(keyOf("me@home").Public()); e != nil {
		r.t.Fatalf("the reply is not signed by us: %v", e)
	}
	return m, reply.Status
}

func (r *rig) code(peer string, d message.Draft) message.Code {
	r.t.Helper()
	m, _ := r.say(peer, d)
	if m.Op != message.OpError {
		return ""
	}
	return message.Code(m.P.GetStr("code"))
}

// challengeOf returns the challenge in an answer to a hello, in either form.
func challengeOf(ack message.Message) string {
	if data, ok := ack.P.Get("data"); ok {
		return data.GetStr("challenge")
	}
	return ack.P.GetStr("challenge")
}

func (r *rig) shake(peer string) {
	r.t.Helper()
	ack, status := r.say(peer, r.draft(peer, message.OpHello, `{"protocol_versions":["0.1"]}`))
	if status != http.StatusOK || ack.Op != message.OpHelloAck && ack.Op != message.OpRespond {
		r.t.Fatalf("hello was answered %d %s %s", status, ack.Op, ack.P.JSON())
	}
	proof := r.draft(peer, message.OpVerifyResponse, `{"challenge":"`+challengeOf(ack)+`"}`)
	proof.Re = ack.ID
	m, status := r.say(peer, proof)
	session, _ := m.Ext.Get("agentmesh.session")
	if id := m.P.GetStr("session_id"); status != http.StatusOK || m.Op != message.OpEstablished || id == "" || session.GetStr("id") != id {
		r.t.Fatalf("the proof was answered %d %s", status, m.Tree.JSON())
	}
}

// Deliver, Inject, Next, Mirror, Disconnect and Reconnect implement bridgetest.Bridge.

func (r *rig) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	return r.b.Deliver(ctx, d)
}

func (r *rig) Disconnect() { r.down.Store(true) }
func (r *rig) Reconnect()  { r.down.Store(false) }

func (r *rig) Next(ctx context.Context, peer string) ([]byte, error) {
	select {
	case raw := <-r.queue(peer):
		return raw, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *rig) Mirror(raw []byte) []byte {
	p, e := message.ReadPacket(raw, nil)
	if e != nil {
		panic(e)
	}
	return p.Tree.Without("sig", "from", "to", "ext").With("id", wire.Text(fmt.Sprintf("mirror%d", r.made.Add(1)))).JSON()
}

// Inject signs raw as the peer if it has no signature.
func (r *rig) Inject(ctx context.Context, peer string, raw []byte) {
	if tree, err := wire.ParseForeign(raw, message.MaxNesting, message.MaxValues); err == nil && tree.Kind() == wire.Object && tree.GetStr("op") != "" && tree.GetStr("sig") == "" {
		tree = tree.With("from", self(peer).Value()).With("to", us.Value())
		tree = message.Sign(tree, keyOf(peer))
		raw = tree.JSON()
	}
	r.b.Receive(ctx, raw, nil, nil)
}

func linkOf(peer string) string {
	if strings.HasPrefix(peer, "cat") {
		return "cats"
	}
	return "dogs"
}

func TestSuite(t *testing.T) {
	began := time.Now().UnixMilli()
	address := func(peer string) bridge.Address { return bridge.Address{Kind: Kind, Link: linkOf(peer), Peer: peer} }
	task := func(n int, p string) []byte {
		return fmt.Appendf(nil, `{"v":"0.1","id":"n%d","ts":%d,"op":"task","p":%s,"cls":"int"}`, n, began, p)
	}
	numbered := func(n int) []byte {
		return task(n, fmt.Sprintf(`{"action":"create","task_id":"t%d","type":"mesh.message","params":{"action":"deliver","message":{"body":"hello"}}}`, n))
	}
	bridgetest.Suite{
		LinkKind: LinkKind(), Address: address, Principal: func(peer string) string { return address(peer).String() }, Peers: [2]string{"cat@acme", "dog@acme"},
		New: func(t *testing.T, mesh bridge.Mesh, node *meshtest.Member) bridgetest.Bridge {
			r := newRig(t, mesh, node.Store, func(c *Config) {
				c.Domains, c.Tools = []string{"weather"}, []ToolInfo{{Name: "search", Peers: []string{"cat@acme"}}}
			})
			r.shake("cat@acme")
			r.shake("dog@acme")
			return r
		},
		Message: numbered,
		Kinds: []bridgetest.Kind{
			{Name: "message", Intent: wire.Deliver, Payload: `{"action":"deliver","message":{"body":"a\n\"b\" ü","subject":"s","priority":"high"}}`},
			{Name: "question", Intent: wire.RequestInfo, Payload: `{"action":"ask","question":"why?","context":"c","metadata":{"x":"y"}}`,
				Losses: []bridge.Loss{{Field: "payload.metadata", Reason: "extensions of AgentMesh stay at home (MS-43)"}}},
			{Name: "schedule", Intent: wire.Schedule, Payload: `{"action":"propose","event":{"title":"t","duration":"30m","proposed_times":["2027-01-05T10:00:00Z"]}}`},
			{Name: "negotiate", Intent: wire.Negotiate, Payload: `{"action":"propose","terms":{"description":"d"}}`},
			{Name: "handoff", Intent: wire.Handoff, Payload: `{"action":"request_human","reason":"complaint","context":{"a":[1,"ü"]}}`},
			{Name: "query", Intent: IntentQuery, Payload: `{"action":"query","domain":"weather","intent":"forecast","params":{"city":"Tokyo","days":[1,2]},"response_format":{"type":"structured","fields":["high_c"]}}`},
			{Name: "tool", Intent: IntentTool, Payload: `{"action":"invoke","tool":"search","input":{"q":"a\"b"},"timeout_ms":5000}`},
			{Name: "task", Intent: IntentTask, Payload: `{"action":"create","task_id":"x1","type":"research","params":{"q":[1,2]},"priority":"high"}`},
		},
		Hostile: [][]byte{
			[]byte(goodMessage),
			task(900, `{"action":"dance","task_id":"t"}`), task(901, `{"action":"create"}`), task(902, `{"action":"status","task_id":"unknown"}`),
			task(903, `{"action":"create","task_id":"t","params":{"n":100000000000000000000}}`),
			[]byte(strings.Replace(string(numbered(904)), `"ts":`, `"ts":1`, 1)),
			[]byte(strings.Replace(string(numbered(905)), `"cls":"int"`, `"cls":"sec"`, 1)),
			[]byte(strings.Replace(string(numbered(906)), `"cls":"int"`, `"cls":"conf"`, 1)),
			[]byte(strings.Replace(string(numbered(907)), `"cls":"int"`, `"cls":"int","cap":["code.execute"]`, 1)),
			bytes.Repeat([]byte(" "), 10<<20),
		},
	}.Run(t)
}

// fakeNode is a node for tests of the bridge alone. It accepts every message, or does what take does.
type fakeNode struct {
	mu   sync.Mutex
	got  []bridge.Inbound
	take func(in bridge.Inbound) (bridge.Outcome, error)
	s    store.Store
}

func (a *fakeNode) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	out, err := bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":{"action":"received"}}`)}, error(nil)
	a.mu.Lock()
	for _, old := range a.got {
		out.Duplicate = out.Duplicate || old.MessageID == in.MessageID && a.take == nil
	}
	if !out.Duplicate {
		a.got = append(a.got, in)
	}
	a.mu.Unlock()
	if out.Duplicate {
		return out, nil
	}
	if a.take != nil {
		out, err = a.take(in)
	}
	if err != nil {
		return out, err
	}
	if e := a.s.Records().Apply(ctx, in.Records, time.Now()); e != nil && !errors.Is(e, store.ErrConflict) {
		return out, e
	}
	return out, nil
}

func newTestRig(t testing.TB, change func(*Config)) (*rig, *fakeNode) {
	t.Helper()
	s := meshtest.Store(t)
	n := &fakeNode{s: s}
	return newRig(t, bridgetest.NewMesh(n, s), s, change), n
}

const goodMessage = `{"v":"0.1","id":"m1","ts":1767225600000,"op":"query","from":{"agent":"a","org":"o"},"to":{"agent":"b","org":"p"},` +
	`"p":{"domain":"weather"},"cls":"int","sig":"ed25519:x"}`

func mustTree(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.ParseForeign([]byte(text), 60, message.MaxValues)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func wholeOf(v wire.Value, key string) (n int64, ok bool) {
	m, _ := v.Get(key)
	err := json.Unmarshal(m.JSON(), &n)
	return n, err == nil && m.Kind() == wire.Number
}
