package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestExamplePayload: the error for a text with an intent that needs a JSON object has an example of that intent.
func TestExamplePayload(t *testing.T) {
	for _, intent := range []wire.Intent{wire.Schedule, wire.Negotiate, wire.Handoff} {
		for _, isReply := range []bool{false, true} {
			c := sendFlags{Intent: string(intent), isReply: isReply}
			_, err := c.payload(&app{}, "tea at four")
			failed, ok := errors.AsType[*exit.Error](err)
			if !ok {
				t.Fatalf("%s: a text gives %v, want a failure with an example", intent, err)
			}
			example := strings.TrimSuffix(strings.TrimPrefix(failed.Hint, "for example: '"), "'")
			payload, err := wire.ParseObject([]byte(example))
			if err != nil {
				t.Fatalf("%s: example %q: %v", intent, example, err)
			}
			known, err := wire.CheckPayload(intent, payload)
			if err != nil || !known {
				t.Errorf("%s: example %s: known %v, %v, want a payload of the intent", intent, example, known, err)
			}
		}
	}
}

// TestPlainQuestion: a text is a question with --intent mesh.request_info, and an answer in a reply.
func TestPlainQuestion(t *testing.T) {
	for isReply, want := range map[bool]string{false: `{"action":"ask","question":"what now?"}`, true: `{"action":"answer","answer":"what now?"}`} {
		c := sendFlags{Intent: string(wire.RequestInfo), isReply: isReply}
		payload, err := c.payload(&app{}, "what now?")
		if err != nil || string(payload.JSON()) != want || c.Intent != string(wire.RequestInfo) {
			t.Errorf("%s, %v, want %s", payload.JSON(), err, want)
		}
	}
}

// TestTextPayload: with --text, an argument that would be read as JSON, a file or standard input is sent as it is. The
// error for broken JSON names the flag.
func TestTextPayload(t *testing.T) {
	for _, text := range []string{"{hello}", `{"a":1}`, " {", "@sarah: hello", "-"} {
		c := sendFlags{Text: true}
		payload, err := c.payload(&app{}, text)
		message, _ := payload.Get("message")
		if body := message.GetStr("body"); err != nil || body != text || c.Intent != string(wire.Deliver) {
			t.Errorf("%q is sent as %q with intent %q, %v", text, body, c.Intent, err)
		}
	}
	c := sendFlags{}
	_, err := c.payload(&app{}, "{hello}")
	if failed, ok := errors.AsType[*exit.Error](err); !ok || !strings.Contains(failed.Hint, "--text") {
		t.Errorf("the error for broken JSON is %v", err)
	}
	c = sendFlags{Text: true, Intent: string(wire.Schedule)}
	if _, err := c.payload(&app{}, "{hello}"); exit.Code(err) != exit.Usage {
		t.Errorf("a text with an intent that needs a JSON object: %v", err)
	}
	c = sendFlags{Text: true, Action: "accept"}
	if _, err := c.payload(&app{}, ""); exit.Code(err) != exit.Usage {
		t.Errorf("a text that became the flag --action=accept: %v", err)
	}
}
