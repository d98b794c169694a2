package a2a_test

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
)

// TestRelayedAnswer checks that the answer to a call from the relay has no history, which the relay would drop.
func TestRelayedAnswer(t *testing.T) {
	h := serve(t, nil, nil, func(c *a2a.Config) { c.Relay = "https://relay.example/a2a/am_x" })
	call := func(method, params string) string {
		t.Helper()
		raw := `{"method":"` + method + `","params":` + params + `,"token":"` + credential.HashOf(h.token("ann")).String() + `","task":"t1","answer_token":"secret"}`
		task, token, answer, err := h.bridge.AnswerCall(t.Context(), []byte(raw))
		if err != nil || task != "t1" || token != "secret" {
			t.Fatalf("%s: task %q, token %q, %v", method, task, token, err)
		}
		return string(answer)
	}
	sent := call("SendMessage", message("m1", "", "hello", later))
	if !strings.Contains(sent, "TASK_STATE_SUBMITTED") || strings.Contains(sent, "history") {
		t.Errorf("sent: %s", sent)
	}
	canceled := call("CancelTask", `{"id":"`+text(parse(t, sent), "result.task.id")+`"}`)
	if !strings.Contains(canceled, "TASK_STATE_CANCELED") || strings.Contains(canceled, "history") {
		t.Errorf("canceled: %s", canceled)
	}
}
