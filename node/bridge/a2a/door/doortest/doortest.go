// Package doortest has the tests that every back end of the A2A door runs: what a client meets whatever is behind the
// door.
package doortest

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Target is an agent that accepts messages and has not answered them when the tests look.
type Target struct {
	URL   string // of the interface
	Token string // of a caller; "" for none
	Lists bool   // whether the back end has lists of tasks
}

// answer is what a client got.
type answer struct {
	status int
	kind   string // media type
	body   string
	tree   wire.Value
}

func (g Target) do(t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, g.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if g.Token != "" {
		req.Header.Set("Authorization", "Bearer "+g.Token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, kind: resp.Header.Get("Content-Type")}
	if strings.HasPrefix(a.kind, "text/event-stream") { // the first event is enough
		line, _ := bufio.NewReader(resp.Body).ReadString('\n')
		a.body = strings.TrimPrefix(strings.TrimSpace(line), "data: ")
	} else {
		data, _ := io.ReadAll(resp.Body)
		a.body = string(data)
	}
	a.tree, _ = wire.Parse([]byte(a.body))
	return a
}

// at returns the text, or the number, at a path of members; an array stands for its first element.
func (a answer) at(path string) string {
	v := a.tree
	for key := range strings.SplitSeq(path, ".") {
		if v.Kind() == wire.Array && v.Len() > 0 {
			v = v.At(0)
		}
		v, _ = v.Get(key)
	}
	if token, ok := v.Num(); ok {
		return token
	}
	text, _ := v.Str()
	return text
}

func rpc(method, params string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":` + params + `}`
}

// Run runs the tests.
func Run(t *testing.T, g Target) {
	const old = `{"message":{"kind":"message","messageId":"d2","role":"user","parts":[{"kind":"text","text":"hi"}]},"configuration":{"blocking":false}}`
	params := func(id, text string) string {
		return `{"message":{"messageId":"` + id + `","contextId":"c","role":"ROLE_USER","parts":[{"text":"` + text + `"}]},"configuration":{"returnImmediately":true}}`
	}
	sent := g.do(t, "POST", "", rpc("SendMessage", params("d1", "hi")), "A2A-Version", "1.0")
	id := sent.at("result.task.id")
	if sent.status != 200 || id == "" || sent.at("result.task.contextId") != "c" {
		t.Fatalf("a message: %d %s", sent.status, sent.body)
	}
	large := `{"x":"` + strings.Repeat("x", 1<<20) + `"}`
	get := `{"id":"` + id + `"}`
	for _, tt := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		kind, at, want           string // what stands at a path of the answer; "*" for anything
	}{
		{"the same message", "POST", "", rpc("SendMessage", params("d1", "hi")), nil, 200, "application/json", "result.task.id", id},
		{"its id with other content", "POST", "", rpc("SendMessage", params("d1", "ho")), nil, 200, "application/json", "error.data.reason", "INVALID_PARAMS"},
		{"with a slash at the end", "POST", "/", rpc("GetTask", get), nil, 200, "application/json", "result.id", id},
		{"names of the proto", "POST", "", rpc("SendMessage", strings.NewReplacer("messageId", "message_id", "contextId", "context_id", "returnImmediately", "return_immediately").Replace(params("d1", "hi"))), nil, 200, "application/json", "result.task.id", id},
		{"HTTP+JSON", "POST", "/message:send", params("d1", "hi"), nil, 200, "application/a2a+json", "task.id", id},
		{"A2A's media type", "POST", "/message:send", params("d1", "hi"), []string{"Content-Type", "application/a2a+json"}, 200, "application/a2a+json", "task.id", id},
		{"a task", "GET", "/tasks/" + id, "", nil, 200, "application/a2a+json", "status.state", "*"},
		{"0.3", "POST", "", rpc("message/send", old), nil, 200, "application/json", "result.kind", "task"},
		{"0.3, a task", "POST", "", rpc("tasks/get", get), []string{"A2A-Version", "0.3"}, 200, "application/json", "result.kind", "task"},
		{"0.3 over HTTP+JSON", "POST", "/v1/message:send", strings.NewReplacer(`"kind":"message",`, "", `"kind":"text",`, "", `"parts"`, `"content"`, `"user"`, `"ROLE_USER"`).Replace(old), nil, 200, "application/json", "task.id", "*"},
		{"0.3 over HTTP+JSON, a task", "GET", "/v1/tasks/" + id, "", nil, 200, "application/json", "id", id},
		{"no task", "POST", "", rpc("GetTask", `{"id":"none"}`), nil, 200, "application/json", "error.data.reason", "TASK_NOT_FOUND"},
		{"no task over HTTP+JSON", "GET", "/tasks/none", "", nil, 404, "application/json", "error.details.reason", "TASK_NOT_FOUND"},
		{"no task in 0.3", "POST", "", rpc("tasks/get", `{"id":"none"}`), nil, 200, "application/json", "error.code", "-32001"},
		{"no task in 0.3 over HTTP+JSON", "GET", "/v1/tasks/none", "", nil, 404, "application/json", "code", "-32001"},
		{"no task to cancel", "POST", "/tasks/none:cancel", "", nil, 404, "application/json", "error.details.reason", "TASK_NOT_FOUND"},
		{"no task to subscribe to", "GET", "/tasks/none:subscribe", "", nil, 404, "application/json", "error.details.reason", "TASK_NOT_FOUND"},
		{"a message for no task", "POST", "/message:send", strings.Replace(params("d3", "hi"), `"contextId":"c"`, `"taskId":"none"`, 1), nil, 404, "application/json", "error.details.reason", "TASK_NOT_FOUND"},
		{"another version", "POST", "", rpc("GetTask", get), []string{"A2A-Version", "99.0"}, 200, "application/json", "error.data.reason", "VERSION_NOT_SUPPORTED"},
		{"a method of 1.0 as 0.3", "POST", "", rpc("GetTask", get), []string{"A2A-Version", "0.3"}, 200, "application/json", "error.data.reason", "VERSION_NOT_SUPPORTED"},
		{"a method of 0.3 as 1.0", "POST", "", rpc("tasks/get", get), []string{"A2A-Version", "1.0"}, 200, "application/json", "error.data.reason", "VERSION_NOT_SUPPORTED"},
		{"a path of 0.3 as 1.0", "GET", "/v1/tasks/" + id, "", []string{"A2A-Version", "1.0"}, 400, "application/json", "code", "-32009"},
		{"no JSON", "POST", "", "{", nil, 200, "application/json", "error.data.reason", "PARSE_ERROR"},
		{"no method", "POST", "", rpc("Forget", "{}"), nil, 200, "application/json", "error.data.reason", "METHOD_NOT_FOUND"},
		{"no path", "POST", "/message:forget", "{}", nil, 404, "application/json", "error.details.reason", "METHOD_NOT_FOUND"},
		{"too large", "POST", "", large, nil, 413, "application/json", "error.data.reason", "OUT_OF_RANGE"},
		{"another media type", "POST", "/message:send", params("d4", "hi"), []string{"Content-Type", "text/plain"}, 400, "application/json", "error.details.reason", "CONTENT_TYPE_NOT_SUPPORTED"},
		{"another tenant", "GET", "/other/tasks/" + id, "", nil, 404, "application/json", "error.details.reason", "TASK_NOT_FOUND"},
		{"the role of an agent", "POST", "/message:send", strings.Replace(params("d5", "hi"), "ROLE_USER", "ROLE_AGENT", 1), nil, 400, "application/json", "error.details.reason", "INVALID_PARAMS"},
		{"a part with two contents", "POST", "/message:send", strings.Replace(params("d6", "hi"), `"text":"hi"`, `"text":"hi","url":"https://x"`, 1), nil, 400, "application/json", "error.details.reason", "INVALID_PARAMS"},
		{"a stream", "POST", "/message:stream", params("d7", "hi"), nil, 200, "text/event-stream; charset=utf-8", "task.contextId", "c"},
		{"a stream over JSON-RPC", "POST", "", rpc("SendStreamingMessage", params("d8", "hi")), nil, 200, "text/event-stream; charset=utf-8", "result.task.contextId", "c"},
		{"a stream of 0.3", "POST", "", rpc("message/stream", strings.Replace(old, "d2", "d9", 1)), nil, 200, "text/event-stream; charset=utf-8", "result.kind", "task"},
		{"a subscription", "GET", "/tasks/" + id + ":subscribe", "", nil, 200, "text/event-stream; charset=utf-8", "task.id", id},
		{"a stream with a bad message", "POST", "/message:stream", `{}`, nil, 400, "application/json", "error.details.reason", "INVALID_PARAMS"},
	} {
		a := g.do(t, tt.method, tt.path, tt.body, tt.header...)
		if got := a.at(tt.at); a.status != tt.status || a.kind != tt.kind || got != tt.want && (tt.want != "*" || got == "") {
			t.Errorf("%s: %d %s %s, want %d %s with %s at %s", tt.name, a.status, a.kind, a.body, tt.status, tt.kind, tt.want, tt.at)
		}
	}
	status, reason := 200, ""
	if !g.Lists {
		status, reason = 400, "UNSUPPORTED_OPERATION"
	}
	a := g.do(t, "GET", "/tasks?contextId=c&pageSize=1", "")
	tasks, _ := a.tree.Get("tasks")
	if a.status != status || a.at("error.details.reason") != reason || g.Lists && (tasks.Len() != 1 || a.at("pageSize") != strconv.Itoa(1) || a.at("nextPageToken") == "") {
		t.Errorf("a list: %d %s", a.status, a.body)
	}
}
