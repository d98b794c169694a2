package a2a_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestCard checks A2A-1: the card at both paths, with caching headers, and its key set.
func TestCard(t *testing.T) {
	h := serve(t, nil, nil, nil)
	for _, path := range []string{"/.well-known/agent-card.json", "/.well-known/agent.json"} {
		status, header, body := h.request("", "GET", h.url+path, "")
		var card sdk.AgentCard
		if err := json.Unmarshal([]byte(body), &card); status != 200 || err != nil && path != "/.well-known/agent.json" {
			t.Fatalf("%s: %d, %v", path, status, err)
		}
		if path == "/.well-known/agent.json" { // for clients of A2A 0.3
			if v := parse(t, body); text(v, "url") != h.base || text(v, "protocolVersion") != "0.3.0" || text(v, "preferredTransport") != "JSONRPC" || at(v, "additionalInterfaces").Len() != 2 || text(v, "securitySchemes.bearer.type") != "http" {
				t.Errorf("%s: %s", path, body)
			}
		} else if card.SupportedInterfaces[0].URL != h.base || card.SupportedInterfaces[3].ProtocolVersion != "0.3" || !card.Capabilities.Streaming || !card.Capabilities.PushNotifications || len(card.Signatures) != 1 {
			t.Errorf("%s: %s", path, body)
		}
		if !strings.Contains(header.Get("Cache-Control"), "max-age=") || header.Get("ETag") == "" {
			t.Errorf("%s: Cache-Control %q, ETag %q", path, header.Get("Cache-Control"), header.Get("ETag"))
		}
		if status, _, body := h.request("", "GET", h.url+path, "", "If-None-Match", header.Get("ETag")); status != 304 || body != "" {
			t.Errorf("%s with its ETag: %d %q", path, status, body)
		}
	}
	_, _, keys := h.request("", "GET", h.url+"/.well-known/jwks.json", "")
	if kid := text(parse(t, keys), "keys.0.kid"); !strings.HasPrefix(kid, "ed25519:") {
		t.Errorf("the key set is %s", keys)
	}
	_, _, plain := h.request("", "GET", h.url+"/.well-known/agent-card.json", "")
	more := h.rpc("ann", "GetExtendedAgentCard", `{}`)
	if public := parse(t, plain); at(more, "result.skills").Len() <= at(public, "skills").Len() {
		t.Errorf("the extended card has %d skills, the public one %d", at(more, "result.skills").Len(), at(public, "skills").Len())
	}
	if status, _, _ := h.request("ann", "GET", h.base+"/extendedAgentCard", ""); status != 200 {
		t.Errorf("the extended card over HTTP+JSON: %d", status)
	}
}

// TestSendMessage checks the way of a message to the hook and back in both bindings (A2A-3, A2A-5, A2A-6, A2A-9).
func TestSendMessage(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	v := h.send("ann", "m1", "", "hello")
	var task sdk.StreamResponse
	if err := json.Unmarshal(at(v, "result").JSON(), &task); err != nil {
		t.Fatal(err)
	}
	if text(v, "result.task.status.state") != "TASK_STATE_COMPLETED" || text(v, "result.task.artifacts.0.parts.0.text") != "you said: hello" {
		t.Fatalf("the answer is %s", v.JSON())
	}
	if !strings.HasSuffix(text(v, "result.task.status.timestamp"), "Z") || strings.Contains(string(v.JSON()), `"kind"`) {
		t.Errorf("not ProtoJSON of 1.0: %s", v.JSON())
	}
	if role := text(v, "result.task.history.0.role"); role != "ROLE_USER" {
		t.Errorf("the history is %s", at(v, "result.task.history").JSON())
	}
	status, header, body := h.request("ann", "POST", h.base+"/message:send", message("m2", "", "again", ""), "Content-Type", "application/a2a+json; charset=utf-8")
	if v := parse(t, body); status != 200 || header.Get("Content-Type") != "application/a2a+json" || text(v, "task.artifacts.0.parts.0.text") != "you said: again" {
		t.Errorf("over HTTP+JSON: %d %s %s", status, header.Get("Content-Type"), body)
	}
	if status, _, body := h.request("ann", "POST", h.base+"/", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"`+text(v, "result.task.id")+`","history_length":0}}`); status != 200 || at(parse(t, body), "result.history").Kind() == wire.Array {
		t.Errorf("with a slash at the end, and the names of the proto: %d %s", status, body)
	}
	own := string(h.node.ID())
	if status, _, body := h.request("ann", "POST", h.base+"/"+own+"/message:send", message("m4", "", "tenant", "")); status != 200 {
		t.Errorf("under our agent id: %d %s", status, body)
	}
	if status, _, _ := h.request("ann", "POST", h.base+"/am_other/message:send", message("m5", "", "tenant", "")); status != 404 {
		t.Errorf("under another agent id: %d", status)
	}
}

// TestStates checks which states of tasks follow from what our side does.
func TestStates(t *testing.T) {
	gate := make(chan struct{})
	h := serve(t, agent(func(ctx context.Context, c hook.Call) (hook.Answer, error) {
		switch body := text(parse(t, string(c.Payload)), "message.body"); body {
		case "fail":
			return hook.Answer{}, errors.New("no")
		case "nothing":
			return hook.Answer{}, nil
		case "refuse":
			return hook.Answer{Err: wire.ErrIntent}, nil
		case "hold":
			return hook.Answer{Hold: "money"}, nil
		case "ask":
			return payload(t, `{"action":"deliver","message":{"body":"which one?"},"task":{"state":"input_required","text":"which one?"}}`), nil
		case "files":
			return payload(t, `{"action":"deliver","message":{"body":"see"},"artifacts":[{"id":"r","name":"R","parts":[{"text":"a"},{"raw":"aGk=","filename":"f.txt","media_type":"text/plain"},{"url":"https://x.example/"},{"data":{"n":1}}]}]}`), nil
		case "wait":
			<-gate
		}
		return payload(t, `{"action":"deliver","message":{"body":"done"}}`), nil
	}), nil, nil)
	for body, want := range map[string]string{
		"fail": "TASK_STATE_FAILED", "nothing": "TASK_STATE_COMPLETED", "refuse": "TASK_STATE_REJECTED", "done": "TASK_STATE_COMPLETED",
		"ask": "TASK_STATE_INPUT_REQUIRED", "files": "TASK_STATE_COMPLETED",
	} {
		v := h.send("ann", "m-"+body, "", body)
		if got := text(v, "result.task.status.state"); got != want {
			t.Errorf("%s: %s, want %s", body, v.JSON(), want)
		}
		switch body {
		case "files":
			if got := string(at(v, "result.task.artifacts.0.parts").JSON()); got != `[{"text":"a"},{"raw":"aGk=","filename":"f.txt","mediaType":"text/plain"},{"url":"https://x.example/"},{"data":{"n":1}}]` {
				t.Errorf("the artifact is %s", got)
			}
		case "ask":
			if text(v, "result.task.status.message.parts.0.text") != "which one?" {
				t.Errorf("the question is not in the status: %s", v.JSON())
			}
			id := text(v, "result.task.id")
			again := h.send("ann", "m-answer", `,"taskId":"`+id+`"`, "the second")
			if text(again, "result.task.id") != id || text(again, "result.task.status.state") != "TASK_STATE_COMPLETED" {
				t.Errorf("the answer to the question: %s", again.JSON())
			}
			if n := at(again, "result.task.history").Len(); n < 3 {
				t.Errorf("the history has %d messages: %s", n, again.JSON())
			}
		}
	}
	// A message that the agent works on, and one that it gives to the owner.
	v := h.rpc("ann", "SendMessage", message("m-wait", "", "wait", later))
	if id := text(v, "result.task.id"); text(v, "result.task.status.state") != "TASK_STATE_WORKING" {
		t.Errorf("while the agent works: %s", v.JSON())
	} else {
		close(gate)
		h.await("ann", id, "TASK_STATE_COMPLETED")
	}
	v = h.rpc("ann", "SendMessage", message("m-hold", "", "hold", later))
	id := text(v, "result.task.id")
	h.ask()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(string(v.JSON()), "waits for the owner"); v = h.get("ann", id) {
		if time.Now().After(deadline) {
			t.Fatalf("a message that its agent gave to the owner: %s", v.JSON())
		}
	}
	h.decide(acl.Reject)
	h.await("ann", id, "TASK_STATE_REJECTED")
}

// TestApproval checks that a task of a stranger waits for the owner and says so, goes on after the approval, and is
// rejected with the sender.
func TestApproval(t *testing.T) {
	h := serve(t, echo(t), approval, nil)
	v := h.rpc("ann", "SendMessage", message("m1", "", "hello", later))
	id := text(v, "result.task.id")
	if text(v, "result.task.status.state") != "TASK_STATE_WORKING" || !goldentest.Says(t, "a stranger's task", text(v, "result.task.status.message.parts.0.text")) {
		t.Fatalf("a stranger's task: %s", v.JSON())
	}
	h.decide(acl.Approve)
	done := h.await("ann", id, "TASK_STATE_COMPLETED")
	if text(done, "result.artifacts.0.parts.0.text") != "you said: hello" {
		t.Errorf("after the approval: %s", done.JSON())
	}
	v = h.rpc("bob", "SendMessage", message("m1", "", "hello", later))
	h.decide(acl.Reject)
	h.await("bob", text(v, "result.task.id"), "TASK_STATE_REJECTED")
	if v := h.send("bob", "m2", "", "again"); text(v, "error.data.0.reason") != "PERMISSION_DENIED" {
		t.Errorf("a message of a rejected caller: %s", v.JSON())
	}
	v = h.rpc("eve", "SendMessage", message("m1", "", "hello", later))
	h.decide(acl.Block)
	if v := h.get("eve", text(v, "result.task.id")); text(v, "error.data.0.reason") != "TASK_NOT_FOUND" {
		t.Errorf("a task of a blocked caller: %s", v.JSON())
	}
	if v := h.rpc("eve", "SubscribeToTask", `{"id":"`+text(v, "result.task.id")+`"}`); text(v, "error.data.0.reason") != "TASK_NOT_FOUND" {
		t.Errorf("a blocked caller subscribes: %s", v.JSON())
	}
}

// TestInbox checks a node without a hook: the owner answers later, or only takes note.
func TestInbox(t *testing.T) {
	h := serve(t, nil, nil, nil)
	v := h.rpc("ann", "SendMessage", message("m1", "", "call me", later))
	first := text(v, "result.task.id")
	if text(v, "result.task.status.state") != "TASK_STATE_SUBMITTED" {
		t.Fatalf("a message in the inbox: %s", v.JSON())
	}
	second := text(h.rpc("ann", "SendMessage", message("m2", "", "fyi", later)), "result.task.id")
	api := h.node.OwnerAPI()
	items, err := api.ListItems(t.Context(), owner.Query{Limit: 10})
	if err != nil || len(items.Items) != 2 {
		t.Fatalf("%d items, %v", len(items.Items), err)
	}
	reply := parse(t, `{"action":"deliver","message":{"body":"at six"}}`)
	if _, err := api.Reply(t.Context(), owner.NewReply{Item: items.Items[0].ID, Payload: reply}, 0); err != nil {
		t.Fatal(err)
	}
	if v := h.await("ann", first, "TASK_STATE_COMPLETED"); text(v, "result.artifacts.0.parts.0.text") != "at six" {
		t.Errorf("the owner's answer: %s", v.JSON())
	}
	if _, err := api.Acknowledge(t.Context(), items.Items[1].ID); err != nil {
		t.Fatal(err)
	}
	h.await("ann", second, "TASK_STATE_COMPLETED")
	// Our owner writes without being asked: the caller finds a task of its own.
	if _, err := api.Send(t.Context(), owner.NewMessage{To: "a2a:inbound/ann", Intent: wire.Deliver, Payload: reply}, 0); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if list := h.rpc("ann", "ListTasks", `{}`); at(list, "result.tasks").Len() == 3 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the list is %s", list.JSON())
		}
	}
}

// TestRepeats checks A2A-D4 and the rules for ids of A2A-10.
func TestRepeats(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	first := h.send("ann", "m1", "", "hello")
	id := text(first, "result.task.id")
	if again := h.send("ann", "m1", "", "hello"); text(again, "result.task.id") != id {
		t.Errorf("the same message again: %s", again.JSON())
	}
	if other := h.send("bob", "m1", "", "hello"); text(other, "result.task.id") == id || text(other, "result.task.id") == "" {
		t.Errorf("the same message of another caller: %s", other.JSON())
	}
	if v := h.send("ann", "m1", "", "something else"); at(v, "error.code").JSON() == nil || string(at(v, "error.code").JSON()) != "-32602" {
		t.Errorf("the message id with other content: %s", v.JSON())
	}
	status, _, body := h.request("ann", "POST", h.base+"/message:send", message("m1", "", "something else", ""))
	if status != 400 || text(parse(t, body), "error.status") != "INVALID_ARGUMENT" {
		t.Errorf("over HTTP+JSON: %d %s", status, body)
	}
	if v := h.send("ann", "m2", `,"taskId":"`+id+`"`, "more"); text(v, "error.data.0.reason") != "UNSUPPORTED_OPERATION" {
		t.Errorf("a message to a task that has ended: %s", v.JSON())
	}
	if v := h.send("ann", "m3", `,"taskId":"made-up"`, "more"); text(v, "error.data.0.reason") != "TASK_NOT_FOUND" {
		t.Errorf("a task id of the client: %s", v.JSON())
	}
	if v := h.send("ann", "m4", `,"taskId":"`+id+`","contextId":"other"`, "more"); text(v, "error.data.0.reason") != "INVALID_PARAMS" {
		t.Errorf("a context that is not the task's: %s", v.JSON())
	}
}

// TestContexts checks A2A-D3: a client's context id is kept, is its own, and is one conversation while that is open.
func TestContexts(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	long := strings.Repeat("c", 128)
	for _, id := range []string{"ctx-oc-ann", long} {
		one, two := h.send("ann", "1"+id[:8], `,"contextId":"`+id+`"`, "a"), h.send("ann", "2"+id[:8], `,"contextId":"`+id+`"`, "b")
		if text(one, "result.task.contextId") != id || text(two, "result.task.contextId") != id || text(one, "result.task.id") == text(two, "result.task.id") {
			t.Errorf("two tasks in a context: %s %s", one.JSON(), two.JSON())
		}
	}
	if v := h.send("ann", "m9", `,"contextId":"`+long+`c"`, "a"); text(v, "error.data.0.reason") != "INVALID_PARAMS" {
		t.Errorf("a context id of 129 characters: %s", v.JSON())
	}
	h.send("bob", "m1", `,"contextId":"ctx-oc-ann"`, "mine")
	if list := h.rpc("bob", "ListTasks", `{"contextId":"ctx-oc-ann"}`); at(list, "result.tasks").Len() != 1 {
		t.Errorf("another caller's context of that name: %s", list.JSON())
	}
	convs, err := h.node.Store.Steps().Conversations(t.Context(), "", 0, 10, time.Now())
	if err != nil || len(convs.Conversations) != 3 {
		t.Errorf("%d conversations, %v, want one for each context", len(convs.Conversations), err)
	}
}

// TestListWhileTasksVanish removes the last task of each page before it reads the next page.
func TestListWhileTasksVanish(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	const n = 45
	h.bridge.FillTasks(t, "a2a:inbound/ann", "TASK_STATE_COMPLETED", n)
	var got, want []string
	token, last := "", ""
	for page := 0; page == 0 || token != ""; page++ {
		v := h.rpc("ann", "ListTasks", `{"pageSize":4,"pageToken":"`+token+`"}`)
		for task := range at(v, "result.tasks").Elems() {
			last = text(task, "id")
			got = append(got, last)
		}
		h.bridge.RemoveTask(t, last)
		token = text(v, "result.nextPageToken")
	}
	for i := range n {
		want = append(want, fmt.Sprint("t", n-1-i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages have %v", got)
	}
}

// TestList checks A2A-11.
func TestList(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	for i := range 5 {
		h.send("ann", fmt.Sprint("m", i), "", fmt.Sprint("text ", i))
	}
	h.send("bob", "m1", "", "not ann's")
	var seen []string
	token := ""
	for page := range 3 {
		v := h.rpc("ann", "ListTasks", `{"pageSize":2,"pageToken":"`+token+`"}`)
		if n, _ := at(v, "result.totalSize").Num(); n != "5" {
			t.Fatalf("page %d: %s", page, v.JSON())
		}
		for task := range at(v, "result.tasks").Elems() {
			if _, has := task.Get("artifacts"); has {
				t.Errorf("a list without includeArtifacts has artifacts: %s", task.JSON())
			}
			seen = append(seen, text(task, "status.timestamp"))
		}
		next, has := at(v, "result").Get("nextPageToken")
		if !has {
			t.Fatalf("page %d has no nextPageToken", page)
		}
		token, _ = next.Str()
	}
	if len(seen) != 5 || token != "" {
		t.Errorf("%d tasks on three pages, token %q at the end", len(seen), token)
	}
	for i := 1; i < len(seen); i++ {
		if seen[i] > seen[i-1] {
			t.Errorf("the states are not in descending order: %v", seen)
		}
	}
	v := h.rpc("ann", "ListTasks", `{"includeArtifacts":true,"status":"TASK_STATE_COMPLETED","historyLength":1}`)
	if first := at(v, "result.tasks.0"); at(first, "artifacts").Len() != 1 || at(first, "history").Len() != 1 {
		t.Errorf("with artifacts and history: %s", first.JSON())
	}
	for params, want := range map[string]int{
		`{"status":"TASK_STATE_WORKING"}`: 0, `{"status":"TASK_STATE_UNSPECIFIED"}`: 5, `{"status":null}`: 5, `{"contextId":"none"}`: 0,
		`{"statusTimestampAfter":"` + time.Now().Add(time.Hour).Format(time.RFC3339) + `"}`: 0, `{"statusTimestampAfter":"2020-01-01T00:00:00Z"}`: 5,
	} {
		if v := h.rpc("ann", "ListTasks", params); at(v, "result.tasks").Len() != want {
			t.Errorf("%s: %s, want %d", params, v.JSON(), want)
		}
	}
	for _, bad := range []string{`{"pageSize":101}`, `{"pageSize":"x"}`, `{"pageToken":"%%"}`, `{"statusTimestampAfter":"noon"}`, `{"historyLength":-1}`, `{"status":"working"}`, `{"status":2}`, `{"includeArtifacts":"true"}`} {
		if v := h.rpc("ann", "ListTasks", bad); text(v, "error.data.0.reason") != "INVALID_PARAMS" {
			t.Errorf("%s: %s", bad, v.JSON())
		}
	}
	for _, spelling := range []string{"true", "True", "1"} {
		if status, _, body := h.request("ann", "GET", h.base+"/tasks?pageSize=1&includeArtifacts="+spelling, ""); status != 200 || at(parse(t, body), "tasks.0.artifacts").Len() != 1 {
			t.Errorf("over HTTP+JSON, with %s: %d %s", spelling, status, body)
		}
	}
	if status, _, body := h.request("ann", "GET", h.base+"/tasks?includeArtifacts=yes", ""); status != 400 {
		t.Errorf("includeArtifacts=yes: %d %s", status, body)
	}
	if v := h.rpc("ann", "GetTask", `{"id":"`+text(h.rpc("ann", "ListTasks", `{}`), "result.tasks.0.id")+`","historyLength":0}`); at(v, "result.history").Len() != 0 {
		t.Errorf("a task with historyLength 0 has a history: %s", v.JSON())
	}
}

// TestOthersTasks checks A2A-14: a task of another caller does not exist, whatever the method, and requests without a
// token or with a wrong one are refused.
func TestOthersTasks(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	id := text(h.send("ann", "m1", "", "secret"), "result.task.id")
	made := strings.Replace(id, id[:4], "0000", 1)
	for _, method := range []string{"GetTask", "CancelTask", "SubscribeToTask", "CreateTaskPushNotificationConfig", "ListTaskPushNotificationConfigs", "GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"} {
		params := `{"id":"%s","taskId":"%[1]s","url":"https://x.example/"}`
		theirs, none := h.rpc("bob", method, fmt.Sprintf(params, id)), h.rpc("bob", method, fmt.Sprintf(params, made))
		if text(theirs, "error.data.0.reason") != "TASK_NOT_FOUND" || string(theirs.JSON()) != string(none.JSON()) {
			t.Errorf("%s of another caller's task: %s; of no task: %s", method, theirs.JSON(), none.JSON())
		}
	}
	if v := h.send("bob", "m2", `,"taskId":"`+id+`"`, "more"); text(v, "error.data.0.reason") != "TASK_NOT_FOUND" {
		t.Errorf("a message to another caller's task: %s", v.JSON())
	}
	if status, _, body := h.request("bob", "GET", h.base+"/tasks/"+id, ""); status != 404 {
		t.Errorf("over HTTP+JSON: %d %s", status, body)
	}
	status, header, body := h.request("", "POST", h.base, `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"`+id+`"}}`)
	if status != 401 || header.Get("WWW-Authenticate") != "Bearer" || strings.Contains(body, "secret") {
		t.Errorf("without a token: %d %v %s", status, header, body)
	}
	if status, _, _ := h.request("", "GET", h.base+"/tasks/"+id, "", "Authorization", "Bearer a2a_wrong"); status != 401 {
		t.Errorf("with a wrong token: %d", status)
	}
	if v := h.rpc("ann", "GetTask", `{"id":"`+id+`"}`); text(v, "result.id") != id {
		t.Errorf("the caller's own task: %s", v.JSON())
	}
}

// TestTokens checks the owner's commands for tokens.
func TestTokens(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	secret := h.token("ann")
	call := func(method, path string) (int, wire.Value) {
		rec := httptest.NewRecorder()
		h.owner.ServeHTTP(rec, httptest.NewRequest(method, "/owner/a2a/tokens"+path, nil))
		return rec.Code, parse(t, rec.Body.String())
	}
	if status, _ := call("POST", "/ann"); status != http.StatusConflict {
		t.Errorf("a second token of a caller: %d", status)
	}
	for _, bad := range []string{"/anonymous", "/inbound", "/web", "/A", "/-a", "/" + strings.Repeat("a", 65)} {
		if status, _ := call("POST", bad); status != http.StatusBadRequest {
			t.Errorf("token %s: %d", bad, status)
		}
	}
	if status, list := call("GET", ""); status != 200 || text(list, "items.0.address") != "a2a:inbound/ann" || strings.Contains(string(list.JSON()), secret) {
		t.Errorf("the list: %d %s", status, list.JSON())
	}
	id := text(h.send("ann", "m1", "", "hello"), "result.task.id")
	if status, _ := call("DELETE", "/ann"); status != 200 {
		t.Errorf("revoke: %d", status)
	}
	if status, _, _ := h.request("ann", "GET", h.base+"/tasks/"+id, ""); status != 401 {
		t.Errorf("with a revoked token: %d", status)
	}
	if status, _ := call("DELETE", "/ann"); status != 404 {
		t.Errorf("revoke again: %d", status)
	}
	h.tokens = map[string]string{}
	if v := h.get("ann", id); text(v, "result.id") != id {
		t.Errorf("with a new token: %s", v.JSON())
	}
}

// TestAnonymous checks that callers without a token are one stranger, if the owner lets them in.
func TestAnonymous(t *testing.T) {
	h := serve(t, echo(t), approval, func(c *a2a.Config) { c.Anonymous = true })
	v := h.rpc("", "SendMessage", message("m1", "", "hello", later))
	if text(v, "result.task.status.state") != "TASK_STATE_WORKING" {
		t.Fatalf("without a token: %s", v.JSON())
	}
	if ask := h.ask(); ask.Subject != "a2a:inbound/anonymous" {
		t.Errorf("the owner is asked about %s", ask.Subject)
	}
	if again := h.rpc("", "SendMessage", message("m1", "", "something else", later)); text(again, "result.task.id") == "" || text(again, "result.task.id") == text(v, "result.task.id") {
		t.Errorf("another stranger with the same message id: %s", again.JSON())
	}
	if status, _, _ := h.request("", "GET", h.base+"/tasks", "", "Authorization", "Bearer wrong"); status != 401 {
		t.Errorf("a wrong token: %d", status)
	}
	if v := h.rpc("", "GetExtendedAgentCard", `{}`); text(v, "error.data.0.reason") != "UNSUPPORTED_OPERATION" {
		t.Errorf("the extended card: %s", v.JSON())
	}
}

// TestBlocking checks A2A-D1: a call is not held for longer than its limit.
func TestBlocking(t *testing.T) {
	h := serve(t, nil, nil, nil)
	h.bridge.SetBlockFor(300 * time.Millisecond)
	began := time.Now()
	v := h.send("ann", "m1", "", "hello")
	if took := time.Since(began); took < 250*time.Millisecond || took > 5*time.Second || text(v, "result.task.status.state") != "TASK_STATE_SUBMITTED" {
		t.Errorf("after %v: %s", took, v.JSON())
	}
	for _, at := range []string{later, `"blocking":false`} {
		began := time.Now()
		h.rpc("ann", "SendMessage", message("m"+at[1:6], "", "hello", at))
		if took := time.Since(began); took > 250*time.Millisecond {
			t.Errorf("with %s the call took %v", at, took)
		}
	}
	if a2a.BlockFor != 25*time.Second {
		t.Errorf("the limit is %v", a2a.BlockFor)
	}
}

// TestRestart checks that a task survives a restart, and that what the owner did meanwhile reaches it.
func TestRestart(t *testing.T) {
	h := serve(t, nil, approval, nil)
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "hello", later)), "result.task.id")
	h.stop() // the bridge is down while the owner decides
	h.decide(acl.Approve)
	h.restart(nil, approval)
	h.await("ann", id, "TASK_STATE_SUBMITTED")
	items, err := h.node.OwnerAPI().ListItems(t.Context(), owner.Query{Limit: 10})
	if err != nil || len(items.Items) != 1 {
		t.Fatalf("%d items, %v", len(items.Items), err)
	}
	h.stop()
	if _, err := h.node.OwnerAPI().Acknowledge(t.Context(), items.Items[0].ID); err != nil {
		t.Fatal(err)
	}
	h.restart(nil, approval)
	h.await("ann", id, "TASK_STATE_COMPLETED")
}

// TestManyTasks checks that a caller with the maximum number of tasks gets room for another one, at the cost of its own
// ended tasks.
func TestManyTasks(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	kept := text(h.send("bob", "m1", "", "hello"), "result.task.id")
	h.bridge.FillTasks(t, "a2a:inbound/ann", "TASK_STATE_COMPLETED", a2a.MaxTasks)
	if v := h.send("ann", "m1", "", "hello"); text(v, "result.task.status.state") != "TASK_STATE_COMPLETED" {
		t.Errorf("with all places taken: %s", v.JSON())
	}
	if n, _ := at(h.rpc("ann", "ListTasks", `{"pageSize":1}`), "result.totalSize").Num(); n != "501" {
		t.Errorf("%s tasks are left, want the newer half and the new one", n)
	}
	if v := h.get("bob", kept); text(v, "result.id") != kept {
		t.Errorf("another caller's task: %s", v.JSON())
	}
}

// TestAllTasksOpen checks that a caller whose tasks are all open is refused without reading them each time, and gets
// room as soon as one of them ends.
func TestAllTasksOpen(t *testing.T) { // THREATS row 46
	var read *countingStore
	h := serve(t, echo(t), nil, func(c *a2a.Config) {
		read = &countingStore{Store: c.Store}
		c.Store = read
	})
	first := text(h.send("ann", "first", "", "hello"), "result.task.id")
	h.bridge.RemoveTask(t, first)
	h.bridge.FillTasks(t, "a2a:inbound/ann", "TASK_STATE_WORKING", a2a.MaxTasks)
	refuse := func(id string) {
		t.Helper()
		if v := h.send("ann", id, "", "hello"); !goldentest.Says(t, "refused", text(v, "error.message")) {
			t.Fatalf("with all places taken: %s", v.JSON())
		}
	}
	refuse("m0")
	before := read.records.Load()
	for i := range 20 {
		refuse(fmt.Sprint("more", i))
	}
	if n := read.records.Load() - before; n > 20 {
		t.Errorf("20 refusals list %d records", n)
	}
	if v := h.send("bob", "m1", "", "hello"); text(v, "result.task.status.state") != "TASK_STATE_COMPLETED" {
		t.Errorf("another caller: %s", v.JSON())
	}
	h.rpc("ann", "CancelTask", `{"id":"t7"}`)
	if v := h.send("ann", "m0", "", "hello"); text(v, "result.task.status.state") != "TASK_STATE_COMPLETED" {
		t.Errorf("after the end of a task: %s", v.JSON())
	}
}

// countingStore counts the records that its lists return.
type countingStore struct {
	store.Store
	records atomic.Int64
}

func (s *countingStore) Records() store.Records { return countingRecords{s.Store.Records(), s} }

type countingRecords struct {
	store.Records
	s *countingStore
}

func (r countingRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	page, err := r.Records.List(ctx, ns, term, after, limit, now)
	r.s.records.Add(int64(len(page.Records)))
	return page, err
}
