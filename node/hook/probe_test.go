package hook_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/hook"
)

// TestProbe: a probe finds a wrong token and a channel that is off, and starts no run. The answers of the gateway are
// those of a real one.
func TestProbe(t *testing.T) {
	var status int
	var body, sent string
	keys := map[string]bool{}
	url, c := hookServer(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		sent = string(data)
		if key := r.Header.Get("Idempotency-Key"); key != "" && keys[key] {
			t.Errorf("two probes have the key %s, so the gateway may repeat its answer to the first", key)
		} else {
			keys[key] = true
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	})
	claw := hook.OpenClaw{URL: url + "/hooks/agent", Token: "t", AgentID: "main", HTTP: c}
	a2a := hook.NewA2A(url+"/a2a/v1", "t", c)
	for _, tc := range []struct {
		name   string
		probe  hook.Prober
		status int
		body   string
		fails  bool
	}{
		{"hook works", claw, 400, `{"ok":false,"error":"message required"}`, false},
		{"hook token", claw, 401, `{"error":"Unauthorized"}`, true},
		{"hook off", claw, 404, "Not Found", true},
		{"hook ran", claw, 200, `{"ok":true,"runId":"r"}`, true},
		{"channel works", a2a, 200, `{"jsonrpc":"2.0","id":"probe","error":{"code":-32001,"message":"Task not found"}}`, false},
		{"channel works, with a long error", a2a, 200, `{"error":{"message":"` + strings.Repeat("x", 400) + `","code":-32001}}`, false},
		{"channel token", a2a, 401, `{"error":"Unauthorized; no peer"}`, true},
		{"channel off", a2a, 404, "Not Found", true},
		{"other service", a2a, 200, "<html>\x1b[2J", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body = tc.status, tc.body
			err := tc.probe.Probe(t.Context())
			if !tc.fails && err != nil || tc.fails && (err == nil || strings.ContainsRune(err.Error(), 0x1b) || !goldentest.Says(t, "probe", strings.ReplaceAll(err.Error(), url, "URL"))) {
				t.Errorf("Probe = %v, must fail: %t", err, tc.fails)
			}
			if strings.Contains(sent, `"message":"`) && !strings.Contains(sent, `"message":""`) || strings.Contains(sent, "SendMessage") {
				t.Errorf("the probe starts a run: %s", sent)
			}
		})
	}
	gone := hook.NewA2A("http://127.0.0.1:1/a2a/v1", "t", c)
	if err := gone.Probe(t.Context()); !goldentest.Refuses(t, "no gateway", err) {
		t.Errorf("Probe without a gateway: %v", err)
	}
}
