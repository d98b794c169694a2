package a2a_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// state returns the state that an event reports, "" for an artifact.
func state(v wire.Value) string {
	for _, path := range []string{"result.task.status.state", "result.statusUpdate.status.state", "task.status.state", "statusUpdate.status.state"} {
		if s := text(v, path); s != "" {
			return s
		}
	}
	return ""
}

// TestStream checks A2A-12: first the task, then artifacts and states in order, the same for each stream, and the end
// of the stream with the end of the task.
func TestStream(t *testing.T) {
	started, goOn := make(chan struct{}), make(chan struct{})
	h := serve(t, agent(func(_ context.Context, c hook.Call) (hook.Answer, error) {
		close(started)
		<-goOn
		part := "first "
		c.Progress(hook.Result{Task: &hook.Task{State: hook.TaskWorking, Text: "half way"}, Artifacts: []hook.Artifact{{ID: "r", Parts: []hook.Part{{Text: &part}}}}})
		time.Sleep(50 * time.Millisecond) // progress is a hint: give it time to arrive before the answer
		return payload(t, `{"action":"deliver","message":{"body":"ready"},"artifacts":[{"id":"r","parts":[{"text":"first "},{"text":"second"}]}]}`), nil
	}), nil, nil)
	results := make(chan []wire.Value, 3)
	go func() {
		results <- h.events("ann", "POST", h.base, `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":`+message("m1", "", "work", "")+`}`, nil)
	}()
	<-started
	id := text(h.rpc("ann", "ListTasks", `{}`), "result.tasks.0.id")
	for _, method := range []string{"GET", "POST"} {
		go func() { results <- h.events("ann", method, h.base+"/tasks/"+id+":subscribe", "", nil) }()
	}
	for deadline := time.Now().Add(10 * time.Second); h.bridge.Waiters() < 3; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the streams did not open")
		}
	}
	close(goOn)
	for range 3 {
		events := <-results
		first := events[0]
		if text(first, "result.task.id")+text(first, "task.id") != id {
			t.Errorf("the first event is %s", first.JSON())
		}
		var order []string
		for _, e := range events[1:] {
			switch {
			case at(e, "result.artifactUpdate").Kind() == wire.Object || at(e, "artifactUpdate").Kind() == wire.Object:
				order = append(order, "artifact")
			default:
				order = append(order, strings.TrimPrefix(state(e), "TASK_STATE_"))
			}
		}
		got := strings.Join(order, " ")
		got = strings.TrimPrefix(got, "WORKING ") // the first stream may open before the hook runs
		if got != "artifact WORKING artifact COMPLETED" {
			t.Errorf("the events are %s", got)
		}
		if last := events[len(events)-1]; text(last, "result.statusUpdate.status.message.parts.0.text")+text(last, "statusUpdate.status.message.parts.0.text") != "ready" {
			t.Errorf("the last event is %s", last.JSON())
		}
	}
	if v := h.rpc("ann", "SubscribeToTask", `{"id":"`+id+`"}`); text(v, "error.data.0.reason") != "UNSUPPORTED_OPERATION" {
		t.Errorf("subscribe to a task that has ended: %s", v.JSON())
	}
}

// TestStreamAsksBack checks that a stream ends when the agent needs an answer of the caller.
func TestStreamAsksBack(t *testing.T) {
	h := serve(t, agent(func(context.Context, hook.Call) (hook.Answer, error) {
		return payload(t, `{"action":"deliver","message":{"body":"which one?"},"task":{"state":"input_required"}}`), nil
	}), nil, nil)
	events := h.events("ann", "POST", h.base+"/message:stream", message("m1", "", "buy", ""), nil)
	if got := state(events[len(events)-1]); got != "TASK_STATE_INPUT_REQUIRED" {
		t.Errorf("the stream ends with %s", got)
	}
}

// TestBlockedCaller checks that a stream ends with the next event after the owner has blocked its caller, and shows
// nothing of it, and that webhooks of the caller get nothing any more.
func TestBlockedCaller(t *testing.T) {
	goOn := make(chan struct{})
	h := serve(t, agent(func(context.Context, hook.Call) (hook.Answer, error) {
		<-goOn
		return payload(t, `{"action":"deliver","message":{"body":"secret"}}`), nil
	}), nil, nil)
	hook := newWebhook(t)
	config := `"taskPushNotificationConfig":{"url":"` + hook.URL + `"}`
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "work", later+","+config)), "result.task.id")
	got := make(chan []wire.Value, 1)
	go func() { got <- h.events("ann", "GET", h.base+"/tasks/"+id+":subscribe", "", nil) }()
	for deadline := time.Now().Add(10 * time.Second); h.bridge.Waiters() < 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the stream did not open")
		}
	}
	if _, err := h.node.OwnerAPI().ChangePeer(t.Context(), "a2a:inbound/ann", owner.PeerChange{Action: "block"}, "test"); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	for _, e := range <-got {
		if s := state(e); s != "TASK_STATE_SUBMITTED" && s != "TASK_STATE_WORKING" {
			t.Errorf("the stream of a blocked caller has %s", e.JSON())
		}
	}
	for deadline := time.Now().Add(10 * time.Second); h.bridge.PushesDue(t.Context()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the webhook of a blocked caller still waits for a notification")
		}
	}
	for len(hook.got) > 0 {
		if v := <-hook.got; state(v) != "TASK_STATE_SUBMITTED" && state(v) != "TASK_STATE_WORKING" {
			t.Errorf("the webhook of a blocked caller gets %s", v.JSON())
		}
	}
}

// TestManyStreams checks the bounds of open streams: one caller cannot take the places of others, and closed streams
// free their places.
func TestManyStreams(t *testing.T) {
	h := serve(t, nil, nil, nil)
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "hello", later)), "result.task.id")
	other := text(h.rpc("bob", "SendMessage", message("m1", "", "hello", later)), "result.task.id")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := func(caller, task string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, "GET", h.base+"/tasks/"+task+":subscribe", nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+h.token(caller))
		return http.DefaultClient.Do(req)
	}
	refused := 0
	for range 40 {
		resp, err := open("ann", id)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode == http.StatusTooManyRequests {
			refused++
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	if refused != 24 || h.bridge.Waiters() != 16 {
		t.Errorf("%d streams were refused, %d are open", refused, h.bridge.Waiters())
	}
	if resp, err := open("bob", other); err != nil || resp.StatusCode != 200 {
		t.Errorf("another caller's stream: %v, %v", resp, err)
	}
	status, _, _ := h.request("ann", "POST", h.base+"/message:stream", message("m3", "", "refused", ""))
	if list := h.rpc("ann", "ListTasks", `{}`); status != http.StatusTooManyRequests || at(list, "result.tasks").Len() != 1 {
		t.Errorf("a stream without a place answers %d, and the tasks are %s", status, list.JSON())
	}
	if v := h.rpc("ann", "SendMessage", message("m2", "", "still works", "")); text(v, "result.task.id") == "" {
		t.Errorf("a blocking call without a place: %s", v.JSON())
	}
	cancel()
	for deadline := time.Now().Add(10 * time.Second); h.bridge.Waiters() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams are left after their clients have gone", h.bridge.Waiters())
		}
	}
}
