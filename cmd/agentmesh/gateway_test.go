//go:build slow

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	gatewayVariable = "AGENTMESH_OPENCLAW"        // names the program openclaw
	outageVariable  = "AGENTMESH_OPENCLAW_OUTAGE" // how long the gateway is down in the test, such as 10m
	gatewayWire     = "../../node/hook/testdata/openclaw"
	mcpWire         = "../../node/owner/mcp/testdata/openclaw.jsonl"
	contactWire     = "../../node/owner/contact/testdata/openclaw.json"
)

// stubModel answers the gateway's requests for a chat completion. If the newest message of the mesh contains the name
// of a tool in capitals, the model calls the tool once and then repeats its result.
type stubModel struct {
	mu      sync.Mutex
	prompts []string // the newest message of the mesh in each request
}

func (m *stubModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	prompt, result := "", ""
	for _, msg := range request.Messages {
		switch {
		case msg.Role == "user" && bytes.Contains(msg.Content, []byte("arrived over AgentMesh")):
			prompt, result = string(msg.Content), ""
		case msg.Role == "tool":
			result = string(msg.Content)
		}
	}
	m.mu.Lock()
	m.prompts = append(m.prompts, prompt)
	m.mu.Unlock()
	delta, reason := map[string]any{"role": "assistant", "content": "tea at four"}, "stop"
	tool, arguments := "", ""
	switch {
	case strings.Contains(prompt, "ASK_OWNER"):
		tool, arguments = "tool_call", `{"id":"agentmesh__mesh_ask_owner","args":{"text":"May I say yes to tea?","wait_seconds":25}}`
	case strings.Contains(prompt, "EXEC"):
		tool, arguments = "exec", `{"command":"echo tea-from-the-shell"}`
	}
	switch {
	case tool != "" && result == "":
		reason = "tool_calls"
		delta["content"], delta["tool_calls"] = nil, []any{map[string]any{
			"index": 0, "id": "call_1", "type": "function", "function": map[string]any{"name": tool, "arguments": arguments},
		}}
	case tool != "":
		delta["content"] = "the tool said: " + result
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, choice := range []map[string]any{{"index": 0, "delta": delta}, {"index": 0, "delta": map[string]any{}, "finish_reason": reason}} {
		chunk, _ := json.Marshal(map[string]any{"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "stub-1", "choices": []any{choice}})
		fmt.Fprintf(w, "data: %s\n\n", chunk)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// newest returns the newest message of the mesh that the model got.
func (m *stubModel) newest() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.prompts) == 0 {
		return ""
	}
	return m.prompts[len(m.prompts)-1]
}

// wireRecord is the recorded wire between the node and the gateway for one message; see TestRecordedGateway.
type wireRecord struct {
	Policy    string         `json:"execution_policy"`
	Answer    wire.Value     `json:"answer"` // what the node signed
	Exchanges []wireExchange `json:"exchanges"`
}

type wireExchange struct {
	Request json.RawMessage `json:"request"`
	Status  int             `json:"status"`
	Answer  json.RawMessage `json:"answer"`
}

// task returns the id of the task that the exchange asks about, or "" if it asks about none.
func (x wireExchange) task() string {
	var request struct {
		Params struct {
			ID string `json:"id"`
		} `json:"params"`
	}
	_ = json.Unmarshal(x.Request, &request) // the node wrote it
	return request.Params.ID
}

// isUnfinished reports whether the exchange is a question about a task that is not done.
func (x wireExchange) isUnfinished() bool {
	return bytes.Contains(x.Request, []byte(`"GetTask"`)) && bytes.Contains(x.Answer, []byte("TASK_STATE_WORKING"))
}

// realGateway is an OpenClaw gateway, and a proxy in front of it that records the wire.
type realGateway struct {
	t            *testing.T
	policy       string
	program, dir string
	address      string // of the gateway
	proxy        string // of the proxy
	contact      string // of the listener of the agent's door, which has a URL for each contact
	model        *stubModel
	process      *exec.Cmd
	server       *httptest.Server

	mu     sync.Mutex
	record []wireExchange
}

// freeAddress returns a loopback address on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// newRealGateway configures a gateway. socket is the agent's door, whose tools the gateway gets.
func newRealGateway(t *testing.T, program, policy, socket string) *realGateway {
	t.Helper()
	g := &realGateway{t: t, policy: policy, program: program, dir: t.TempDir(), address: freeAddress(t), proxy: freeAddress(t), contact: freeAddress(t), model: &stubModel{}}
	model := httptest.NewServer(g.model)
	t.Cleanup(model.Close)
	contacts := httptest.NewServer(http.HandlerFunc(g.passToContact))
	t.Cleanup(contacts.Close)
	_, port, _ := net.SplitHostPort(g.address)
	tools, _ := json.Marshal(fmt.Sprintf("tee -a %s/mcp.in | %s mcp --agent-socket %s --data %s/none",
		g.dir, agentmeshBinary(os.Environ()), socket, g.dir))
	config := fmt.Sprintf(`{
		"gateway": {"mode": "local", "bind": "loopback", "port": %s, "auth": {"mode": "token", "token": "gateway-token-of-the-test"}},
		"models": {"providers": {"stub": {"baseUrl": %q, "apiKey": "x", "api": "openai-completions", "models": [{"id": "stub-1", "name": "stub",
			"reasoning": false, "input": ["text"], "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}, "contextWindow": 128000, "maxTokens": 4096}]}}},
		"agents": {"defaults": {"model": {"primary": "stub/stub-1"}}},
		"mcp": {"servers": {"agentmesh": {"command": "sh", "args": ["-c", %s]}}},
		"hooks": {"enabled": true, "token": "hooks-token-of-the-test", "path": "/hooks", "allowedAgentIds": ["main"]},
		"channels": {"a2a": {"enabled": true, "peers": {"mesh": {"token": "a2a-token-of-the-test"},
			"sarah": {"token": "token-that-nobody-uses", "url": %q, "outboundToken": "agent-token-of-the-test"}}}}
	}`, port, model.URL+"/v1", tools, contacts.URL+"/a2a/sarah")
	if err := os.WriteFile(filepath.Join(g.dir, "openclaw.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := g.command("exec-policy", "preset", policy).CombinedOutput(); err != nil {
		t.Fatalf("exec-policy preset %s: %v\n%s", policy, err, out)
	}
	g.start()
	t.Cleanup(g.stop)
	return g
}

func (g *realGateway) command(args ...string) *exec.Cmd {
	c := exec.Command(g.program, args...)
	c.Env = append(os.Environ(), "OPENCLAW_STATE_DIR="+g.dir, "HOME="+g.dir)
	return c
}

func (g *realGateway) start() {
	g.t.Helper()
	g.process = g.command("gateway", "run")
	g.process.WaitDelay = 10 * time.Second
	if err := g.process.Start(); err != nil {
		g.t.Fatal(err)
	}
	l, err := net.Listen("tcp", g.proxy)
	if err != nil {
		g.t.Fatal(err)
	}
	g.server = httptest.NewUnstartedServer(g)
	g.server.Listener.Close()
	g.server.Listener = l
	g.server.Start()
}

// stop ends the gateway and refuses connections to the proxy.
func (g *realGateway) stop() {
	g.server.CloseClientConnections()
	g.server.Close()
	_ = g.process.Process.Kill()
	_ = g.process.Wait()
}

// ServeHTTP passes a request to the gateway and records it with its answer. If no gateway runs, it answers 503.
func (g *realGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	out, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+g.address+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header = r.Header.Clone()
	resp, err := http.DefaultClient.Do(out)
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if json.Valid(body) && json.Valid(answer) {
		g.mu.Lock()
		g.record = append(g.record, wireExchange{body, resp.StatusCode, answer})
		g.mu.Unlock()
	}
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(resp.StatusCode)
	w.Write(answer)
}

// passToContact passes a request of the gateway to the agent's door, and writes it to a file if the test runs with
// -update.
func (g *realGateway) passToContact(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if *update {
		if err := os.WriteFile(contactWire, append(body, '\n'), 0o644); err != nil {
			g.t.Error(err)
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: g.contact}).ServeHTTP(w, r)
}

// save writes what was recorded since the last call, and the signed answer of the node, if the test runs with -update
// and name is not empty. It writes repeated questions about a task once, and none about earlier tasks.
func (g *realGateway) save(name string, answer wire.Value) {
	g.t.Helper()
	g.mu.Lock()
	var started []byte // the answers to messages
	for _, x := range g.record {
		if x.task() == "" {
			started = append(started, x.Answer...)
		}
	}
	record := slices.DeleteFunc(g.record, func(x wireExchange) bool { return !bytes.Contains(started, []byte(x.task())) })
	record = slices.CompactFunc(record, func(a, b wireExchange) bool { return a.isUnfinished() && b.isUnfinished() })
	g.record = nil
	g.mu.Unlock()
	if !*update || name == "" {
		return
	}
	text, err := json.MarshalIndent(wireRecord{g.policy, answer, record}, "", "  ")
	if err == nil {
		err = os.MkdirAll(gatewayWire, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(gatewayWire, name+"-"+g.policy+".json"), append(text, '\n'), 0o644)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

func waitUntil(t *testing.T, what string, most time.Duration, done func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(most); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", most, what)
		}
	}
}

// TestRealGateway runs a real OpenClaw gateway with a stub model, once for each execution policy, behind a node whose
// owner approves new senders. It plays messages of an unknown and an approved sender, a question to the owner, a
// shell command, and an outage. With -update it records the wire.
func TestRealGateway(t *testing.T) {
	program := os.Getenv(gatewayVariable)
	if program == "" {
		t.Skip(gatewayVariable + " does not name the program openclaw")
	}
	for _, policy := range []string{"cautious", "yolo"} {
		t.Run(policy, func(t *testing.T) { playGateway(t, program, policy) })
	}
}

func playGateway(t *testing.T, program, policy string) {
	const question = "When is tea?"
	const condition = "only after five"
	home, err := os.MkdirTemp("", "am")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	mine, theirs, socket := filepath.Join(home, "mine"), filepath.Join(home, "theirs"), filepath.Join(home, "agent.sock")
	g := newRealGateway(t, program, policy, socket)
	token, agentToken := filepath.Join(home, "token"), filepath.Join(home, "agent-token")
	config := fmt.Sprintf(`owner_api: {listen: %s}
agent_door: {socket: %s, token_file: %s}
access: {mode: approval}
hooks:
  - intent: "*"
    a2a: http://%s/a2a/v1
    secret_file: %s
    replies: true
`, g.contact, socket, agentToken, g.proxy, token)
	mustRun(t, theirs, "init", "--name=Sarah")
	mustRun(t, mine, "init", "--name=Chris")
	for name, text := range map[string]string{token: "a2a-token-of-the-test\n", agentToken: "agent-token-of-the-test\n", filepath.Join(mine, "agentmesh.yaml"): config} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hub := mustServe(t, theirs, "--set=access.mode=open")
	chris := mustServe(t, mine, "--roles=node", "--directory="+hub.info.Directory)
	chrisOwner, sarahOwner := ownerClient(t, mine), ownerClient(t, theirs)
	g.probe()

	send := func(text string) owner.Sent {
		t.Helper()
		sent, err := daemon.Fetch(t.Context(), sarahOwner, owner.SendMessage.With(owner.NewMessage{
			To: string(chris.info.AgentID), Intent: wire.Deliver, Payload: hook.TextPayload(wire.Deliver, text), WaitSeconds: 55,
		}))
		if err != nil {
			t.Fatalf("send %q: %v", text, err)
		}
		return sent
	}
	// decide carries out the owner's choice about the only question that waits.
	decide := func(choice acl.Choice, text string) {
		t.Helper()
		var ask owner.Approval
		waitUntil(t, "a question to the owner", time.Minute, func() bool {
			list, err := daemon.Fetch(t.Context(), chrisOwner, owner.ListApprovals.Call().WithQuery(owner.Params("state", "pending")))
			if err == nil && len(list.Items) == 1 {
				ask = list.Items[0]
			}
			return ask.ID != ""
		})
		if _, err := daemon.Fetch(t.Context(), chrisOwner, owner.DecideApproval.With(owner.Decision{Choice: choice, Hash: ask.Hash, Text: text}, ask.ID)); err != nil {
			t.Fatal(err)
		}
	}
	// late waits for the reply that comes later, in a message of its own.
	late := func(sent owner.Sent, most time.Duration) (payload wire.Value) {
		t.Helper()
		waitUntil(t, "the reply", most, func() bool {
			list, err := daemon.Fetch(t.Context(), sarahOwner, owner.ListInbox.Call())
			i := slices.IndexFunc(list.Items, func(i owner.Item) bool { return i.Conversation == sent.Conversation })
			if err != nil || i < 0 {
				return false
			}
			payload, err = wire.Parse(list.Items[i].Payload)
			return err == nil
		})
		return payload
	}
	action := func(sent owner.Sent) string {
		payload, _ := sent.ReplyTree.Get("payload")
		return payload.GetStr("action")
	}
	// final returns the reply on the connection or, if the agent was too slow for that, the one that comes later.
	final := func(sent owner.Sent) wire.Value {
		t.Helper()
		if action(sent) == wire.ActionPending {
			return late(sent, 2*time.Minute)
		}
		payload, _ := sent.ReplyTree.Get("payload")
		return payload
	}
	body := func(payload wire.Value) string {
		m, _ := payload.Get("message")
		return m.GetStr("body")
	}

	g.save("", wire.Value{})
	held := send(question)
	if action(held) != wire.ActionPending || strings.Contains(g.model.newest(), question) {
		t.Errorf("an unknown sender got %s, and the model %q", held.ReplyTree.JSON(), g.model.newest())
	}
	decide(acl.Approve, "")
	answer := late(held, 2*time.Minute)
	if body(answer) != "tea at four" || !strings.Contains(g.model.newest(), "trust: unknown to the owner") {
		t.Errorf("unknown sender: %s, prompt %s", answer.JSON(), g.model.newest())
	}
	g.save("unknown", withoutMetadata(answer))

	held = send("And tomorrow?")
	decide(acl.ApproveAlways, "")
	late(held, 2*time.Minute)
	g.save("", wire.Value{})
	sent := send("And on Sunday?")
	answer, _ = sent.ReplyTree.Get("payload")
	if sent.Status != http.StatusOK || body(answer) != "tea at four" || !strings.Contains(g.model.newest(), "trust: approved") {
		t.Errorf("approved sender: %d %s, prompt %s", sent.Status, answer.JSON(), g.model.newest())
	}
	g.save("approved", withoutMetadata(answer))

	done := make(chan owner.Sent, 1)
	go func() { done <- send("ASK_OWNER: tea?") }()
	decide(acl.Approve, condition)
	answer = final(<-done)
	if !strings.Contains(body(answer), condition) {
		t.Errorf("question to the owner: %s", answer.JSON())
	}
	g.save("question", withoutMetadata(answer))
	g.saveTools()

	if sent = send("EXEC: the kettle"); policy == "yolo" {
		if answer = final(sent); !strings.Contains(body(answer), "tea-from-the-shell") {
			t.Errorf("shell: %s", answer.JSON())
		}
		g.save("shell", withoutMetadata(answer))
	} else if action(sent) != wire.ActionPending { // the gateway's own owner would have to approve the command
		t.Errorf("shell without an approval: %s", sent.ReplyTree.JSON())
	} else {
		g.save("shell", wire.Value{})
	}

	g.writeToContact(chrisOwner, sarahOwner, string(hub.info.AgentID))

	outage := 5 * time.Second
	if text := os.Getenv(outageVariable); text != "" {
		if outage, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	g.stop()
	held = send("And after the outage?")
	reply, _ := held.ReplyTree.Get("payload")
	if reply.GetStr("action") != wire.ActionPending || !strings.Contains(reply.GetStr("reason"), "comes later") {
		t.Errorf("while the gateway is down: %s", held.ReplyTree.JSON())
	}
	list, err := daemon.Fetch(t.Context(), chrisOwner, owner.ListInbox.Call().WithQuery(owner.Params("state", "waiting")))
	if err != nil || len(list.Items) != 1 || list.Items[0].Failure == nil || list.Items[0].Failure.Fault != string(hook.Unreachable) {
		t.Fatalf("while the gateway is down: inbox %+v, %v", list.Items, err)
	}
	time.Sleep(outage)
	g.save("", wire.Value{})
	g.start()
	waiting := list.Items[0].ID
	waitUntil(t, "the message is answered", outage+5*time.Minute, func() bool {
		item, err := daemon.Fetch(t.Context(), chrisOwner, owner.ShowItem.Call(waiting))
		if err == nil && item.State == owner.ItemFailed { // a new gateway fails its first runs
			_, err = daemon.Fetch(t.Context(), chrisOwner, owner.RetryItem.Call(waiting))
		}
		return err == nil && item.State == owner.ItemAnswered
	})
	answer = late(held, time.Minute)
	if body(answer) != "tea at four" {
		t.Errorf("after the outage: %s", answer.JSON())
	}
	g.save("outage", withoutMetadata(answer))
}

// writeToContact lets the gateway write to the contact sarah, whose agent has the id. The message must reach Sarah's
// inbox, and her answer must reach the gateway.
func (g *realGateway) writeToContact(chris, sarah *daemon.Client, id string) {
	const invitation = "Come to tea?"
	g.t.Helper()
	for _, change := range []owner.PeerChange{{Action: "alias", Alias: "sarah"}, {Action: "write"}} {
		if _, err := daemon.Fetch(g.t.Context(), chris, owner.ChangePeer.With(change, id)); err != nil {
			g.t.Fatal(err)
		}
	}
	if out, err := g.command("message", "send", "--channel=a2a", "--target=sarah", "--message="+invitation).CombinedOutput(); err != nil {
		g.t.Fatalf("the gateway writes to a contact: %v\n%s", err, out)
	}
	var item owner.Item
	waitUntil(g.t, "the gateway's message", time.Minute, func() bool {
		list, err := daemon.Fetch(g.t.Context(), sarah, owner.ListInbox.Call())
		i := slices.IndexFunc(list.Items, func(i owner.Item) bool { return strings.Contains(string(i.Payload), invitation) })
		if err == nil && i >= 0 {
			item = list.Items[i]
		}
		return item.ID != ""
	})
	if _, err := daemon.Fetch(g.t.Context(), sarah, owner.Reply.With(owner.NewReply{Item: string(item.ID), Payload: hook.TextPayload(wire.Deliver, "With pleasure.")})); err != nil {
		g.t.Fatal(err)
	}
	waitUntil(g.t, "the answer reaches the model", 2*time.Minute, func() bool { return strings.Contains(g.model.newest(), "With pleasure.") })
}

func withoutMetadata(payload wire.Value) wire.Value { return payload.Without("metadata") }

// saveTools writes what the gateway sent to the MCP server in its newest session, if the test runs with -update.
func (g *realGateway) saveTools() {
	g.t.Helper()
	if !*update {
		return
	}
	said, err := os.ReadFile(filepath.Join(g.dir, "mcp.in"))
	if err == nil {
		said = said[max(0, bytes.LastIndex(said, []byte(`{"method":"initialize"`))):]
		err = os.WriteFile(mcpWire, said, 0o644)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// probe waits until the gateway runs and checks what the probes of both hooks say. It wakes the gateway until a run
// succeeds, because a new gateway fails its first runs.
func (g *realGateway) probe() {
	t := g.t
	t.Helper()
	c := client.NewHTTP(client.HTTPConfig{})
	t.Cleanup(c.Close)
	a2a := hook.NewA2A("http://"+g.proxy+"/a2a/v1", "a2a-token-of-the-test", c)
	claw := hook.OpenClaw{URL: "http://" + g.proxy + "/hooks/agent", Token: "hooks-token-of-the-test", AgentID: "main", HTTP: c}
	waitUntil(t, "the gateway starts", 3*time.Minute, func() bool { return a2a.Probe(t.Context()) == nil })
	if err := claw.Probe(t.Context()); err != nil {
		t.Errorf("probe of the hook: %v", err)
	}
	for _, wrong := range []hook.Prober{hook.NewA2A("http://"+g.proxy+"/a2a/v1", "wrong", c), hook.OpenClaw{URL: claw.URL, Token: "wrong", HTTP: c}} {
		if err := wrong.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "token") {
			t.Errorf("probe with a wrong token: %v", err)
		}
	}
	call, err := hook.NewTrialCall("am_sarah", wire.Deliver, hook.TextPayload(wire.Deliver, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "a run succeeds", 3*time.Minute, func() bool {
		call.Attempt++
		return hook.Try(t.Context(), a2a, call).OK
	})
	if got := hook.Try(t.Context(), claw, call); !got.OK || !strings.Contains(got.Verdict, "later") {
		t.Errorf("hook: %s", got.Verdict)
	}
}
