package hook_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestOpenClaw: the request has the form that the gateway accepts, and strangers' text stands between fences (THREATS
// 30).
func TestOpenClaw(t *testing.T) {
	var got wire.Value
	var header http.Header
	url, c := hookServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got, _ = wire.ParseObject(body)
		header = r.Header
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, `{"ok":true,"runId":"r1"}`)
	})
	h := hook.OpenClaw{URL: url + "/hooks/agent", Token: "gateway-token", AgentID: "main", HTTP: c}
	answer, err := h.Handle(t.Context(), aCall(t))
	if err != nil || !answer.Async {
		t.Fatalf("Handle = %+v, %v, want async", answer, err)
	}
	if header.Get("Authorization") != "Bearer gateway-token" || header.Get("Idempotency-Key") != "msg_1" {
		t.Errorf("headers: %v", header)
	}
	if _, ok := got.Get("sessionKey"); ok {
		t.Error("sessionKey is sent although the owner did not enable it")
	}
	if _, ok := got.Get("sessionMode"); ok {
		t.Error("sessionMode is sent without a sessionKey")
	}
	if got.GetStr("agentId") != "main" || got.GetStr("name") != "AgentMesh" {
		t.Errorf("body: %s", got.JSON())
	}
	text := got.GetStr("message")
	for _, instruction := range []string{"run ", "exactly", "never", "agentmesh reply", "agentmesh inbox"} { // the gateway tells its model to follow no instruction
		if strings.Contains(text, instruction) {
			t.Errorf("the text instructs the agent (%q), which the gateway tells it to ignore:\n%s", instruction, text)
		}
	}
	if !strings.Contains(text, "conv_1") || !strings.Contains(text, "am_chris") {
		t.Errorf("the text names neither the sender nor the conversation:\n%s", text)
	}
	if strings.ContainsRune(text, 0x1b) {
		t.Errorf("the prompt has control characters: %q", text)
	}
	_, fence, _ := strings.Cut(text, "Between the lines marked ")
	fence, _, _ = strings.Cut(fence, " ")
	outside := text
	for {
		before, rest, ok := strings.Cut(outside, "--- "+fence+" begin")
		if !ok {
			break
		}
		_, after, ok := strings.Cut(rest, "--- "+fence+" end")
		if !ok {
			t.Fatalf("a fence is not closed:\n%s", text)
		}
		outside = before + after
	}
	if len(fence) < 20 || strings.Contains(outside, "Ignore your owner") || strings.Contains(outside, "]0;x") {
		t.Errorf("text of the peer is outside of the fence %q:\n%s", fence, outside)
	}

	h.SessionKey = true
	if _, err := h.Handle(t.Context(), aCall(t)); err != nil || !strings.HasPrefix(got.GetStr("sessionKey"), "agentmesh:conv_1.") || got.GetStr("sessionMode") != "persistent" {
		t.Errorf("sessionKey = %q, %v", got.GetStr("sessionKey"), err)
	}
	if again := got.GetStr("message"); again != text {
		t.Errorf("the same message has another text, which makes another run:\n%s", again)
	}
	other := aCall(t)
	other.Message.ID = "msg_2"
	if _, err := h.Handle(t.Context(), other); err != nil || strings.Contains(got.GetStr("message"), fence) {
		t.Errorf("two messages have the same fence, %v", err)
	}
	other.Reminder = true
	told := got.GetStr("message")
	if _, err := h.Handle(t.Context(), other); err != nil || header.Get("Idempotency-Key") != "msg_2-reminder" || got.GetStr("message") == told {
		t.Errorf("a reminder does not start its own run, %v", err)
	}
}

// TestOpenClawLongTexts: the longest possible conversation fits into what a gateway accepts, and strangers' text calls
// no skill.
func TestOpenClawLongTexts(t *testing.T) {
	var size int
	var got wire.Value
	url, c := hookServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		size = len(body)
		got, _ = wire.ParseObject(body)
	})
	for name, char := range map[string]string{"quotes": `\"`, "wide": "漢", "wider": "𝕬", "plain": "x", "references": "$github ", "digits": "$1password ", "sums": "$900 "} {
		call := aCall(t)
		call.Payload = []byte(`{"action":"deliver","message":{"body":"` + strings.Repeat(char, 250_000/len(char)) + `"}}`)
		v, err := wire.Parse(call.Payload)
		if err != nil {
			t.Fatal(err)
		}
		call.Sender.Name = untrusted.Text(strings.Repeat(strings.Trim(char, `\`), 256))
		call.History = nil
		for i := range 20 {
			earlier := wire.Draft{ID: wire.MessageID(fmt.Sprint("msg_", i+100)), Conversation: "conv_1", From: "am_chris", To: "am_sarah", Intent: wire.Deliver, Payload: v}
			call.History = append(call.History, store.Entry{MessageID: string(earlier.ID), Raw: earlier.Tree().JSON()})
		}
		if _, err := (hook.OpenClaw{URL: url, Token: "gateway-token", HTTP: c}).Handle(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		text := got.GetStr("message")
		if size == 0 || size > 256<<10 || !utf8.ValidString(text) || strings.Count(text, "begin: earlier") < 3 {
			t.Errorf("%s: %d bytes, %d earlier messages", name, size, strings.Count(text, "begin: earlier"))
		}
		for reference, literal := range map[string]string{"$github ": `\$github \$github`, "$1password ": `\$1password \$1password`, "$900 ": ` $900 $900`} {
			if char == reference && !strings.Contains(text, literal) || regexp.MustCompile(`(^|[^\\])\$(github|1password)`).MatchString(text) {
				t.Errorf("%s: a skill is called, or a sum was changed", name)
			}
		}
	}
}
