package directory

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/a2arelay"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

const aliceDoor = "https://directory.example/a2a/am_alice"

// newCallWorld is a relay world in which am_alice has an A2A card.
func newCallWorld(t *testing.T) *world {
	w := newWorld(t, func(c *Config) { c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: -1}).Addresses() })
	w.register(alice, mailboxCard("am_alice"))
	w.register(alice, mailboxCard("am_alice2"))
	w.register(bob, testCard("am_bob"))
	want(t, w.do("PUT", "/v1/mailbox/am_alice/a2a", a2aCard(aliceDoor), withBearer(alice)...), 204, "")
	return w
}

func a2aCard(url string) string {
	return `{"name":"Alice","supportedInterfaces":[{"url":"` + url + `","protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}`
}

// call sends a JSON-RPC request of A2A and returns the answer.
func (w *world) call(token, method, params string, header ...string) (result, failure wire.Value, rec *httptest.ResponseRecorder) {
	w.t.Helper()
	if token != "" {
		header = append(header, withBearer(token)...)
	}
	rec = w.do("POST", "/a2a/am_alice", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, append(header, "A2A-Version", "1.0")...)
	v, err := wire.ParseObject(rec.Body.Bytes())
	if err != nil {
		w.t.Fatalf("%s = %d %s", method, rec.Code, rec.Body)
	}
	result, _ = v.Get("result")
	failure, _ = v.Get("error")
	if task, ok := result.Get("task"); ok {
		result = task
	}
	return result, failure, rec
}

func sendParams(id, text, more string) string {
	return `{"message":{"messageId":"` + id + `","role":"ROLE_USER","parts":[{"text":"` + text + `"}]` + more + `},"configuration":{"returnImmediately":true}}`
}

func at(v wire.Value, member string) wire.Value { m, _ := v.Get(member); return m }

func stateOf(task wire.Value) string {
	status, _ := task.Get("status")
	return status.GetStr("state")
}

// calls returns the A2A calls in the mailbox of Alice, with their relay ids.
func (w *world) calls() (list []a2arelay.Call, ids []string) {
	w.t.Helper()
	got := w.do("GET", "/v1/relay?a2a=1", "", withBearer(alice)...)
	doc, err := wire.ParseObject(got.Body.Bytes())
	if err != nil {
		w.t.Fatalf("mail = %s", got.Body)
	}
	messages, _ := doc.Get("messages")
	for m := range messages.Elems() {
		v, _ := m.Get("a2a")
		params, _ := v.Get("params")
		list = append(list, a2arelay.Call{Method: v.GetStr("method"), Params: params, Token: v.GetStr("token"), Task: v.GetStr("task"), AnswerToken: v.GetStr("answer_token")})
		ids = append(ids, m.GetStr("relay_id"))
	}
	return list, ids
}

// report posts a state of a task as the agent does.
func (w *world) report(c a2arelay.Call, body string) *httptest.ResponseRecorder {
	w.t.Helper()
	return w.do("POST", "/v1/relay/"+c.Task+"/task", body, a2arelay.HeaderAnswerToken, c.AnswerToken)
}

func remoteTask(state, at string) string {
	return `{"task":{"id":"remote-1","contextId":"remote-ctx","status":{"state":"` + state + `","timestamp":"2026-01-01T00:00:` + at + `.000Z","message":{"messageId":"m","role":"ROLE_AGENT","taskId":"remote-1","contextId":"remote-ctx","parts":[{"text":"done"}]}},` +
		`"artifacts":[{"artifactId":"a","parts":[{"text":"42"}]}],"history":[{"messageId":"secret"}]}}`
}

// TestCallOfSleepingAgent: a message for an agent that sleeps is accepted at once and kept; when the agent wakes, it
// takes the message, and its caller sees the states of the task under the ids of the relay.
func TestCallOfSleepingAgent(t *testing.T) {
	w := newCallWorld(t)
	const caller = "token-of-a-caller"
	task, _, rec := w.call(caller, "SendMessage", sendParams("m1", "6 times 7?", `,"contextId":"mine"`))
	if stateOf(task) != "TASK_STATE_WORKING" || task.GetStr("contextId") != "mine" || task.GetStr("id") == "" {
		t.Fatalf("accepted as %s", rec.Body)
	}
	id := task.GetStr("id")
	if got := w.mail(alice, ""); len(got) != 0 { // an agent that does not ask for calls gets none
		t.Errorf("mail without a2a=1: %+v", got)
	}
	again := newWorldOver(t, w.store) // a restart
	again.t = t
	list, ids := again.calls()
	if len(list) != 1 {
		t.Fatalf("%d calls wait", len(list))
	}
	c := list[0]
	m, _ := c.Params.Get("message")
	config, _ := c.Params.Get("configuration")
	push, _ := config.Get("taskPushNotificationConfig")
	if c.Method != "SendMessage" || c.Task != id || m.GetStr("contextId") != "mine" || m.GetStr("messageId") != "m1" || push.GetStr("url") != testBase+"/relay/"+id+"/task" || push.GetStr("token") != c.AnswerToken {
		t.Errorf("call = %+v", c)
	}
	if c.Token == "" || strings.Contains(fmt.Sprint(c), caller) {
		t.Errorf("the call has the token of the caller, or none: %+v", c)
	}
	want(t, again.report(c, `{"jsonrpc":"2.0","id":null,"result":`+remoteTask("TASK_STATE_WORKING", "01")+`}`), 200, "")
	want(t, again.do("POST", "/v1/relay/"+ids[0]+"/ack", "", withBearer(alice)...), 200, "")
	want(t, again.report(c, remoteTask("TASK_STATE_COMPLETED", "03")), 200, "")
	want(t, again.report(c, remoteTask("TASK_STATE_WORKING", "02")), 200, "") // delayed
	task, _, rec = again.call(caller, "GetTask", `{"id":"`+id+`"}`)
	body := rec.Body.String()
	if stateOf(task) != "TASK_STATE_COMPLETED" || task.GetStr("id") != id || task.GetStr("contextId") != "mine" || !strings.Contains(body, `"42"`) {
		t.Errorf("in the end %s", body)
	}
	if strings.Contains(body, "remote") || strings.Contains(body, "secret") {
		t.Errorf("the task shows ids or the history of the agent: %s", body)
	}
	if _, failure, _ := again.call(caller, "SubscribeToTask", `{"id":"`+id+`"}`); failure.IsNull() {
		t.Error("a task that has ended can be followed")
	}
	// A repeated message gets its task, and is not sent again. With other content it is refused.
	repeated, _, _ := again.call(caller, "SendMessage", sendParams("m1", "6 times 7?", `,"contextId":"mine"`))
	_, failure, _ := again.call(caller, "SendMessage", sendParams("m1", "something else", `,"contextId":"mine"`))
	if code, _ := failure.Get("code"); repeated.GetStr("id") != id || string(code.JSON()) != "-32602" {
		t.Errorf("repeated: %s; with other content: %s", repeated.JSON(), failure.JSON())
	}
	if list, _ := again.calls(); len(list) != 0 {
		t.Errorf("the repeated message waits again: %+v", list)
	}
}

// TestCallsOfOthers: a task exists only for the caller with its token, for its agent, and for answers with its token.
func TestCallsOfOthers(t *testing.T) { // A2A-14
	w := newCallWorld(t)
	task, _, _ := w.call("token-one", "SendMessage", sendParams("m1", "hi", ""))
	id := task.GetStr("id")
	for _, token := range []string{"token-two", ""} {
		for _, method := range []string{"GetTask", "CancelTask", "SubscribeToTask"} {
			if _, failure, rec := w.call(token, method, `{"id":"`+id+`"}`); !strings.Contains(string(failure.JSON()), "TASK_NOT_FOUND") {
				t.Errorf("%s by %q = %s", method, token, rec.Body)
			}
		}
		if got := w.do("GET", "/a2a/am_alice/tasks/"+id, "", "Authorization", "Bearer "+token); got.Code != 404 {
			t.Errorf("REST by %q = %d", token, got.Code)
		}
	}
	if got := w.do("GET", "/a2a/am_alice/tasks/"+id, "", withBearer("token-one")...); got.Code != 200 || got.Header().Get("Content-Type") != "application/a2a+json" {
		t.Errorf("REST = %d %s", got.Code, got.Body)
	}
	other, _, _ := w.call("token-two", "SendMessage", sendParams("m1", "hi", ""))
	if other.GetStr("id") == id {
		t.Error("two callers share a task because their messages have the same id")
	}
	list, _ := w.calls()
	forged := list[0]
	forged.AnswerToken = list[1].AnswerToken
	if got := w.report(forged, remoteTask("TASK_STATE_COMPLETED", "01")); got.Code != 404 {
		t.Errorf("a report with the token of another task = %d", got.Code)
	}
	forged.AnswerToken = ""
	if got := w.report(forged, remoteTask("TASK_STATE_COMPLETED", "01")); got.Code != 404 {
		t.Errorf("a report without a token = %d", got.Code)
	}
	// Only the agent publishes its card, and only for its own door.
	for _, tt := range []struct {
		id, token, body string
		status          int
	}{
		{"am_alice", bob, a2aCard(aliceDoor), 403}, {"am_alice", "", a2aCard(aliceDoor), 401}, {"am_alice", alice, a2aCard("https://evil.example"), 400},
		{"am_alice", alice, `[]`, 400}, {"am_alice", alice, `{"x":"` + strings.Repeat("x", 70<<10) + `"}`, 413}, {"am_bob", bob, a2aCard(aliceDoor), 404}, {"am_nobody", alice, a2aCard(aliceDoor), 404},
	} {
		if got := w.do("PUT", "/v1/mailbox/"+tt.id+"/a2a", tt.body, withBearer(tt.token)...); got.Code != tt.status {
			t.Errorf("card of %s with %q = %d %s, want %d", tt.id, tt.token, got.Code, got.Body, tt.status)
		}
	}
}

// TestCallDocuments: the relay serves the card that the agent published, and the key that signs it.
func TestCallDocuments(t *testing.T) {
	w := newCallWorld(t)
	for path, want := range map[string]string{"agent-card.json": a2aCard(aliceDoor), "agent.json": `"url":"` + aliceDoor + `","preferredTransport":"JSONRPC"`} {
		if got := w.do("GET", "/a2a/am_alice/.well-known/"+path, ""); got.Code != 200 || !strings.Contains(got.Body.String(), want) || got.Header().Get("Etag") == "" {
			t.Errorf("%s = %d %s", path, got.Code, got.Body)
		}
	}
	if got := w.do("GET", "/a2a/am_alice/.well-known/jwks.json", ""); got.Code != 200 || !strings.Contains(got.Body.String(), `"Ed25519"`) {
		t.Errorf("keys = %d %s", got.Code, got.Body)
	}
	for _, id := range []string{"am_alice2", "am_bob", "am_nobody"} { // without a card, with an address, unknown
		if got := w.do("GET", "/a2a/"+id+"/.well-known/agent-card.json", ""); got.Code != 404 {
			t.Errorf("card of %s = %d", id, got.Code)
		}
		if got := w.do("POST", "/a2a/"+id+"/message:send", sendParams("m", "x", "")); got.Code != 404 {
			t.Errorf("message to %s = %d %s", id, got.Code, got.Body)
		}
	}
}

// TestCallWaits: a blocking call gets the result of an agent that is connected, and after 25 s the task as it is.
func TestCallWaits(t *testing.T) { // A2A-9, A2A-D1
	synctest.Test(t, func(t *testing.T) {
		w := newCallWorld(t)
		params := strings.Replace(sendParams("m1", "hi", ""), "true", "false", 1)
		began := time.Now()
		if task, _, _ := w.call("t", "SendMessage", params); stateOf(task) != "TASK_STATE_WORKING" || time.Since(began) != 25*time.Second {
			t.Errorf("after %v: %s", time.Since(began), task.JSON())
		}
		list, ids := w.calls()
		go func() {
			time.Sleep(time.Second)
			w.report(list[0], remoteTask("TASK_STATE_COMPLETED", "01"))
		}()
		began = time.Now()
		if task, _, _ := w.call("t", "SendMessage", params); stateOf(task) != "TASK_STATE_COMPLETED" || time.Since(began) != time.Second {
			t.Errorf("after %v: %s", time.Since(began), task.JSON())
		}
		want(t, w.do("POST", "/v1/relay/"+ids[0]+"/ack", "", withBearer(alice)...), 200, "")
		// An agent that refuses the caller refuses it at the relay as well.
		go func() {
			time.Sleep(time.Second)
			list, _ := w.calls()
			w.report(list[0], `{"jsonrpc":"2.0","id":null,"error":{"code":-31401,"message":"no","data":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"UNAUTHENTICATED","domain":"a2a-protocol.org"}]}}`)
		}()
		_, failure, rec := w.call("wrong", "SendMessage", strings.Replace(params, "m1", "m2", 1))
		if rec.Code != 401 || failure.IsNull() {
			t.Errorf("refused = %d %s", rec.Code, rec.Body)
		}
		// A message that nobody takes within a week fails.
		task, _, _ := w.call("t", "SendMessage", sendParams("m3", "hi", ""))
		asked, _, _ := w.call("t", "SendMessage", sendParams("m4", "hi", ""))
		list, _ = w.calls()
		want(t, w.report(list[len(list)-1], remoteTask("TASK_STATE_INPUT_REQUIRED", "01")), 200, "")
		if got, _, rec := w.call("t", "SendMessage", sendParams("m5", "more", `,"taskId":"`+asked.GetStr("id")+`"`)); stateOf(got) != "TASK_STATE_WORKING" {
			t.Errorf("a message that follows = %s", rec.Body)
		}
		time.Sleep(mailbox.Life - time.Hour - time.Minute)
		stream := func(method, params string) string {
			return w.do("POST", "/a2a/am_alice", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, append(withBearer("t"), "A2A-Version", "1.0")...).Body.String()
		}
		began = time.Now()
		if body := stream("SubscribeToTask", `{"id":"`+task.GetStr("id")+`"}`); !strings.Contains(body, "TASK_STATE_FAILED") || time.Since(began) > 2*time.Minute {
			t.Errorf("a stream that is open when the task fails, after %v: %s", time.Since(began), body)
		}
		began = time.Now()
		if body := stream("SendStreamingMessage", sendParams("m3", "hi", "")); !strings.Contains(body, "TASK_STATE_FAILED") || time.Since(began) > time.Second {
			t.Errorf("a stream of the failed task, after %v: %s", time.Since(began), body)
		}
		if body := stream("SubscribeToTask", `{"id":"`+task.GetStr("id")+`"}`); !strings.Contains(body, "UNSUPPORTED_OPERATION") {
			t.Errorf("a subscription to the failed task: %s", body)
		}
		time.Sleep(30 * time.Minute)
		for _, id := range []string{task.GetStr("id"), asked.GetStr("id")} {
			if got, _, _ := w.call("t", "GetTask", `{"id":"`+id+`"}`); stateOf(got) != "TASK_STATE_FAILED" {
				t.Errorf("a week later %s", got.JSON())
			}
			if _, failure, _ := w.call("t", "CancelTask", `{"id":"`+id+`"}`); !strings.Contains(string(failure.JSON()), "TASK_NOT_CANCELABLE") {
				t.Errorf("the failed task was canceled: %s", failure.JSON())
			}
		}
		time.Sleep(time.Hour)
		if _, failure, _ := w.call("t", "GetTask", `{"id":"`+task.GetStr("id")+`"}`); failure.IsNull() {
			t.Error("the task stays longer than a week")
		}
	})
}

// TestCallCancel: a task is canceled at once before the agent takes it; afterwards the agent is asked.
func TestCallCancel(t *testing.T) {
	w := newCallWorld(t)
	task, _, _ := w.call("t", "SendMessage", sendParams("m1", "hi", ""))
	id := `{"id":"` + task.GetStr("id") + `"}`
	if got, _, _ := w.call("t", "CancelTask", id); stateOf(got) != "TASK_STATE_CANCELED" {
		t.Errorf("canceled = %s", got.JSON())
	}
	if _, failure, _ := w.call("t", "CancelTask", id); !strings.Contains(string(failure.JSON()), "TASK_NOT_CANCELABLE") {
		t.Errorf("canceled twice: %s", failure.JSON())
	}
	// The agent takes the message all the same: the relay asks it to cancel, until the agent has done so.
	list, _ := w.calls()
	for range 2 {
		got := w.report(list[0], remoteTask("TASK_STATE_WORKING", "01"))
		v, err := wire.ParseObject(got.Body.Bytes())
		if next := at(v, "a2a"); err != nil || got.Code != 200 || next.GetStr("method") != "CancelTask" || at(next, "params").GetStr("id") != "remote-1" || next.GetStr("answer_token") != list[0].AnswerToken {
			t.Fatalf("reported = %d %s", got.Code, got.Body)
		}
	}
	if got := w.report(list[0], remoteTask("TASK_STATE_CANCELED", "02")); got.Code != 200 || strings.Contains(got.Body.String(), "a2a") {
		t.Errorf("after the agent canceled = %d %s", got.Code, got.Body)
	}
	if got, _, _ := w.call("t", "GetTask", id); stateOf(got) != "TASK_STATE_CANCELED" {
		t.Errorf("afterwards %s", got.JSON())
	}
	// A task that the agent works on is canceled by the agent.
	task, _, _ = w.call("t", "SendMessage", sendParams("m2", "hi", ""))
	list, _ = w.calls()
	want(t, w.report(list[1], remoteTask("TASK_STATE_WORKING", "01")), 200, "")
	done := make(chan wire.Value)
	go func() {
		got, _, _ := w.call("t", "CancelTask", `{"id":"`+task.GetStr("id")+`"}`)
		done <- got
	}()
	for len(list) < 3 {
		list, _ = w.calls()
	}
	want(t, w.report(list[2], `{"jsonrpc":"2.0","id":null,"result":{"id":"remote-1","status":{"state":"TASK_STATE_CANCELED","timestamp":"2026-01-01T00:00:05.000Z"}}}`), 200, "")
	if got := <-done; stateOf(got) != "TASK_STATE_CANCELED" {
		t.Errorf("canceled by the agent = %s", got.JSON())
	}
}

// TestCallCancelFull: a cancel is not lost when the share of its caller in the mailbox is full. Before the agent takes
// the message, the cancel needs no room. Afterwards it is refused.
func TestCallCancelFull(t *testing.T) {
	w := newCallWorld(t)
	var tasks []string
	for i := range mailbox.MaxMail / mailbox.SenderDivisor {
		task, _, _ := w.call("t", "SendMessage", sendParams(fmt.Sprint("m", i), "hi", ""))
		tasks = append(tasks, `{"id":"`+task.GetStr("id")+`"}`)
	}
	list, _ := w.calls()
	want(t, w.report(list[1], remoteTask("TASK_STATE_WORKING", "01")), 200, "")
	if _, failure, rec := w.call("t", "CancelTask", tasks[1]); !strings.Contains(string(failure.JSON()), "RESOURCE_EXHAUSTED") {
		t.Errorf("a cancel without room = %s", rec.Body)
	}
	if got, _, rec := w.call("t", "CancelTask", tasks[0]); stateOf(got) != "TASK_STATE_CANCELED" {
		t.Fatalf("canceled = %s", rec.Body)
	}
	for range 2 {
		if got := w.report(list[0], remoteTask("TASK_STATE_WORKING", "01")); got.Code != 200 || !strings.Contains(got.Body.String(), `"CancelTask"`) {
			t.Errorf("the agent takes a canceled message: %d %s", got.Code, got.Body)
		}
	}
}

// TestCallCancelKept: newer tasks do not displace a task that was canceled until the agent reports its end, because the
// agent would not learn of the cancellation.
func TestCallCancelKept(t *testing.T) {
	w := newCallWorld(t)
	sent := 0
	send := func() (task wire.Value, call a2arelay.Call) {
		t.Helper()
		sent++
		task, failure, _ := w.call("t", "SendMessage", sendParams(fmt.Sprint("m", sent), "hi", ""))
		if !failure.IsNull() {
			t.Fatalf("task %d: %s", sent, failure.JSON())
		}
		list, ids := w.calls()
		want(t, w.do("POST", "/v1/relay/"+ids[0]+"/ack", "", withBearer(alice)...), 200, "")
		return task, list[0]
	}
	fill := func() {
		for range mailbox.MaxMail / mailbox.SenderDivisor {
			_, call := send()
			want(t, w.report(call, remoteTask("TASK_STATE_COMPLETED", "01")), 200, "")
		}
	}
	for _, end := range []string{remoteTask("TASK_STATE_CANCELED", "02"), `{"error":{"code":-32603,"message":"no"}}`} {
		task, call := send()
		if got, _, rec := w.call("t", "CancelTask", `{"id":"`+task.GetStr("id")+`"}`); stateOf(got) != "TASK_STATE_CANCELED" {
			t.Fatalf("canceled = %s", rec.Body)
		}
		fill()
		if got := w.report(call, remoteTask("TASK_STATE_WORKING", "01")); got.Code != 200 || !strings.Contains(got.Body.String(), `"CancelTask"`) {
			t.Errorf("the agent takes a canceled message: %d %s", got.Code, got.Body)
		}
		want(t, w.report(call, end), 200, "")
		fill()
		if _, failure, _ := w.call("t", "GetTask", `{"id":"`+task.GetStr("id")+`"}`); failure.IsNull() {
			t.Error("the task stays after the agent has reported its end")
		}
	}
}

// TestCallFollows: a message in a task that asked back reaches the agent's own task.
func TestCallFollows(t *testing.T) {
	w := newCallWorld(t)
	task, _, _ := w.call("t", "SendMessage", sendParams("m1", "hi", ""))
	id := task.GetStr("id")
	more := `,"taskId":"` + id + `"`
	if _, failure, _ := w.call("t", "SendMessage", sendParams("m2", "more", more)); failure.IsNull() {
		t.Error("a message was added to a task that the agent does not know")
	}
	list, _ := w.calls()
	want(t, w.report(list[0], remoteTask("TASK_STATE_INPUT_REQUIRED", "01")), 200, "")
	if _, failure, _ := w.call("t", "SendMessage", sendParams("m2", "more", more+`,"contextId":"wrong"`)); failure.IsNull() {
		t.Error("a message with another context was accepted")
	}
	if got, failure, _ := w.call("t", "SendMessage", sendParams("m2", "more", more)); got.GetStr("id") != id || stateOf(got) != "TASK_STATE_WORKING" || !strings.Contains(string(got.JSON()), `"42"`) {
		t.Errorf("followed: %s %s, want the artifact to stay", got.JSON(), failure.JSON())
	}
	if got, failure, _ := w.call("t", "SendMessage", sendParams("m2", "more", more)); got.GetStr("id") != id {
		t.Errorf("repeated: %s %s", got.JSON(), failure.JSON())
	}
	if _, failure, _ := w.call("t", "SendMessage", sendParams("m2", "else", more)); !strings.Contains(string(failure.JSON()), "INVALID_PARAMS") {
		t.Errorf("repeated with other content: %s", failure.JSON())
	}
	if list, _ = w.calls(); len(list) != 2 {
		t.Fatalf("%d calls wait", len(list))
	}
	if m, _ := list[1].Params.Get("message"); m.GetStr("taskId") != "remote-1" || m.GetStr("contextId") != task.GetStr("contextId") {
		t.Errorf("the agent gets %s", m.JSON())
	}
	// If the agent refuses the message, its caller learns that at once, and the task goes on without the message.
	const refusal = `{"jsonrpc":"2.0","id":null,"error":{"code":-31401,"message":"no","data":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"UNAUTHENTICATED","domain":"a2a-protocol.org"}]}}`
	want(t, w.report(list[1], refusal), 200, "")
	if got, _, _ := w.call("t", "GetTask", `{"id":"`+id+`"}`); stateOf(got) != "TASK_STATE_INPUT_REQUIRED" || !strings.Contains(string(got.JSON()), "refused") || !strings.Contains(string(got.JSON()), `"42"`) {
		t.Errorf("after the agent refused the message: %s", got.JSON())
	}
	if _, _, rec := w.call("t", "SendMessage", strings.Replace(sendParams("m2", "more", more), "true", "false", 1)); rec.Code != 401 {
		t.Errorf("a caller that waits for a refused message = %d %s", rec.Code, rec.Body)
	}
	if got, failure, _ := w.call("t", "SendMessage", sendParams("m3", "better", more)); stateOf(got) != "TASK_STATE_WORKING" {
		t.Errorf("another message: %s %s", got.JSON(), failure.JSON())
	}
	list, _ = w.calls()
	want(t, w.report(list[2], remoteTask("TASK_STATE_COMPLETED", "02")), 200, "")
	want(t, w.report(list[2], refusal), 200, "")
	if got, _, rec := w.call("t", "SendMessage", strings.Replace(sendParams("m3", "better", more), "true", "false", 1)); stateOf(got) != "TASK_STATE_COMPLETED" {
		t.Errorf("after the agent took another message: %d %s", rec.Code, rec.Body)
	}
}

// TestCallRepeatedNotification: a notification that comes again, because its sender got no response, does not answer the
// message that the caller has sent meanwhile.
func TestCallRepeatedNotification(t *testing.T) {
	w := newCallWorld(t)
	task, _, _ := w.call("t", "SendMessage", sendParams("m1", "hi", ""))
	id := task.GetStr("id")
	list, _ := w.calls()
	question := remoteTask("TASK_STATE_INPUT_REQUIRED", "01")
	want(t, w.report(list[0], question), 200, "")
	w.call("t", "SendMessage", sendParams("m2", "more", `,"taskId":"`+id+`"`))
	for _, tt := range []struct{ report, state string }{
		{question, "TASK_STATE_WORKING"},
		{`{"jsonrpc":"2.0","id":null,"result":` + question + `}`, "TASK_STATE_INPUT_REQUIRED"}, // the agent's answer: it has not started
		{question, "TASK_STATE_INPUT_REQUIRED"},
	} {
		want(t, w.report(list[0], tt.report), 200, "")
		if got, _, _ := w.call("t", "GetTask", `{"id":"`+id+`"}`); stateOf(got) != tt.state {
			t.Errorf("after %.40s… the task is %s, want %s", tt.report, stateOf(got), tt.state)
		}
	}
}

// TestCallStream: the first event of a stream is the task, the last one its end.
func TestCallStream(t *testing.T) { // A2A-12
	w := newCallWorld(t)
	server := httptest.NewServer(w.edge.Handler())
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/a2a/am_alice/message:stream", strings.NewReader(sendParams("m1", "hi", "")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/a2a+json")
	req.Header.Set("A2A-Version", "1.0")
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var events []map[string]json.RawMessage
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var event map[string]json.RawMessage
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Fatal(err)
		}
		if events = append(events, event); len(events) == 1 {
			list, _ := w.calls()
			want(t, w.report(list[0], remoteTask("TASK_STATE_COMPLETED", "01")), 200, "")
		}
	}
	if len(events) != 3 || events[0]["task"] == nil || events[1]["artifactUpdate"] == nil || !strings.Contains(string(events[2]["statusUpdate"]), "TASK_STATE_COMPLETED") {
		t.Errorf("events = %s", events)
	}
}

// TestCallResults: what an agent reports is bounded, and tasks that have ended make room for new ones.
func TestCallResults(t *testing.T) {
	w := newCallWorld(t)
	task, _, _ := w.call("t", "SendMessage", sendParams("m", "hi", ""))
	list, ids := w.calls()
	for body, status := range map[string]int{
		`[]`: 400, `{}`: 400, `{"task":{"id":"x"}}`: 400, `{"task":{"id":"","status":{"state":"S"}}}`: 400, `{"result":7}`: 400, strings.Repeat(`{"task":`, 100): 400,
		`{"task":{"id":"r","status":{"state":"TASK_STATE_WORKING"},"x":"` + strings.Repeat("x", 2<<20) + `"}}`: 413,
	} {
		if got := w.report(list[0], body); got.Code != status {
			t.Errorf("report %.60s = %d %s, want %d", body, got.Code, got.Body, status)
		}
	}
	want(t, w.report(list[0], `{"task":{"id":"r","status":{"state":"TASK_STATE_COMPLETED"},"x":"`+strings.Repeat("x", 300<<10)+`"}}`), 200, "")
	if got, _, _ := w.call("t", "GetTask", `{"id":"`+task.GetStr("id")+`"}`); stateOf(got) != "TASK_STATE_FAILED" || len(got.JSON()) > 1000 {
		t.Errorf("a large result = %.200s", got.JSON())
	}
	want(t, w.do("POST", "/v1/relay/"+ids[0]+"/ack", "", withBearer(alice)...), 200, "")
	first := ""
	for i := range 2 * mailbox.MaxMail / mailbox.SenderDivisor { // twice what one source may have
		task, failure, _ := w.call("t", "SendMessage", sendParams(fmt.Sprint("m", i), "hi", ""))
		if !failure.IsNull() {
			t.Fatalf("task %d: %s", i, failure.JSON())
		}
		if i == 0 {
			first = task.GetStr("id")
		}
		list, ids := w.calls()
		want(t, w.report(list[0], remoteTask("TASK_STATE_COMPLETED", "01")), 200, "")
		want(t, w.do("POST", "/v1/relay/"+ids[0]+"/ack", "", withBearer(alice)...), 200, "")
	}
	if _, failure, _ := w.call("t", "GetTask", `{"id":"`+first+`"}`); failure.IsNull() {
		t.Error("the oldest task is still there")
	}
}

// TestCallBadInput: bad requests get an error of A2A, and nothing is stored.
func TestCallBadInput(t *testing.T) {
	w := newCallWorld(t)
	send := sendParams("m", "x", "")
	for name, tt := range map[string]struct {
		path, body string
		header     []string
		status     int
	}{
		"10 MB":            {"", `{"x":"` + strings.Repeat("x", 10<<20) + `"}`, nil, 413},
		"deep":             {"/message:send", strings.Repeat(`{"message":`, 100) + strings.Repeat("}", 100), nil, 400},
		"no JSON":          {"/message:send", "x", nil, 400},
		"media type":       {"/message:send", send, []string{"Content-Type", "text/plain"}, 400},
		"version":          {"/message:send", send, []string{"A2A-Version", "99.0"}, 400},
		"version 0.3":      {"/message:send", send, []string{"A2A-Version", "0.3"}, 400},
		"tenant":           {"/other/message:send", send, nil, 404},
		"no such method":   {"/message:forget", send, nil, 404},
		"unknown task":     {"/message:send", sendParams("m", "x", `,"taskId":"none"`), nil, 404},
		"list":             {"/tasks?pageSize=x", "", nil, 400},
		"push":             {"/tasks/x/pushNotificationConfigs", "{}", nil, 400},
		"extended card":    {"/extendedAgentCard", "", nil, 400},
		"parts":            {"/message:send", strings.Replace(send, `"text":"x"`, `"text":"x","url":"https://x"`, 1), nil, 400},
		"role":             {"/message:send", strings.Replace(send, "ROLE_USER", "ROLE_AGENT", 1), nil, 400},
		"an id of 1000":    {"/message:send", sendParams(strings.Repeat("x", 1000), "x", ""), nil, 400},
		"content encoding": {"/message:send", send, []string{"Content-Encoding", "gzip"}, 415},
	} {
		method := "POST"
		if tt.body == "" {
			method = "GET"
		}
		got := w.do(method, "/a2a/am_alice"+tt.path, tt.body, append(tt.header, withBearer("t")...)...)
		if got.Code != tt.status || !strings.Contains(got.Body.String(), `"error"`) {
			t.Errorf("%s = %d %s, want %d", name, got.Code, got.Body, tt.status)
		}
	}
	if list, _ := w.calls(); len(list) != 0 {
		t.Errorf("%d calls wait", len(list))
	}
	for method, reason := range map[string]string{ // what the card says that the relay does not offer
		"GetExtendedAgentCard": "UNSUPPORTED_OPERATION", "ListTaskPushNotificationConfigs": "PUSH_NOTIFICATION_NOT_SUPPORTED",
		"CreateTaskPushNotificationConfig": "PUSH_NOTIFICATION_NOT_SUPPORTED",
	} {
		if _, failure, rec := w.call("t", method, `{"taskId":"x"}`); !strings.Contains(string(failure.JSON()), reason) {
			t.Errorf("%s = %s", method, rec.Body)
		}
	}
}
