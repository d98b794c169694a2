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
	url, c := hookServer(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		sent = string(data)
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
		fix    string // "" if the probe succeeds
	}{
		{"hook works", claw, 400, `{"ok":false,"error":"message required"}`, ""},
		{"hook token", claw, 401, `{"error":"Unauthorized"}`, "hooks.token"},
		{"hook off", claw, 404, "Not Found", "hooks.enabled"},
		{"hook ran", claw, 200, `{"ok":true,"runId":"r"}`, "log"},
		{"channel works", a2a, 200, `{"jsonrpc":"2.0","id":"probe","error":{"code":-32001,"message":"Task not found"}}`, ""},
		{"channel works, with a long error", a2a, 200, `{"error":{"message":"` + strings.Repeat("x", 400) + `","code":-32001}}`, ""},
		{"channel token", a2a, 401, `{"error":"Unauthorized; no peer"}`, "peers.NAME.token"},
		{"channel off", a2a, 404, "Not Found", "channels.a2a.enabled"},
		{"other service", a2a, 200, "<html>\x1b[2J", "JSON-RPC"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body = tc.status, tc.body
			err := tc.probe.Probe(t.Context())
			if tc.fix == "" && err != nil || tc.fix != "" && (err == nil || !strings.Contains(err.Error(), tc.fix) || strings.ContainsRune(err.Error(), 0x1b)) {
				t.Errorf("Probe = %v, want the fix %q", err, tc.fix)
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
