package a2a_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// kitClient calls a node as the test kit does: without a token, over one binding.
type kitClient struct {
	*host
	rest bool
}

// kitAnswer is an answer: the result, or the error of A2A with its code in the binding.
type kitAnswer struct {
	result wire.Value
	reason string
	code   string
}

func (a kitAnswer) state() string {
	return strings.TrimPrefix(text(a.task(), "status.state"), "TASK_STATE_")
}

func (a kitAnswer) task() wire.Value {
	if task := at(a.result, "task"); task.Kind() == wire.Object {
		return task
	}
	return a.result
}

// route returns method and path of a call over HTTP+JSON.
func (kitClient) route(method string, params wire.Value) (verb, path string) {
	id, configs := params.GetStr("id"), "/tasks/"+params.GetStr("taskId")+"/pushNotificationConfigs"
	var query strings.Builder
	for _, m := range params.Members() {
		if v := string(m.Value.JSON()); m.Key != "id" && m.Key != "taskId" {
			query.WriteString("&" + m.Key + "=" + strings.Trim(v, `"`))
		}
	}
	switch method {
	case "SendMessage":
		return "POST", "/message:send"
	case "SendStreamingMessage":
		return "POST", "/message:stream"
	case "GetTask":
		return "GET", "/tasks/" + id + "?" + query.String()
	case "ListTasks":
		return "GET", "/tasks?" + query.String()
	case "CancelTask":
		return "POST", "/tasks/" + id + ":cancel"
	case "SubscribeToTask":
		return "POST", "/tasks/" + id + ":subscribe"
	case "CreateTaskPushNotificationConfig":
		return "POST", configs
	case "GetTaskPushNotificationConfig":
		return "GET", configs + "/" + id
	case "ListTaskPushNotificationConfigs":
		return "GET", configs
	case "DeleteTaskPushNotificationConfig":
		return "DELETE", configs + "/" + id
	case "GetExtendedAgentCard":
		return "GET", "/extendedAgentCard"
	}
	return "GET", "/" + method
}

// call makes a call and checks the form of its answer.
func (k kitClient) call(method, params string, header ...string) kitAnswer {
	k.t.Helper()
	if !slices.Contains(header, "A2A-Version") {
		header = append(header, "A2A-Version", "1.0")
	}
	if !k.rest {
		_, head, body := k.request("", "POST", k.base, `{"jsonrpc":"2.0","id":"k1","method":"`+method+`","params":`+params+`}`, header...)
		v := parse(k.t, body)
		fault := at(v, "error")
		if head.Get("Content-Type") != "application/json" || v.GetStr("jsonrpc") != "2.0" || (at(v, "result").IsNull() == fault.IsNull()) {
			k.t.Errorf("%s: not an answer of JSON-RPC: %s %s", method, head.Get("Content-Type"), body)
		}
		if !fault.IsNull() && (fault.Len() != 3 || at(fault, "message").Kind() != wire.String || text(fault, "data.0.@type") != "type.googleapis.com/google.rpc.ErrorInfo" || text(fault, "data.0.domain") != "a2a-protocol.org") {
			k.t.Errorf("%s: not an error of A2A: %s", method, body)
		}
		return kitAnswer{at(v, "result"), text(fault, "data.0.reason"), string(at(fault, "code").JSON())}
	}
	verb, path := k.route(method, parse(k.t, params))
	if verb != "POST" {
		params = ""
	}
	status, head, body := k.request("", verb, k.base+path, params, header...)
	v := parse(k.t, body)
	if status < 300 {
		if head.Get("Content-Type") != "application/a2a+json" {
			k.t.Errorf("%s: the media type is %s", method, head.Get("Content-Type"))
		}
		return kitAnswer{result: v}
	}
	fault := at(v, "error")
	if code := string(at(fault, "code").JSON()); head.Get("Content-Type") != "application/json" || code != fmt.Sprint(status) || fault.GetStr("status") == "" || text(fault, "details.0.domain") != "a2a-protocol.org" {
		k.t.Errorf("%s: not an error of AIP-193: %d %s %s", method, status, head.Get("Content-Type"), body)
	}
	return kitAnswer{reason: text(fault, "details.0.reason"), code: fmt.Sprint(status)}
}

// send sends a message whose id names what the script does. The kit repeats its ids.
func (k kitClient) send(id, more, configuration string) kitAnswer {
	k.t.Helper()
	return k.call("SendMessage", message("tck-"+id, more, "hello from the kit", configuration))
}

// stream opens a stream and returns its events, without the envelope of JSON-RPC.
func (k kitClient) stream(method, params string, more func(wire.Value) bool) (events []wire.Value) {
	k.t.Helper()
	unwrap := func(v wire.Value) wire.Value {
		if result, ok := v.Get("result"); ok {
			return result
		}
		return v
	}
	verb, target, body := "POST", k.base, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`
	if k.rest {
		path := ""
		verb, path = k.route(method, parse(k.t, params))
		target, body = k.base+path, params
	}
	for _, e := range k.events("", verb, target, body, func(v wire.Value) bool { return more == nil || more(unwrap(v)) }) {
		events = append(events, unwrap(e))
	}
	return events
}

// TestKit checks the mandatory requirements of the public test kit for A2A 1.0 (a2a-tck), against a node whose hook is
// a script and that lets callers without a token in, in both bindings.
func TestKit(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("testdata/kit.sh")
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, hook.Exec{Argv: []string{"/bin/sh", script}}, meshtest.Unlimited, func(c *a2a.Config) { c.Anonymous = true })
	for _, rest := range []bool{false, true} {
		t.Run(fmt.Sprintf("rest=%v", rest), func(t *testing.T) {
			host := *h
			host.t = t
			k := kitClient{&host, rest}
			t.Run("messages", func(t *testing.T) { k.t = t; kitMessages(k) })
			t.Run("tasks", func(t *testing.T) { k.t = t; kitTasks(k) })
			t.Run("errors", func(t *testing.T) { k.t = t; kitErrors(k) })
			t.Run("streams", func(t *testing.T) { k.t = t; kitStreams(k) })
			t.Run("push", func(t *testing.T) { k.t = t; kitPush(k) })
		})
	}
	// The bindings give equal results.
	rpc, rest := kitClient{h, false}, kitClient{h, true}
	id := rpc.send("artifact-data", "", "").task().GetStr("id")
	for _, method := range []string{"GetTask", "ListTasks"} {
		one, two := rpc.call(method, `{"id":"`+id+`","historyLength":5}`), rest.call(method, `{"id":"`+id+`","historyLength":5}`)
		if string(one.result.JSON()) != string(two.result.JSON()) {
			t.Errorf("%s differs: %s and %s", method, one.result.JSON(), two.result.JSON())
		}
	}
}

var snake = regexp.MustCompile(`"[a-z]+(_[a-z]+)+":`)

func kitMessages(k kitClient) {
	t := k.t
	first := k.send("complete-task", "", "")
	if first.state() != "COMPLETED" || text(first.task(), "artifacts.0.parts.0.text") != "Hello from TCK" || first.task().GetStr("contextId") == "" {
		t.Errorf("a message: %s", first.result.JSON())
	}
	if snake.Match(first.result.JSON()) {
		t.Errorf("a member in snake_case: %s", first.result.JSON())
	}
	if at := text(first.task(), "status.timestamp"); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`).MatchString(at) {
		t.Errorf("the time is %s", at)
	}
	id := first.task().GetStr("id")
	if again := k.send("complete-task", "", ""); again.task().GetStr("id") == id {
		t.Error("two tasks have one id")
	}
	if v := k.send("complete-task", `,"contextId":"client-context"`, ""); v.task().GetStr("contextId") != "client-context" {
		t.Errorf("the context of the client: %s", v.result.JSON())
	}
	for kind, want := range map[string]string{
		"artifact-text": `{"text":"Hello from TCK"}`, "artifact-data": `{"data":{"count":42,"key":"value"}}`,
		"artifact-file":     `{"raw":"aGk=","filename":"output.txt","mediaType":"text/plain"}`,
		"artifact-file-url": `{"url":"https://example.com/output.txt","filename":"output.txt","mediaType":"text/plain"}`,
	} {
		if got := string(at(k.send(kind, "", "").task(), "artifacts.0.parts.0").JSON()); got != want {
			t.Errorf("%s: %s", kind, got)
		}
	}
	if v := k.send("reject-task", "", ""); v.state() != "REJECTED" {
		t.Errorf("a rejected task: %s", v.result.JSON())
	}
	if v := k.send("delayed-complete", "", `"returnImmediately":false`); v.state() != "COMPLETED" {
		t.Errorf("a blocking call: %s", v.result.JSON())
	}
	if v := k.send("delayed-complete", "", later); v.state() != "SUBMITTED" && v.state() != "WORKING" {
		t.Errorf("a call that returns immediately: %s", v.result.JSON())
	}
	// Several turns.
	open := k.send("input-required", "", "")
	if open.state() != "INPUT_REQUIRED" {
		t.Fatalf("a task that needs input: %s", open.result.JSON())
	}
	task := `,"taskId":"` + open.task().GetStr("id") + `"`
	if v := k.send("complete-task", task+`,"contextId":"another"`, ""); v.reason != "INVALID_PARAMS" {
		t.Errorf("another context: %+v", v)
	}
	done := k.send("complete-task", task, `"historyLength":0`)
	if done.state() != "COMPLETED" || done.task().GetStr("contextId") != open.task().GetStr("contextId") || at(done.task(), "history").Len() != 0 {
		t.Errorf("the second turn: %s", done.result.JSON())
	}
	if v := k.send("complete-task", task, ""); v.reason != "UNSUPPORTED_OPERATION" {
		t.Errorf("a message to a task that has ended: %+v", v)
	}
	if v := k.send("complete-task", `,"taskId":"tck-nonexistent"`, ""); v.reason != "TASK_NOT_FOUND" {
		t.Errorf("a message to no task: %+v", v)
	}
	for length, want := range map[string]int{"0": 0, "1": 1, "10": 3} {
		v := k.call("GetTask", `{"id":"`+done.task().GetStr("id")+`","historyLength":`+length+`}`)
		history := at(v.result, "history")
		if history.Len() != want {
			t.Errorf("historyLength %s: %s", length, history.JSON())
		}
		if want == 3 && (text(history, "0.messageId") != "tck-input-required" || text(history, "1.role") != "ROLE_AGENT" || text(history, "2.messageId") != "tck-complete-task") {
			t.Errorf("the history is %s", history.JSON())
		}
	}
}

func kitTasks(k kitClient) {
	t := k.t
	context := fmt.Sprintf("list-%v", k.rest)
	for range 5 {
		k.send("complete-task", `,"contextId":"`+context+`"`, "")
	}
	var times []string
	for token, pages := "", 0; pages == 0 || token != ""; pages++ {
		v := k.call("ListTasks", `{"contextId":"`+context+`","pageSize":2,"pageToken":"`+token+`"}`).result
		next, ok := v.Get("nextPageToken")
		if !ok || pages > 3 || string(at(v, "totalSize").JSON()) != "5" || string(at(v, "pageSize").JSON()) != "2" {
			t.Fatalf("page %d: %s", pages, v.JSON())
		}
		token, _ = next.Str()
		for task := range at(v, "tasks").Elems() {
			if _, has := task.Get("artifacts"); has {
				t.Errorf("artifacts in a list: %s", task.JSON())
			}
			times = append(times, text(task, "status.timestamp"))
		}
	}
	if len(times) != 5 || !slices.IsSortedFunc(times, func(x, y string) int { return strings.Compare(y, x) }) {
		t.Errorf("the list is %q", times)
	}
	if v := k.call("ListTasks", `{"contextId":"tck-test-context"}`).result; at(v, "tasks").Kind() != wire.Array || at(v, "nextPageToken").Kind() != wire.String {
		t.Errorf("an empty list: %s", v.JSON())
	}
	id := k.send("input-required", "", "").task().GetStr("id")
	if v := k.call("GetTask", `{"id":"`+id+`"}`); v.state() != "INPUT_REQUIRED" || v.result.GetStr("id") != id {
		t.Errorf("GetTask: %s", v.result.JSON())
	}
	if v := k.call("CancelTask", `{"id":"`+id+`"}`); v.state() != "CANCELED" || v.result.GetStr("id") != id {
		t.Errorf("CancelTask: %s", v.result.JSON())
	}
	want := map[bool]string{false: "-32002", true: "400"}[k.rest]
	if v := k.call("CancelTask", `{"id":"`+id+`"}`); v.reason != "TASK_NOT_CANCELABLE" || v.code != want {
		t.Errorf("cancel a task that has ended: %+v", v)
	}
	want = map[bool]string{false: "-32001", true: "404"}[k.rest]
	for _, method := range []string{"GetTask", "CancelTask", "SubscribeToTask"} {
		if v := k.call(method, `{"id":"tck-nonexistent"}`); v.reason != "TASK_NOT_FOUND" || v.code != want {
			t.Errorf("%s of no task: %+v", method, v)
		}
	}
}

func kitErrors(k kitClient) {
	t := k.t
	hello := message("tck-complete-task", "", "hello", "")
	for _, tt := range []struct {
		name, method, params string
		header               []string
		reason, rpc, rest    string
	}{
		{"unknown method", "NonExistentMethod", `{}`, nil, "METHOD_NOT_FOUND", "-32601", "404"},
		{"no message", "SendMessage", `{}`, nil, "INVALID_PARAMS", "-32602", "400"},
		{"no parts", "SendMessage", `{"message":{"messageId":"m","role":"ROLE_USER"}}`, nil, "INVALID_PARAMS", "-32602", "400"},
		{"version 99.0", "SendMessage", hello, []string{"A2A-Version", "99.0"}, "VERSION_NOT_SUPPORTED", "-32009", "400"},
		{"version 0.3", "SendMessage", hello, []string{"A2A-Version", "0.3"}, "VERSION_NOT_SUPPORTED", "-32009", "400"},
		{"text", "SendMessage", hello, []string{"Content-Type", "text/plain"}, "CONTENT_TYPE_NOT_SUPPORTED", "-32005", "400"},
		{"media type of a part", "SendMessage", `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"raw":"dGNr","mediaType":"application/x-unsupported-tck-type"}]}}`, nil, "CONTENT_TYPE_NOT_SUPPORTED", "-32005", "400"},
		{"extended card", "GetExtendedAgentCard", `{}`, nil, "UNSUPPORTED_OPERATION", "-32004", "400"},
		{"patch version", "SendMessage", hello, []string{"A2A-Version", "1.0.1"}, "", "null", ""},
		{"empty version", "SendMessage", hello, []string{"A2A-Version", ""}, "", "null", ""},
		{"unknown extensions", "SendMessage", hello, []string{"A2A-Extensions", "https://example.com/ext/v1,https://example.com/ext/v2"}, "", "null", ""},
		{"unknown members", "SendMessage", `{"tckExtraParam":42,"message":{"messageId":"tck-complete-task","role":"ROLE_USER","parts":[{"text":"x"}],"tckUnknownField":"x"}}`, nil, "", "null", ""},
	} {
		want := tt.rpc
		if k.rest {
			want = tt.rest
		}
		if v := k.call(tt.method, tt.params, tt.header...); v.reason != tt.reason || v.code != want {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
	_, header, body := k.request("", "GET", k.url+"/.well-known/agent-card.json", "")
	card := parse(t, body)
	for _, member := range []string{"name", "description", "version", "supportedInterfaces", "capabilities", "defaultInputModes", "defaultOutputModes", "skills"} {
		if v := at(card, member); v.IsNull() || v.Kind() == wire.Array && v.Len() == 0 {
			t.Errorf("the card has no %s", member)
		}
	}
	if !strings.Contains(header.Get("Cache-Control"), "max-age=") || header.Get("ETag") == "" || at(card, "capabilities.extendedAgentCard").Kind() == wire.True {
		t.Errorf("the card: %v %s", header, body)
	}
	for face := range at(card, "supportedInterfaces").Elems() {
		if face.GetStr("url") != k.base || !slices.Contains([]string{"1.0", "0.3"}, face.GetStr("protocolVersion")) || face.GetStr("protocolBinding") == "" {
			t.Errorf("an interface: %s", face.JSON())
		}
	}
}

func kitStreams(k kitClient) {
	t := k.t
	events := k.stream("SendStreamingMessage", message("tck-delayed-complete", "", "stream", ""), nil)
	if at(events[0], "task").Kind() != wire.Object || state(events[len(events)-1]) != "TASK_STATE_COMPLETED" || len(events) < 3 {
		t.Errorf("a stream: %s", wire.Arr(events...).JSON())
	}
	id := k.send("input-required", "", "").task().GetStr("id")
	subscribe := `{"id":"` + id + `"}`
	if first := k.stream("SubscribeToTask", subscribe, func(wire.Value) bool { return false }); text(first[0], "task.status.state") != "TASK_STATE_INPUT_REQUIRED" {
		t.Errorf("the first event: %s", first[0].JSON())
	}
	awaitStreams := func(n int) {
		for deadline := time.Now().Add(10 * time.Second); k.bridge.Waiters() != n; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d streams are open, want %d", k.bridge.Waiters(), n)
			}
		}
	}
	awaitStreams(0)
	results := make(chan []wire.Value, 2)
	for range 2 {
		go func() {
			var events []wire.Value
			defer func() { results <- events }()
			events = k.stream("SubscribeToTask", subscribe, nil)
		}()
	}
	awaitStreams(2)
	time.Sleep(100 * time.Millisecond) // both write their first event
	if v := k.send("complete-task", `,"taskId":"`+id+`"`, ""); v.state() != "COMPLETED" {
		t.Fatalf("the second turn: %+v %s", v, v.result.JSON())
	}
	one := <-results
	first, second := string(wire.Arr(one...).JSON()), string(wire.Arr(<-results...).JSON())
	if first != second || len(one) < 3 || state(one[len(one)-1]) != "TASK_STATE_COMPLETED" {
		t.Errorf("two streams of a task:\n%s\n%s", first, second)
	}
	if v := k.call("SubscribeToTask", subscribe); v.reason != "UNSUPPORTED_OPERATION" {
		t.Errorf("subscribe to a task that has ended: %+v", v)
	}
}

func kitPush(k kitClient) {
	t := k.t
	task := `{"taskId":"` + k.send("complete-task", "", "").task().GetStr("id") + `"`
	made := k.call("CreateTaskPushNotificationConfig", task+`,"id":"tck-push","url":"https://example.com/tck-push-webhook"}`)
	if made.result.GetStr("id") != "tck-push" {
		t.Errorf("create: %+v", made)
	}
	if v := k.call("GetTaskPushNotificationConfig", task+`,"id":"tck-push"}`); v.result.GetStr("url") != "https://example.com/tck-push-webhook" {
		t.Errorf("get: %+v", v)
	}
	if v := k.call("ListTaskPushNotificationConfigs", task+`}`); text(v.result, "configs.0.id") != "tck-push" {
		t.Errorf("list: %s", v.result.JSON())
	}
	for range 2 {
		if v := k.call("DeleteTaskPushNotificationConfig", task+`,"id":"tck-push"}`); v.reason != "" {
			t.Errorf("delete: %+v", v)
		}
	}
	if v := k.call("GetTaskPushNotificationConfig", task+`,"id":"tck-push"}`); v.reason == "" {
		t.Errorf("a deleted configuration: %s", v.result.JSON())
	}
	hook := newWebhook(t)
	open := k.send("input-required", "", `"taskPushNotificationConfig":{"id":"tck-push","url":"`+hook.URL+`","authentication":{"scheme":"Bearer","credentials":"tck-token"}}`)
	k.send("complete-task", `,"taskId":"`+open.task().GetStr("id")+`"`, "")
	if v := hook.await(t, "TASK_STATE_COMPLETED"); text(v, "task.id") != open.task().GetStr("id") {
		t.Errorf("the notification: %s", v.JSON())
	}
	if got := (<-hook.head).Get("Authorization"); got != "Bearer tck-token" {
		t.Errorf("the credentials of a notification: %s", got)
	}
}

// TestCasesOfAKitWithToken: a caller with a token gets its answers for the 250 cases of a test kit and more, in one context
// and in many, with the turns that a node allows by default (AM-92).
func TestCasesOfAKitWithToken(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	first := ""
	for i := range 300 {
		context := ""
		if i%2 == 0 && first != "" {
			context = `,"contextId":"` + first + `"`
		}
		_, _, body := h.request("kit", "POST", h.base, `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":`+message(fmt.Sprint("case-", i), context, "hello", "")+`}`, "A2A-Version", "1.0")
		if v := (kitAnswer{result: at(parse(t, body), "result")}); v.state() != "COMPLETED" {
			t.Fatalf("case %d: %s", i, body)
		} else if first == "" {
			first = v.task().GetStr("contextId")
		}
	}
}
