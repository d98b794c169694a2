package hook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// gatewayRecord is the recorded wire of one message between a node and a real OpenClaw gateway. TestRealGateway in
// cmd/agentmesh writes these files.
type gatewayRecord struct {
	Answer    json.RawMessage `json:"answer"` // what the node signed
	Exchanges []struct {
		Request json.RawMessage `json:"request"`
		Status  int             `json:"status"`
		Answer  json.RawMessage `json:"answer"`
	} `json:"exchanges"`
}

// randomParts matches what differs between two runs of the same message: the text for the agent, whose fence is random
// and which TestA2ARequest checks, and the id that depends on it.
var randomParts = regexp.MustCompile(`"text":"(\\.|[^"\\])*"|"id":"[0-9a-f]{16}"`)

// canonical returns a JSON text in one form, without random parts.
func canonical(t *testing.T, text []byte) string {
	t.Helper()
	v, err := wire.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(v.JSON(), &plain); err != nil {
		t.Fatal(err)
	}
	sorted, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	return randomParts.ReplaceAllString(string(sorted), "RANDOM")
}

// callOf returns the call that made the node send the recorded message.
func callOf(t *testing.T, request []byte) hook.Call {
	t.Helper()
	v, err := wire.ParseObject(request)
	if err != nil {
		t.Fatal(err)
	}
	params, _ := v.Get("params")
	m, _ := params.Get("message")
	parts, _ := m.Get("parts")
	text := parts.At(0).GetStr("text")
	find := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("the text lacks %s:\n%s", pattern, text)
		}
		return found[1]
	}
	id, attempt, _ := strings.Cut(m.GetStr("messageId"), ".")
	times, err := strconv.Atoi(attempt)
	if err != nil {
		t.Fatal(err)
	}
	peer, conv, trust := find(`From: (\S+)`), find(`Conversation: (\S+)`), find(`trust: ([^)]+)\)`)
	if trust == "unknown to the owner" {
		trust = ""
	}
	return hook.Call{
		Message: wire.Message{ID: wire.MessageID(id), Conversation: wire.ConversationID(conv), From: wire.AgentID(peer), Intent: wire.Intent(find(`Intent: (\S+)`))},
		Payload: []byte(find(`begin: the message\n(.*)\n`)), Attempt: times,
		Conversation: conversations.Conversation{Key: store.ConvKey{Peer: peer, ID: conv}, State: conversations.Open},
		Sender:       hook.Sender{AgentID: wire.AgentID(peer), Name: untrusted.Text(find(`begin: name on its card\n(.*)\n`)), Verified: "signature", Trust: trust},
	}
}

// TestRecordedGateway replays the recorded wire of a real gateway: the node sends the same requests, and the recorded
// answers lead to the recorded reply. A task that failed has no reply, and neither has a recording that ends while the
// gateway waits for its own owner: the node asks until the call ends.
func TestRecordedGateway(t *testing.T) {
	files, err := filepath.Glob("testdata/openclaw/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var record gatewayRecord
			if err := json.Unmarshal(text, &record); err != nil {
				t.Fatal(err)
			}
			next, unfinished := 0, string(record.Answer) == "null"
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			url, c := hookServer(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if next == len(record.Exchanges) && unfinished {
					cancel()
					<-r.Context().Done() // an answer could overtake the cancellation
					return
				}
				if next == len(record.Exchanges) {
					t.Errorf("one request too many: %s", body)
					return
				}
				x := record.Exchanges[next]
				next++
				if got, want := canonical(t, body), canonical(t, x.Request); got != want {
					t.Errorf("request %d = %s\nwant %s", next, got, want)
				}
				if r.URL.Path != "/a2a/v1" || r.Header.Get("Authorization") != "Bearer token" {
					t.Errorf("request %d: %s %v", next, r.URL.Path, r.Header)
				}
				w.WriteHeader(x.Status)
				fmt.Fprintf(w, "%s", x.Answer)
			})
			h := hook.NewA2A(url+"/a2a/v1", client.Credential("token"), c)
			got, err := h.Handle(ctx, callOf(t, record.Exchanges[0].Request))
			if unfinished {
				if !errors.Is(err, context.Canceled) || next != len(record.Exchanges) {
					t.Errorf("an unfinished task: %d of %d exchanges, answer %+v, %v", next, len(record.Exchanges), got, err)
				}
				return
			}
			for err != nil && next < len(record.Exchanges) && bytes.Contains(record.Exchanges[next-1].Answer, []byte("TASK_STATE_FAILED")) {
				if hook.FaultOf(err) != hook.Crashed {
					t.Errorf("a failed task: %v", err)
				}
				got, err = h.Handle(t.Context(), callOf(t, record.Exchanges[next].Request)) // the owner ran the hook again
			}
			if err != nil || got.Payload == nil || canonical(t, got.Payload.JSON()) != canonical(t, record.Answer) || next != len(record.Exchanges) {
				t.Errorf("%d of %d exchanges, answer %+v, %v\nwant %s", next, len(record.Exchanges), got, err, record.Answer)
			}
		})
	}
}
