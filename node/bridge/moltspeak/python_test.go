//go:build slow

package moltspeak

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// python is the system's interpreter; the test needs its PyNaCl, with which the public SDK signs and encrypts.
const python = "/usr/bin/python3"

// TestPythonPeer: a second implementation shakes hands, sends an encrypted question, streams, and verifies and answers
// our messages, with Python's own JSON and NaCl (MS-2, MS-7, MS-13, MS-19).
func TestPythonPeer(t *testing.T) {
	if err := exec.Command(python, "-c", "import nacl").Run(); err != nil {
		if os.Getenv("AGENTMESH_TOOLS") == "required" {
			t.Fatalf("%s has no PyNaCl (AGENTMESH_TOOLS=required): %v", python, err)
		}
		t.Skipf("%s has no PyNaCl: %v", python, err)
	}
	r, n := newTestRig(t, func(c *Config) { c.Domains = []string{"weather"} })
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":{"action":"answer","answer":"12.5 °C, \u007f"}}`)}, nil
	}
	srv := r.serve()
	cmd := exec.CommandContext(t.Context(), python, "testdata/peer.py", srv.URL, us.Name())
	var trouble strings.Builder
	cmd.Stderr = &trouble
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, steps, port := bufio.NewScanner(stdout), "", ""
	for port == "" && lines.Scan() {
		if after, ok := strings.CutPrefix(lines.Text(), "port "); ok {
			port = after
			continue
		}
		steps += lines.Text() + " "
	}
	if steps != "hello session consent query stream " || port == "" {
		t.Fatalf("it came as far as %q: %v\n%s", steps, cmd.Wait(), &trouble)
	}
	if len(n.got) != 2 || !n.got[0].Hold || // an internal query of an unknown peer waits for the owner
		n.got[0].Intent != IntentQuery || n.got[1].Intent != IntentStream {
		t.Fatalf("the node got %+v", n.got)
	}
	params, _ := n.got[0].Payload.Get("params")
	if text := params.GetStr("text"); text != "grüße 世界 😀 \x7f \u2028 </>&" {
		t.Errorf("text came as %q", text)
	}
	want := make([]byte, 0, 256*300)
	for range 300 {
		for b := range 256 {
			want = append(want, byte(b))
		}
	}
	if n.got[1].Payload.GetStr("data") != base64.StdEncoding.EncodeToString(want) {
		t.Error("the stream came as something else")
	}

	near, m := newTestRig(t, func(c *Config) {
		c.Links = []bridge.Link{{Name: "dogs", Kind: Kind, URL: "http://127.0.0.1:" + port, Options: map[string]string{"peer": "py@sdk"}}}
	})
	d := newDelivery(t, "py@sdk", IntentQuery, `{"action":"query","domain":"weather","params":{"city":"Tōkyō \"x\"","n":[1,2.5],"e":""}}`)
	if _, err := near.b.Deliver(t.Context(), d); err != nil {
		t.Fatalf("to the Python agent: %v\n%s", err, &trouble)
	}
	lines.Scan()
	if got := lines.Text(); got != `got query {"domain": "weather", "params": {"city": "T\u014dky\u014d \"x\"", "e": "", "n": [1, 2.5]}}` {
		t.Errorf("it got %s", got)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, &trouble)
	}
	if len(m.got) != 2 || fmt.Sprint(m.got[0].Payload.GetStr("status"), m.got[1].Payload.GetStr("action")) != "success"+wire.ActionClose {
		t.Errorf("its answer came as %+v", m.got)
	}
}
