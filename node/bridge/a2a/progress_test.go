package a2a_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestSentSoFar checks case A2A-1: while a hook streams an artifact, GetTask shows what it has sent, and a subscription
// begins with it and gets only what comes after (A2A-18). The complete artifact is not sent again, and no status
// message repeats it (A2A-17).
func TestSentSoFar(t *testing.T) {
	pieces, sent := make(chan string), make(chan struct{})
	h := serve(t, agent(func(_ context.Context, c hook.Call) (hook.Answer, error) {
		for piece := range pieces {
			c.Progress(hook.Result{Artifacts: []hook.Artifact{{ID: "log", Append: true, Last: piece == "5 ", Parts: []hook.Part{{Text: &piece}}}}})
			sent <- struct{}{}
		}
		return payload(t, `{"action":"deliver","message":{"body":"1 2 3 4 5 "},"artifacts":[{"id":"log","parts":[{"text":"1 2 3 4 5 "}]}]}`), nil
	}), nil, nil)
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "count", later)), "result.task.id")
	say := func(piece string) {
		pieces <- piece
		<-sent
	}
	shown := func() string {
		return text(h.rpc("ann", "GetTask", `{"id":"`+id+`"}`), "result.artifacts.0.parts.0.text")
	}
	for _, piece := range []string{"1 ", "2 ", "3 "} {
		say(piece)
	}
	for deadline := time.Now().Add(10 * time.Second); shown() != "1 2 3 "; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after three pieces, the task shows %q", shown())
		}
	}
	got := make(chan []wire.Value, 1)
	go func() { got <- h.events("ann", "GET", h.base+"/tasks/"+id+":subscribe", "", nil) }()
	for deadline := time.Now().Add(10 * time.Second); h.bridge.Waiters() < 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the stream did not open")
		}
	}
	say("4 ")
	say("5 ")
	for deadline := time.Now().Add(10 * time.Second); shown() != "1 2 3 4 5 "; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after five pieces, the task shows %q", shown())
		}
	}
	close(pieces)
	var seen []string
	for _, e := range <-got {
		seen = append(seen, strings.TrimPrefix(state(e), "TASK_STATE_")+text(e, "task.artifacts.0.parts.0.text")+text(e, "artifactUpdate.artifact.parts.0.text")+text(e, "statusUpdate.status.message.parts.0.text"))
	}
	if all := strings.Join(seen, "|"); all != "WORKING1 2 3 |4 |5 |COMPLETED" {
		t.Errorf("the stream has %s", all)
	}
	if all := shown(); all != "1 2 3 4 5 " {
		t.Errorf("in the end, the task shows %q", all)
	}
}

// TestDirectMessage checks that a caller that waits gets the message of a hook that answers without a task, and that
// the others get a task (A2A-17).
func TestDirectMessage(t *testing.T) {
	h := serve(t, agent(func(context.Context, hook.Call) (hook.Answer, error) {
		return payload(t, `{"action":"deliver","message":{"body":"half past six"},"task":{"state":"completed","message":true}}`), nil
	}), nil, nil)
	v := h.rpc("ann", "SendMessage", message("m1", `,"contextId":"c"`, "what time is it?", ""))
	if text(v, "result.message.parts.0.text") != "half past six" || text(v, "result.message.role") != "ROLE_AGENT" || text(v, "result.message.contextId") != "c" || !at(v, "result.task").IsNull() {
		t.Errorf("a direct message: %s", v.JSON())
	}
	v = h.rpc("ann", "SendMessage", message("m2", `,"contextId":"c"`, "what time is it?", later))
	if id := text(v, "result.task.id"); id == "" {
		t.Errorf("without a wait: %s", v.JSON())
	}
	_, _, body := h.request("ann", "POST", h.base, `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m3","role":"user","parts":[{"kind":"text","text":"and now?"}]}}}`)
	if v := parse(t, body); text(v, "result.kind") != "message" || text(v, "result.parts.0.text") != "half past six" {
		t.Errorf("in A2A 0.3: %s", body)
	}
}
