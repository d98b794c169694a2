package a2a_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAsksBack checks a task that needs an answer: our next message in the conversation goes to that task.
func TestAsksBack(t *testing.T) {
	p := newPeerAgent(t)
	p.answer = func(method string, params wire.Value) (string, int) {
		switch {
		case method == "SendMessage" && text(params, "message.taskId") == "":
			return `{"task":{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_INPUT_REQUIRED","message":{"messageId":"q","role":"ROLE_AGENT","parts":[{"text":"which?"}]}}}}`, 0
		case method == "SendMessage" && text(params, "message.taskId") == "t1":
			return `{"task":{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a","parts":[{"text":"bought"}]}]}}`, 0
		}
		return "", -32601
	}
	h := serve(t, nil, nil, nil)
	sent := h.write("a2a:"+p.URL, "buy")
	if v := h.inbox(sent.Conversation, 1); text(v, "task.state") != "input_required" || text(v, "message.body") != "which?" {
		t.Fatalf("the question: %s", v.JSON())
	}
	if _, err := h.node.OwnerAPI().Reply(t.Context(), owner.NewReply{Conversation: string(sent.Conversation), Payload: deliver("the red one")}, 0); err != nil {
		t.Fatal(err)
	}
	if v := h.inbox(sent.Conversation, 2); text(v, "message.body") != "bought" {
		t.Errorf("after the answer: %s", v.JSON())
	}
}

// TestAuthRequired checks a task that waits until somebody grants access elsewhere: the owner learns it once, and the
// answer arrives with a reply, which goes to that task, and without one.
func TestAuthRequired(t *testing.T) {
	for _, reply := range []bool{true, false} {
		p := newPeerAgent(t)
		var granted atomic.Bool
		var page atomic.Value
		page.Store("")
		p.answer = func(method string, params wire.Value) (string, int) {
			task := fmt.Sprintf(`{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_AUTH_REQUIRED","message":{"messageId":"q","role":"ROLE_AGENT","parts":[{"text":"sign in at https://x.example%s"}]}}}`, page.Load())
			if granted.Load() || text(params, "message.taskId") == "t1" {
				task = completed
			}
			if method == "SendMessage" {
				return `{"task":` + task + `}`, 0
			}
			return task, 0
		}
		h := serve(t, nil, nil, nil)
		conv := h.write("a2a:"+p.URL, "work").Conversation
		if v := h.inbox(conv, 1); text(v, "task.state") != "input_required" || text(v, "message.body") != "sign in at https://x.example" {
			t.Fatalf("the request for access is %s", v.JSON())
		}
		page.Store("/again") // the first page has expired
		h.bridge.AgeSent(t, 0)
		if v := h.inbox(conv, 2); text(v, "message.body") != "sign in at https://x.example/again" {
			t.Fatalf("the second request for access is %s", v.JSON())
		}
		h.bridge.AwaitPolls(t)
		if reply {
			if _, err := h.node.OwnerAPI().Reply(t.Context(), owner.NewReply{Conversation: string(conv), Payload: deliver("go on")}, 0); err != nil {
				t.Fatal(err)
			}
		} else {
			granted.Store(true)
			h.bridge.AgeSent(t, 0)
		}
		if v := h.inbox(conv, 3); text(v, "message.body") != "done" {
			t.Errorf("the answer is %s", v.JSON())
		}
	}
}

// TestReplyAfterFailure checks that a reply to a question goes to the task that asks, even if its first attempt fails.
func TestReplyAfterFailure(t *testing.T) {
	p := newPeerAgent(t)
	replies := 0
	p.answer = func(method string, params wire.Value) (string, int) {
		switch {
		case method != "SendMessage":
			return "", -32601
		case text(params, "message.parts.0.text") == "buy":
			return `{"task":{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_INPUT_REQUIRED","message":{"messageId":"q","role":"ROLE_AGENT","parts":[{"text":"which?"}]}}}}`, 0
		case text(params, "message.taskId") != "t1":
			t.Error("the reply opens another task")
		}
		if replies++; replies == 1 {
			return "", http.StatusBadGateway
		}
		return `{"task":` + completed + `}`, 0
	}
	h := serve(t, nil, nil, nil)
	question, reply := delivery(t, "a2a:"+p.URL), delivery(t, "a2a:"+p.URL)
	question.Message.Payload, reply.Message.Conversation = deliver("buy"), question.Message.Conversation
	if _, err := h.bridge.Deliver(t.Context(), question); err != nil {
		t.Fatal(err)
	}
	if _, err := h.bridge.Deliver(t.Context(), reply); err == nil {
		t.Fatal("the first attempt did not fail")
	}
	if _, err := h.bridge.Deliver(t.Context(), reply); err != nil || replies != 2 {
		t.Errorf("the second attempt: %v, %d replies", err, replies)
	}
}
