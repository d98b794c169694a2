//go:build slow

package a2a_test

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestBusyAgent checks that a message and its answer survive the rate limit of OpenClaw: an error of JSON-RPC with
// the HTTP status 200.
func TestBusyAgent(t *testing.T) {
	t.Parallel()
	p := newPeerAgent(t)
	answer := p.answer
	p.answer = func(method string, params wire.Value) (string, int) {
		if p.count(method) == 1 {
			return "", -32000
		}
		if method == "GetTask" {
			return `{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a","parts":[{"text":"done"}]}]}`, 0
		}
		return answer(method, params)
	}
	h := serve(t, nil, nil, nil)
	sent := h.write("a2a:"+p.URL, "work")
	if sent.State == owner.SendFailed {
		t.Fatalf("sent: %+v", sent)
	}
	if v := h.inbox(sent.Conversation, 1); text(v, "message.body") != "done" {
		t.Errorf("the answer is %s", v.JSON())
	}
	if sends := p.count("SendMessage"); sends != 2 {
		t.Errorf("the message was sent %d times", sends)
	}
}
