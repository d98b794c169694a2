package a2a_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/hook"
)

// TestLongConversation checks that a request for a task keeps only the messages of that task in memory, however long
// the conversation is, and that a list of its tasks has each answer.
func TestLongConversation(t *testing.T) {
	t.Parallel()
	h := serve(t, echo(t), nil, nil)
	first := ""
	for i := range 40 { // the transcript has more than one page
		v := h.send("ann", fmt.Sprint("m", i), `,"contextId":"one"`, fmt.Sprint("hello ", i))
		if i == 0 {
			first = text(v, "result.task.id")
		}
	}
	if n, _ := h.bridge.CountRead(t, first); n != 2 {
		t.Errorf("a task with a message and its answer reads %d messages", n)
	}
	tasks := at(h.rpc("ann", "ListTasks", `{"contextId":"one","includeArtifacts":true,"historyLength":5}`), "result.tasks")
	for i := range 40 {
		task := tasks.At(39 - i)
		if text(task, "artifacts.0.parts.0.text") != fmt.Sprint("you said: hello ", i) || text(task, "history.0.parts.0.text") != fmt.Sprint("hello ", i) {
			t.Errorf("task %d is %s", i, task.JSON())
		}
	}
}

// TestListOfLargeTasks checks that a page of large tasks ends early, and that the pages have each task once.
func TestListOfLargeTasks(t *testing.T) {
	t.Parallel()
	h := serve(t, echo(t), nil, nil)
	const n = 12
	for i := range n {
		h.send("ann", fmt.Sprint("m", i), "", strings.Repeat("x", 240_000))
	}
	seen, pages := make(map[string]bool), 0
	for token, more := "", true; more; more = token != "" {
		status, _, body := h.request("ann", "GET", h.base+"/tasks?pageSize=100&includeArtifacts=true&historyLength=1&pageToken="+token, "")
		if status != 200 || len(body) > 10<<20 {
			t.Fatalf("%d, %d bytes", status, len(body))
		}
		v := parse(t, body)
		for task := range at(v, "tasks").Elems() {
			seen[task.GetStr("id")] = true
		}
		token, pages = v.GetStr("nextPageToken"), pages+1
	}
	if len(seen) != n || pages < 2 {
		t.Errorf("%d tasks on %d pages, want %d on at least 2", len(seen), pages, n)
	}
}

// TestLargeTask checks that a task with many large messages shows only the newest of them, without a gap, and that a
// request for the task does not keep the others in memory.
func TestLargeTask(t *testing.T) {
	t.Parallel()
	h := serve(t, agent(func(context.Context, hook.Call) (hook.Answer, error) {
		return payload(t, `{"action":"deliver","message":{"body":"go on"},"task":{"state":"input_required"}}`), nil
	}), nil, nil)
	const n = 8
	id := ""
	for i := range n {
		more := `,"metadata":{"x":"` + strings.Repeat("x", 900_000) + `"}`
		if i > 0 {
			more += `,"taskId":"` + id + `"`
		}
		id = text(h.send("ann", fmt.Sprint("m", i), more, "hello"), "result.task.id")
	}
	history := at(h.get("ann", id), "result.history")
	if history.Len() != 8 { // four of the caller, and the answer before each
		t.Fatalf("the history has %d messages", history.Len())
	}
	for i := range 4 {
		if got := text(history.At(2*i+1), "messageId"); got != fmt.Sprint("m", n-4+i) {
			t.Errorf("message %d of the history is %s", 2*i+1, got)
		}
	}
	if n, bytes := h.bridge.CountRead(t, id); bytes > 4<<20 {
		t.Errorf("the request reads %d messages with %d bytes", n, bytes)
	}
	if tasks := h.rpc("ann", "ListTasks", `{"historyLength":1}`); text(tasks, "result.tasks.0.history.0.messageId") != fmt.Sprint("m", n-1) {
		t.Error("the list does not show the newest message")
	}
}

// TestForeignNumbers checks that the history has a message whose metadata has a number that AgentMesh does not allow.
func TestForeignNumbers(t *testing.T) {
	h := serve(t, agent(func(context.Context, hook.Call) (hook.Answer, error) {
		return payload(t, `{"action":"deliver","message":{"body":"go on"},"task":{"state":"input_required"}}`), nil
	}), nil, nil)
	id := text(h.send("ann", "m0", "", "hello"), "result.task.id")
	for _, call := range []string{
		`"SendMessage","params":` + message("m1", `,"metadata":{"trace":12345678901234567890},"taskId":"`+id+`"`, "hello", ""),
		`"GetTask","params":{"id":"` + id + `"}`,
	} {
		_, _, body := h.request("ann", "POST", h.base, `{"jsonrpc":"2.0","id":1,"method":`+call+`}`, "A2A-Version", "1.0")
		if !strings.Contains(body, `"m0"`) || !strings.Contains(body, `"trace":12345678901234567890`) {
			t.Errorf("%.20s answers %s", call, body)
		}
	}
}

// TestManyStates checks that a task with many turns still shows what our agent said in the first of them.
func TestManyStates(t *testing.T) {
	t.Parallel()
	turns := make(chan string)
	h := serve(t, agent(func(context.Context, hook.Call) (hook.Answer, error) {
		return payload(t, `{"action":"deliver","message":{"body":"`+<-turns+`"},"task":{"state":"input_required"}}`), nil
	}), nil, nil)
	const n = 50
	id := ""
	for i := range n { // each with three states
		more := ""
		if i > 0 {
			more = `,"taskId":"` + id + `"`
		}
		id = text(h.rpc("ann", "SendMessage", message(fmt.Sprint("m", i), more, "hello", later)), "result.task.id")
		h.await("ann", id, "TASK_STATE_WORKING")
		turns <- fmt.Sprint("question ", i)
		h.await("ann", id, "TASK_STATE_INPUT_REQUIRED")
	}
	history := at(h.get("ann", id), "result.history")
	if history.Len() != 2*n-1 {
		t.Fatalf("the history has %d messages, want %d", history.Len(), 2*n-1)
	}
	for i := range n - 1 {
		if got := text(history.At(2*i+1), "parts.0.text"); got != fmt.Sprint("question ", i) {
			t.Errorf("answer %d is %q", i, got)
		}
	}
}
