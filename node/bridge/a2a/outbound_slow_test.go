//go:build slow

package a2a_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestCancelRemote checks that our close cancels the task of the other agent.
func TestCancelRemote(t *testing.T) {
	t.Parallel()
	p := newPeerAgent(t)
	working := p.answer
	p.answer = func(method string, params wire.Value) (string, int) {
		switch {
		case method == "CancelTask" && p.count("CancelTask") == 1:
			return "", http.StatusTooManyRequests
		case method == "CancelTask":
			return `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELED"}}`, 0
		}
		return working(method, params)
	}
	h := serve(t, nil, nil, nil)
	sent := h.write("a2a:"+p.URL, "work")
	if _, err := h.node.OwnerAPI().CloseConversation(t.Context(), string(sent.Conversation), owner.Close{Status: "failed"}, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); p.count("CancelTask") < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the task was not canceled after an agent that was busy")
		}
	}
}

// TestAnswerOverdue checks that the bridge stops asking about a task after a week, whether the agent keeps answering
// that it works or cannot be reached, and says so in the conversation.
func TestAnswerOverdue(t *testing.T) {
	t.Parallel()
	for _, reachable := range []bool{true, false} {
		p := newPeerAgent(t)
		h := serve(t, nil, nil, nil)
		conv := h.write("a2a:"+p.URL, "work").Conversation
		h.bridge.AwaitSent(t)
		p.down.Store(!reachable)
		h.bridge.AgeSent(t, 8*24*time.Hour)
		v := h.inbox(conv, 1)
		if text(v, "task.state") != "failed" || !strings.Contains(text(v, "task.text"), "7 days") || strings.Contains(text(v, "task.text"), "502") == reachable {
			t.Errorf("reachable %v: %s", reachable, v.JSON())
		}
		for deadline := time.Now().Add(20 * time.Second); ; <-time.After(time.Millisecond) { // the message comes before the end
			if n, _ := h.bridge.SentDue(t); n == 0 {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("reachable %v: %d tasks are still polled", reachable, n)
			}
		}
	}
}
