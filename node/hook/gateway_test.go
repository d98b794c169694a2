package hook_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// stubModel answers every request for a chat completion with the same text, in the stream that a gateway asks for.
func stubModel(t *testing.T, text string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		said, _ := json.Marshal(text)
		for _, choice := range []string{`"delta":{"role":"assistant","content":` + string(said) + `}`, `"delta":{},"finish_reason":"stop"`} {
			fmt.Fprintf(w, "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"stub-1\",\"choices\":[{\"index\":0,%s}]}\n\n", choice)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/v1"
}

// startGateway starts the real gateway whose program AGENTMESH_OPENCLAW names, and returns its URL.
func startGateway(t *testing.T, model string) string {
	t.Helper()
	program := os.Getenv("AGENTMESH_OPENCLAW")
	if program == "" {
		t.Skip("AGENTMESH_OPENCLAW does not name the program openclaw")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	dir := t.TempDir()
	config := fmt.Sprintf(`{
		"gateway": {"mode": "local", "bind": "loopback", "port": %d, "auth": {"mode": "token", "token": "gateway-token-of-the-test"}},
		"models": {"providers": {"stub": {"baseUrl": %q, "apiKey": "x", "api": "openai-completions", "models": [{"id": "stub-1", "name": "stub",
			"reasoning": false, "input": ["text"], "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}, "contextWindow": 128000, "maxTokens": 4096}]}}},
		"agents": {"defaults": {"model": {"primary": "stub/stub-1"}}},
		"hooks": {"enabled": true, "token": "hooks-token-of-the-test", "path": "/hooks", "allowedAgentIds": ["main"]},
		"channels": {"a2a": {"enabled": true, "peers": {"mesh": {"token": "a2a-token-of-the-test"}}}}
	}`, port, model)
	if err := os.WriteFile(filepath.Join(dir, "openclaw.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	gateway := exec.Command(program, "gateway", "run")
	gateway.Env = append(os.Environ(), "OPENCLAW_STATE_DIR="+dir, "HOME="+dir)
	gateway.WaitDelay = 10 * time.Second
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = gateway.Process.Signal(os.Interrupt)
		_ = gateway.Wait()
	})
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// TestRealGateway: a real OpenClaw gateway with a stub model answers over A2A and is woken by its hook.
func TestRealGateway(t *testing.T) {
	url := startGateway(t, stubModel(t, "tea at four"))
	c := client.NewHTTP(client.HTTPConfig{})
	defer c.Close()
	a2a := hook.NewA2A(url+"/a2a/v1", "a2a-token-of-the-test", c, nil)
	claw := hook.OpenClaw{URL: url + "/hooks/agent", Token: "hooks-token-of-the-test", AgentID: "main", HTTP: c}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for end := time.Now().Add(3 * time.Minute); a2a.Probe(t.Context()) != nil; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("the gateway does not start: %v", a2a.Probe(t.Context()))
		}
	}
	if err := claw.Probe(t.Context()); err != nil {
		t.Errorf("probe of the hook: %v", err)
	}
	for _, probe := range []hook.Prober{hook.NewA2A(url+"/a2a/v1", "wrong", c, nil), hook.OpenClaw{URL: claw.URL, Token: "wrong", HTTP: c}} {
		if failed, ok := errors.AsType[*hook.ProbeError](probe.Probe(t.Context())); !ok || !strings.Contains(failed.Why, "token") {
			t.Errorf("probe with a wrong token: %v", failed)
		}
	}
	call, err := hook.NewTrialCall("am_sarah", wire.Deliver, hook.TextPayload(wire.Deliver, "When is tea?"))
	if err != nil {
		t.Fatal(err)
	}
	var got hook.Trial
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); call.Attempt++ { // a new gateway fails its first runs
		if got = hook.Try(t.Context(), a2a, call); got.OK || !strings.Contains(got.Verdict, "TASK_STATE_FAILED") {
			break
		}
	}
	if string(got.Answer) != `{"action":"deliver","message":{"body":"tea at four"}}` {
		t.Errorf("answer = %s, %s", got.Answer, got.Verdict)
	}
	if got := hook.Try(t.Context(), claw, call); !got.OK || !strings.Contains(got.Verdict, "later") {
		t.Errorf("hook: %s", got.Verdict)
	}
}
