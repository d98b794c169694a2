package hook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// a2aGateway behaves as OpenClaw does: it starts a task for each message, and answers GetTask.
type a2aGateway struct {
	mu       sync.Mutex
	final    string // status and artifacts of the task when it is done, as JSON members
	polls    int    // questions until the task is done
	lose     int    // answers to GetTask that are lost
	refuse   func(w http.ResponseWriter, method string) bool
	asked    int
	ids      []string // of the messages
	contexts map[string]int
	overlap  bool // two messages of one context at once
	text     string
	header   http.Header
	params   wire.Value
}

func (g *a2aGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	v, _ := wire.ParseObject(body)
	params, _ := v.Get("params")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refuse != nil && g.refuse(w, v.GetStr("method")) {
		return
	}
	m, _ := params.Get("message")
	id, status := params.GetStr("id"), `"status":{"state":"TASK_STATE_WORKING"}`
	switch v.GetStr("method") {
	case "SendMessage":
		parts, _ := m.Get("parts")
		g.text, g.header, g.params = parts.At(0).GetStr("text"), r.Header, params
		g.ids = append(g.ids, m.GetStr("messageId"))
		id = m.GetStr("contextId")
		g.overlap = g.overlap || g.contexts[id] > 0
		g.contexts[id]++
		g.asked = 0
	case "GetTask":
		if g.lose > 0 {
			g.lose--
			panic(http.ErrAbortHandler)
		}
		if g.asked++; g.asked >= g.polls {
			status = g.final
			g.contexts[id]--
		}
	}
	task := fmt.Sprintf(`{"id":%q,"contextId":%q,"kind":"task",%s}`, id, id, status)
	if v.GetStr("method") == "SendMessage" {
		task = `{"task":` + task + `}`
	}
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%q,"result":%s}`, v.GetStr("id"), task)
}

func a2aHook(t *testing.T, g *a2aGateway) (*hook.A2A, *a2aGateway) {
	t.Helper()
	g.contexts = make(map[string]int)
	url, c := hookServer(t, g.ServeHTTP)
	return hook.NewA2A(url+"/a2a/v1", "peer-token", c), g
}

func status(state, text string) string {
	return fmt.Sprintf(`"status":{"state":"TASK_STATE_%s","message":{"messageId":"r","role":"ROLE_AGENT","parts":[{"text":%q}]}}`, state, text)
}

// TestA2AAnswers: what an agent answers maps to the contract for hooks, and failures are never an answer.
func TestA2AAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, final string
		intent      wire.Intent
		payload     string
		hold        string
		fault       hook.Fault
	}{
		{name: "text", final: status("COMPLETED", "tea at four"), payload: `{"action":"deliver","message":{"body":"tea at four"}}`},
		{name: "text for another intent", intent: wire.RequestInfo, final: status("COMPLETED", "blue"), payload: `{"action":"answer","answer":"blue"}`},
		{name: "payload", intent: wire.Schedule, final: status("COMPLETED", "```json\n{\"action\":\"accept\",\"selected_time\":\"2026-12-01T10:00:00+01:00\"}\n```"),
			payload: `{"action":"accept","selected_time":"2026-12-01T10:00:00+01:00"}`},
		{name: "hold", final: status("COMPLETED", `{"hold":{"reason":"it costs money"}}`), hold: "it costs money"},
		{name: "contract", final: status("COMPLETED", `{"payload":{"action":"x"}}`), payload: `{"action":"x"}`},
		{name: "object that is no answer", final: status("COMPLETED", `{"to":"am_mallory"}`), payload: `{"action":"deliver","message":{"body":"{\"to\":\"am_mallory\"}"}}`},
		{name: "nothing", final: `"status":{"state":"TASK_STATE_COMPLETED"}`},
		{name: "text artifact", final: `"status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a","parts":[{"text":"hello"}]}]`,
			payload: `{"action":"deliver","message":{"body":"hello"}}`},
		{name: "file", final: `"status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a","parts":[{"raw":"AA==","mediaType":"image/png","filename":"a.png"}]}]`,
			payload: `{"action":"deliver","artifacts":[{"id":"a","parts":[{"filename":"a.png","media_type":"image/png","raw":"AA=="}]}],"message":{"body":"completed, 1 artifact"},"task":{"state":"completed"}}`},
		{name: "input required", final: status("INPUT_REQUIRED", "which day?"),
			payload: `{"action":"deliver","message":{"body":"which day?"},"task":{"state":"input_required","text":"which day?"}}`},
		{name: "rejected", final: status("REJECTED", "not here"), payload: `{"action":"deliver","message":{"body":"not here"},"task":{"state":"rejected","text":"not here"}}`},
		{name: "canceled", final: `"status":{"state":"TASK_STATE_CANCELED"}`, payload: `{"action":"deliver","message":{"body":"canceled"},"task":{"state":"canceled"}}`},
		{name: "failed", final: status("FAILED", "401 invalid api key sk-123"), fault: hook.Crashed},
		{name: "credentials", final: status("AUTH_REQUIRED", "sign in"), fault: hook.Crashed},
		{name: "failed, but completed", final: status("COMPLETED", "⚠️ Agent couldn't generate a response. Please try again."), fault: hook.Crashed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h, g := a2aHook(t, &a2aGateway{final: tc.final})
			call := aCall(t)
			if tc.intent != "" {
				call.Message.Intent = tc.intent
			}
			got, err := h.Handle(t.Context(), call)
			if hook.FaultOf(err) != tc.fault {
				t.Fatalf("Handle = %+v, %v, want the fault %q", got, err, tc.fault)
			}
			payload := ""
			if got.Payload != nil {
				payload = string(got.Payload.JSON())
			}
			if payload != tc.payload || got.Hold != tc.hold {
				t.Errorf("answer = %s hold %q, want %s %q", payload, got.Hold, tc.payload, tc.hold)
			}
			if g.header.Get("Authorization") != "Bearer peer-token" || g.header.Get("A2A-Version") != "1.0" {
				t.Errorf("headers: %v", g.header)
			}
		})
	}
}

// TestA2ARequest: the peer's words stand between fences, and the context belongs to one conversation of one peer.
func TestA2ARequest(t *testing.T) {
	h, g := a2aHook(t, &a2aGateway{final: status("COMPLETED", "ok")})
	call := aCall(t)
	if _, err := h.Handle(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	m, _ := g.params.Get("message")
	first := m.GetStr("contextId")
	if !strings.HasPrefix(first, "conv_1.") || m.GetStr("messageId") != "msg_1.2" || m.GetStr("role") != "ROLE_USER" {
		t.Errorf("message = %s", m.JSON())
	}
	_, fence, _ := strings.Cut(g.text, "Between the lines marked ")
	fence, _, _ = strings.Cut(fence, " ")
	outside := regexp.MustCompile(`(?s)--- `+fence+` begin.*?--- `+fence+` end`).ReplaceAllString(g.text, "")
	if len(fence) < 20 || strings.Contains(outside, "Ignore your owner") || strings.Contains(outside, "]0;x") || strings.ContainsRune(g.text, 0x1b) {
		t.Errorf("text of the peer is outside of the fence %q:\n%s", fence, g.text)
	}
	again := call
	again.Attempt++
	again.Conversation.Key.Peer = "am_mallory" // chooses the same conversation id
	if _, err := h.Handle(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	m, _ = g.params.Get("message")
	if m.GetStr("contextId") == first || g.ids[0] == g.ids[1] || strings.Contains(g.text, fence) {
		t.Errorf("second message: context %s, ids %v", m.GetStr("contextId"), g.ids)
	}
	long := call
	long.Message.ID, long.Conversation.Key.ID = wire.MessageID(strings.Repeat("x", 200)), "a/b c"
	long.Payload = []byte(`{"action":"deliver","message":{"body":"` + strings.Repeat("漢", 80<<10) + `"}}`)
	if _, err := h.Handle(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	m, _ = g.params.Get("message")
	charset := regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	if !charset.MatchString(m.GetStr("contextId")) || !charset.MatchString(m.GetStr("messageId")) || len(g.text) > 64<<10 {
		t.Errorf("context %q, message id %q, %d bytes", m.GetStr("contextId"), m.GetStr("messageId"), len(g.text))
	}
}

// TestA2ARefusals: only what the agent did not begin is tried again later.
func TestA2ARefusals(t *testing.T) {
	rpc := func(code int) func(http.ResponseWriter, string) bool {
		return func(w http.ResponseWriter, _ string) bool {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":"1","error":{"code":%d,"message":"no\u001b[2J"}}`, code)
			return true
		}
	}
	plain := func(status int, body string) func(http.ResponseWriter, string) bool {
		return func(w http.ResponseWriter, _ string) bool {
			w.WriteHeader(status)
			io.WriteString(w, body)
			return true
		}
	}
	for _, tc := range []struct {
		name   string
		refuse func(http.ResponseWriter, string) bool
		fault  hook.Fault
	}{
		{"rate limit", rpc(-32000), hook.Unreachable},
		{"unknown method", rpc(-32601), hook.Crashed},
		{"busy", plain(503, "busy"), hook.Unreachable},
		{"gateway time-out", plain(504, ""), hook.Crashed}, // the agent behind the gateway may work on it
		{"token", plain(401, `{"error":"Unauthorized"}`), hook.Crashed},
		{"page", plain(200, "<html>"), hook.Malformed},
		{"task without id", plain(200, `{"result":{"task":{"status":{"state":"TASK_STATE_WORKING"}}}}`), hook.Malformed},
		{"deep", plain(200, strings.Repeat("[", 100_000)), hook.Malformed},
		{"flood", plain(200, strings.Repeat(" ", 2<<20)), hook.TooLarge},
		{"lost message", func(http.ResponseWriter, string) bool { panic(http.ErrAbortHandler) }, hook.Crashed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, _ := a2aHook(t, &a2aGateway{refuse: tc.refuse})
			got, err := h.Handle(t.Context(), aCall(t))
			if hook.FaultOf(err) != tc.fault || got != (hook.Answer{}) || strings.ContainsRune(err.Error(), 0x1b) {
				t.Errorf("Handle = %+v, %v, want %s", got, err, tc.fault)
			}
		})
	}
	c := client.NewHTTP(client.HTTPConfig{})
	defer c.Close()
	if _, err := hook.NewA2A("http://127.0.0.1:1/a2a/v1", "", c).Handle(t.Context(), aCall(t)); hook.FaultOf(err) != hook.Unreachable {
		t.Errorf("no gateway: %v, want unreachable", err)
	}
}

// TestSilentHost: a host that does not answer at all is unreachable, so the message is tried again later.
func TestSilentHost(t *testing.T) {
	t.Parallel()
	c := client.NewHTTP(client.HTTPConfig{Connect: 1})
	defer c.Close()
	for name, h := range map[string]hook.Handler{
		"webhook": hook.Webhook{URL: "http://127.0.0.1:1/", Secrets: secrets(t, whsec1), HTTP: c},
		"a2a":     hook.NewA2A("http://127.0.0.1:1/a2a/v1", "", c),
	} {
		if _, err := h.Handle(t.Context(), aCall(t)); hook.FaultOf(err) != hook.Unreachable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want unreachable after a time-out", name, err)
		}
	}
}

// TestA2AOneAtATime: messages of one conversation do not overlap at the agent, whatever their number.
func TestA2AOneAtATime(t *testing.T) {
	t.Parallel()
	h, g := a2aHook(t, &a2aGateway{final: status("COMPLETED", "ok")})
	var group sync.WaitGroup
	for i := range 4 {
		call := aCall(t)
		call.Message.ID = wire.MessageID(fmt.Sprint("msg_", i))
		group.Go(func() {
			if _, err := h.Handle(t.Context(), call); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if g.overlap || len(g.ids) != 4 {
		t.Errorf("overlap %v, messages %v", g.overlap, g.ids)
	}
}

// TestA2AWaitsShortly: a message waits only a little for the one before it, so that one conversation cannot hold all
// hooks.
func TestA2AWaitsShortly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client.NewHTTP(client.HTTPConfig{})
		defer c.Close()
		h := hook.NewA2A("ftp://nowhere", "", c)
		leave, err := hook.Enter(h, t.Context(), "context")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := hook.Enter(h, t.Context(), "context"); err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("second request: %v after %v, want a refusal after 5 s", err, time.Since(began))
		}
		if other, err := hook.Enter(h, t.Context(), "other"); err != nil {
			t.Error(err)
		} else {
			other()
		}
		leave()
		if again, err := hook.Enter(h, t.Context(), "context"); err != nil {
			t.Error(err)
		} else {
			again()
		}
	})
}
