package a2a_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// answerTo returns the delivery of an answer to an item of the inbox.
func answerTo(t *testing.T, item owner.Item, text string) bridge.Delivery {
	t.Helper()
	d := delivery(t, item.Address)
	d.Message.Conversation = item.Conversation
	d.Message.Payload = deliver(text).With("metadata", wire.Obj(wire.TextField("in_reply_to", string(item.MessageID))))
	return d
}

// TestAnswerOfEndedTask checks that a second answer to a message whose task has ended, and a repeated delivery of the
// first one, do not become the result of another task of the context that is open.
func TestAnswerOfEndedTask(t *testing.T) {
	h := serve(t, nil, nil, nil)
	ask := func(n int) string {
		return text(h.rpc("ann", "SendMessage", message(fmt.Sprint("m", n), `,"contextId":"c"`, "hello", later)), "result.task.id")
	}
	first := ask(1)
	page, err := h.node.OwnerAPI().ListItems(t.Context(), owner.Query{Limit: 10})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("%d items, %v", len(page.Items), err)
	}
	answer := answerTo(t, page.Items[0], "until six")
	second := ""
	for i, d := range []bridge.Delivery{answer, answer, answerTo(t, page.Items[0], "no, until seven")} {
		if i == 1 {
			second = ask(2)
		}
		if _, err := h.bridge.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]string{first: "TASK_STATE_COMPLETED", second: "TASK_STATE_SUBMITTED"} {
		if v := h.rpc("ann", "GetTask", `{"id":"`+id+`"}`); text(v, "result.status.state") != want {
			t.Errorf("want %s: %s", want, v.JSON())
		}
	}
	if v := h.rpc("ann", "ListTasks", `{}`); at(v, "result.tasks").Len() != 3 || text(v, "result.tasks.0.status.state") != "TASK_STATE_COMPLETED" {
		t.Errorf("want one task more, for the second answer: %s", v.JSON())
	}
}

// TestAnswerMakesRoom checks that a message of ours reaches a caller that has the maximum number of tasks.
func TestAnswerMakesRoom(t *testing.T) {
	h := serve(t, nil, nil, nil)
	h.bridge.FillTasks(t, "a2a:inbound/ann", "TASK_STATE_COMPLETED", a2a.MaxTasks)
	d := delivery(t, "a2a:inbound/ann")
	if _, err := h.bridge.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if v := h.rpc("ann", "ListTasks", `{"pageSize":1}`); text(v, "result.tasks.0.contextId") != string(d.Message.Conversation) {
		t.Errorf("the newest task is %s", v.JSON())
	}
}

// TestUnstoredAnswer checks that a message to an agent is tried again, and not sent twice, if the store fails when the
// agent has answered.
func TestUnstoredAnswer(t *testing.T) {
	p := newPeerAgent(t)
	var m meddler
	h := serve(t, nil, nil, meddle(&m, "a2a/sent", nil))
	known := ""
	p.answer = func(method string, params wire.Value) (string, int) {
		if method == "ListTasks" {
			return `{"tasks":[` + strings.Replace(completed, `"status"`, `"history":[{"messageId":"`+known+`","role":"ROLE_USER","parts":[{"text":"x"}]}],"status"`, 1) + `],"nextPageToken":""}`, 0
		}
		known = text(params, "message.messageId")
		m.lost.Store(new(errors.New("the disk is full")))
		return `{"task":` + completed + `}`, 0
	}
	d := delivery(t, "a2a:"+p.URL)
	_, err := h.bridge.Deliver(t.Context(), d)
	if e, ok := errors.AsType[*client.SendError](err); !ok || !e.Retry || !e.Processed {
		t.Errorf("the first attempt: %v", err)
	}
	if _, err := h.bridge.Deliver(t.Context(), d); err != nil || p.count("SendMessage") != 1 {
		t.Errorf("the second attempt: %v, %d calls", err, p.count("SendMessage"))
	}
	if v := h.inbox(d.Message.Conversation, 1); text(v, "message.body") != "done" {
		t.Errorf("the answer is %s", v.JSON())
	}
}
