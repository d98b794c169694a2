package node_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// logBuffer collects the log of several goroutines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// lines returns the log lines whose message is msg.
func (b *logBuffer) lines(t *testing.T, msg string) []map[string]any {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []map[string]any
	for line := range bytes.Lines(b.buf.Bytes()) {
		var l map[string]any
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("log line %s: %v", line, err)
		}
		if l["msg"] == msg {
			out = append(out, l)
		}
	}
	return out
}

// documentedKeys reads the keys of a log line from the table in docs/operations.md.
func documentedKeys(t *testing.T, msg string) []string {
	t.Helper()
	doc, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| [^|]*`" + msg + "`[^|]* \\| (.*) \\|$").FindSubmatch(doc)
	if row == nil {
		t.Fatalf("docs/operations.md has no row for %q", msg)
	}
	keys := []string{"time", "level", "msg"}
	values := regexp.MustCompile(`\([^)]*\)`).ReplaceAll(row[1], nil)
	for _, key := range regexp.MustCompile("`([a-z_]+)`").FindAllSubmatch(values, -1) {
		keys = append(keys, string(key[1]))
	}
	return keys
}

// TestDecisions plays every outcome of a message, and checks the log lines and counters about it.
func TestDecisions(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	var log logBuffer
	m := httpapi.NewMetrics("test")
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Approval
		cfg.Metrics = m
		cfg.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	meshtest.Post(t, sarah.URL, []byte(`{}`))
	forged := chris.Forger("mallory").Draft(sarah.ID(), wire.Deliver, hello)
	meshtest.Post(t, sarah.URL, chris.Forger("mallory").Sign(forged))
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)     // held
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)     // repeated
	full := chris.Draft(sarah.ID(), wire.Deliver, longPayload(65<<10)) // more than may wait behind the first message
	meshtest.Post(t, sarah.URL, chris.Sign(full))
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
	payload, err := wire.Parse([]byte(hello))
	if err != nil {
		t.Fatal(err)
	}
	bob := newPeer(t, mesh, "bob")
	bob.answers(func(w http.ResponseWriter, _ wire.Message) { w.WriteHeader(http.StatusServiceUnavailable) })
	sent := mustSend(t, sarah.Node, node.Outgoing{To: bob.ID, Intent: wire.Deliver, Payload: payload}, time.Minute)

	var outcomes []string
	for _, line := range log.lines(t, "message") {
		outcome := line["outcome"].(string)
		if row, ok := line["refused"]; ok {
			outcome += " " + row.(string)
		}
		outcomes = append(outcomes, line["level"].(string)+" "+outcome)
	}
	want := []string{"INFO refused schema", "INFO refused signature", "INFO held", "DEBUG repeated", "DEBUG refused owner-decides-first", "INFO accepted"}
	if !slices.Equal(outcomes, want) {
		t.Errorf("message lines = %q, want %q", outcomes, want)
	}
	forgedLine := log.lines(t, "message")[1]
	if forgedLine["message_id"] != string(forged.ID) || forgedLine["conversation_id"] != string(forged.Conversation) || forgedLine["peer"] != string(chris.ID) {
		t.Errorf("the line of a forged message = %v", forgedLine)
	}
	if decisions := log.lines(t, "decision"); len(decisions) != 1 || decisions[0]["choice"] != string(acl.Approve) || decisions[0]["by"] != "test" {
		t.Errorf("decision lines = %v", decisions)
	}
	putOff := false
	for _, line := range log.lines(t, "delivery") {
		putOff = putOff || line["message_id"] == string(sent.MessageID) && line["outcome"] == "put_off" && line["cause"] != "" && line["next"] != ""
	}
	if !putOff {
		t.Errorf("no line reports that %s was postponed: %v", sent.MessageID, log.lines(t, "delivery"))
	}
	for _, msg := range []string{"message", "delivery", "decision", "registered"} {
		lines, keys := log.lines(t, msg), documentedKeys(t, msg)
		if len(lines) == 0 {
			t.Errorf("nothing logs %q", msg)
		}
		for _, line := range lines {
			for key := range line {
				if !slices.Contains(keys, key) {
					t.Errorf("the line %q has the key %q, which docs/operations.md does not name", msg, key)
				}
			}
		}
	}

	w := httptest.NewRecorder()
	httpapi.NewOwner(httpapi.OwnerConfig{Metrics: m}).Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`agentmesh_messages_total{code="",outcome="accepted"} 1`,
		`agentmesh_messages_total{code="",outcome="held"} 1`,
		`agentmesh_messages_total{code="",outcome="repeated"} 1`,
		`agentmesh_messages_total{code="INVALID_MESSAGE",outcome="refused"} 1`,
		`agentmesh_messages_total{code="INVALID_SIGNATURE",outcome="refused"} 1`,
		`agentmesh_messages_total{code="RATE_LIMITED",outcome="refused"} 1`,
		`agentmesh_messages_total{code="OWNER_REJECTED",outcome="refused"} 0`,
		`agentmesh_asks_open 0`,
		`agentmesh_hooks{state="running"} 0`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if !strings.Contains(w.Body.String(), "agentmesh_deliveries_total{outcome=\"put_off\"} 1\n") || strings.Contains(w.Body.String(), "am_") {
		t.Error("the metrics do not count the attempt, or name an agent")
	}
}
