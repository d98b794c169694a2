package message_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

func parse(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func is(e, want *message.Error) bool { return e != nil && errors.Is(e, want) }

func rpc(method, params string) []byte {
	return []byte(`{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":` + params + `}`)
}

const hello = `{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"hi"}]}}`

// TestErrors checks A2A-8: each error in both bindings, and that a client of ours reads it back.
func TestErrors(t *testing.T) {
	codes := map[string][2]int{
		"TASK_NOT_FOUND": {-32001, 404}, "TASK_NOT_CANCELABLE": {-32002, 400}, "PUSH_NOTIFICATION_NOT_SUPPORTED": {-32003, 400},
		"UNSUPPORTED_OPERATION": {-32004, 400}, "CONTENT_TYPE_NOT_SUPPORTED": {-32005, 400}, "INVALID_AGENT_RESPONSE": {-32006, 500},
		"EXTENDED_AGENT_CARD_NOT_CONFIGURED": {-32007, 400}, "EXTENSION_SUPPORT_REQUIRED": {-32008, 400}, "VERSION_NOT_SUPPORTED": {-32009, 400},
	}
	seen := 0
	for _, e := range message.Errors() {
		if want, ok := codes[e.Reason]; ok {
			seen++
			if e.Code != want[0] || e.Status != want[1] {
				t.Errorf("%s is %d, %d, want %v", e.Reason, e.Code, e.Status, want)
			}
		}
		status, body := e.RPC(wire.Int(7))
		v := parse(t, string(body))
		fault, _ := v.Get("error")
		data, _ := fault.Get("data")
		if id, _ := v.Get("id"); string(id.JSON()) != "7" || data.Len() != 1 || data.At(0).GetStr("reason") != e.Reason ||
			data.At(0).GetStr("domain") != "a2a-protocol.org" || data.At(0).GetStr("@type") != "type.googleapis.com/google.rpc.ErrorInfo" {
			t.Errorf("%s over JSON-RPC: %s", e.Reason, body)
		}
		if got := message.ReadError(status, fault); !errors.Is(got, e) {
			t.Errorf("%s was read back as %+v", e.Reason, got)
		}
		status, body = e.REST()
		fault, _ = parse(t, string(body)).Get("error")
		details, _ := fault.Get("details")
		if status != e.Status || fault.GetStr("status") != e.Name || details.Len() != 1 {
			t.Errorf("%s over HTTP+JSON: %d %s", e.Reason, status, body)
		}
		if got := message.ReadError(status, fault); !errors.Is(got, e) {
			t.Errorf("%s was read back as %+v", e.Reason, got)
		}
	}
	if seen != len(codes) {
		t.Errorf("%d of %d codes are in the table", seen, len(codes))
	}
	for _, row := range wire.Table() {
		if e := message.FromMesh(row); e == nil || e.Status < 400 || strings.Contains(e.Message, "bearer token does not own") {
			t.Errorf("%s becomes %v", row.Row(), e)
		}
	}
	for err, want := range map[error]*message.Error{
		wire.ErrIDReused: message.ErrParams, wire.ErrRateLimited: message.ErrBusy, wire.ErrNotAllowed: message.ErrForbidden,
		wire.ErrConversationClosed: message.ErrUnsupported, wire.ErrUnavailable: message.ErrUnavailable, wire.ErrPayload: message.ErrParams,
		wire.ErrTooLarge: message.ErrTooLarge, wire.ErrOwnerRejected: message.ErrForbidden, os.ErrClosed: message.ErrUnavailable,
	} {
		if got := message.FromMesh(err); !errors.Is(got, want) {
			t.Errorf("%v becomes %v, want %v", err, got, want)
		}
	}
}

// TestServerErrorWithoutReason checks that the general error -32000 of JSON-RPC keeps the HTTP status with which it
// came, because three errors of ours have this code.
func TestServerErrorWithoutReason(t *testing.T) {
	fault := parse(t, `{"code":-32000,"message":"the token has expired"}`)
	for _, status := range []int{200, 400, 401, 403, 408, 413, 429, 502, 503} {
		if got := message.ReadError(status, fault); got.Status != status || got.Message != "the token has expired" {
			t.Errorf("with HTTP %d: status %d, %q", status, got.Status, got.Message)
		}
	}
}

// TestVersions checks A2A-7 and A2A-D2.
func TestVersions(t *testing.T) {
	old := strings.Replace(hello, "ROLE_USER", "user", 1)
	for _, tt := range []struct {
		name, method, params, version string
		refused                       bool
	}{
		{"1.0", "SendMessage", hello, "1.0", false},
		{"a patch of 1.0", "SendMessage", hello, "1.0.7", false},
		{"none", "SendMessage", hello, "", false},
		{"none, with a name of 0.3 and a body of 1.0", "message/send", hello, "", false},
		{"none, with a body of 0.3", "message/send", old, "", false},
		{"none, with a body of 0.3 and a name of 1.0", "SendMessage", old, "", true},
		{"none, with a name of 0.3", "tasks/get", `{"id":"t"}`, "", false},
		{"0.3, with a name of 0.3", "tasks/get", `{"id":"t"}`, "0.3.0", false},
		{"1.0, with a name of 0.3", "tasks/get", `{"id":"t"}`, "1.0", true},
		{"0.3", "SendMessage", hello, "0.3", true},
		{"1.1", "SendMessage", hello, "1.1", true},
		{"99.0", "GetTask", `{"id":"t"}`, "99.0", true},
		{"1", "GetTask", `{"id":"t"}`, "1", true},
	} {
		c, e := message.ReadRPC(rpc(tt.method, tt.params), tt.version)
		if refused := is(e, message.ErrVersion); refused != tt.refused || !refused && e != nil {
			t.Errorf("%s: %v, want it refused: %v", tt.name, e, tt.refused)
		}
		if strings.Contains(c.Method, "/") {
			t.Errorf("%s: the method is %s", tt.name, c.Method)
		}
	}
	if _, e := message.ReadREST("GET", "/tasks/t", nil, nil, "0.3"); !is(e, message.ErrVersion) {
		t.Errorf("0.3 over HTTP+JSON: %v", e)
	}
	if _, e := message.ReadREST("POST", "/message:send", nil, []byte(old), ""); !is(e, message.ErrVersion) {
		t.Errorf("a body of 0.3 over HTTP+JSON: %v", e)
	}
}

// TestExtensions checks the negotiation of A2A-7.
func TestExtensions(t *testing.T) {
	h := http.Header{"A2a-Extensions": {"urn:a, urn:b", "urn:c"}}
	named := message.ExtensionsIn(h)
	if diff := cmp.Diff([]string{"urn:a", "urn:b", "urn:c"}, named); diff != "" {
		t.Error(diff)
	}
	if n := len(message.ExtensionsIn(http.Header{"A2a-Extensions": {strings.Repeat("urn:x,", 1000)}})); n > 16 {
		t.Errorf("%d extensions were read", n)
	}
}

// TestREST checks the routes of A2A-6, with their parameters in the form of JSON-RPC.
func TestREST(t *testing.T) {
	for _, tt := range []struct{ method, path, query, body, want, params string }{
		{"POST", "/message:send", "", hello, "SendMessage", hello},
		{"POST", "/message:stream", "", hello, "SendStreamingMessage", hello},
		{"GET", "/tasks/t1", "historyLength=2", "", "GetTask", `{"historyLength":"2","id":"t1"}`},
		{"GET", "/tasks", "contextId=c&pageSize=3&includeArtifacts=true", "", "ListTasks", `{"contextId":"c","includeArtifacts":true,"pageSize":"3"}`},
		{"POST", "/tasks/t1:cancel", "", "{}", "CancelTask", `{"id":"t1"}`},
		{"GET", "/tasks/t1:subscribe", "", "", "SubscribeToTask", `{"id":"t1"}`},
		{"POST", "/tasks/t1:subscribe", "", "", "SubscribeToTask", `{"id":"t1"}`},
		{"POST", "/tasks/t1/pushNotificationConfigs", "", `{"url":"https://x.example/"}`, "CreateTaskPushNotificationConfig", `{"url":"https://x.example/","taskId":"t1"}`},
		{"GET", "/tasks/t1/pushNotificationConfigs", "", "", "ListTaskPushNotificationConfigs", `{"taskId":"t1"}`},
		{"GET", "/tasks/t1/pushNotificationConfigs/c1", "", "", "GetTaskPushNotificationConfig", `{"taskId":"t1","id":"c1"}`},
		{"DELETE", "/tasks/t1/pushNotificationConfigs/c1", "", "", "DeleteTaskPushNotificationConfig", `{"taskId":"t1","id":"c1"}`},
		{"GET", "/tasks/t1/pushNotificationConfigs/a%2Fb%25", "", "", "GetTaskPushNotificationConfig", `{"taskId":"t1","id":"a/b%"}`},
		{"POST", "/tasks/t1%3Acancel", "", "{}", "CancelTask", `{"id":"t1"}`},
		{"GET", "/extendedAgentCard", "", "", "GetExtendedAgentCard", `{}`},
		{"GET", "/am_me/tasks/t1", "", "", "GetTask", `{"id":"t1"}`},
		{"POST", "/am_me/message:send", "", hello, "SendMessage", hello},
	} {
		query, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		c, e := message.ReadREST(tt.method, tt.path, query, []byte(tt.body), "1.0")
		if e != nil || c.Method != tt.want || string(c.Params.JSON()) != tt.params {
			t.Errorf("%s %s: %s %s, %v, want %s %s", tt.method, tt.path, c.Method, c.Params.JSON(), e, tt.want, tt.params)
		}
		if tenant := strings.HasPrefix(tt.path, "/am_me"); tenant != (c.Tenant == "am_me") {
			t.Errorf("%s: tenant %q", tt.path, c.Tenant)
		}
	}
	for _, bad := range [][2]string{
		{"GET", "/"}, {"GET", "/message:send"}, {"DELETE", "/tasks/t1"}, {"POST", "/tasks/t1"}, {"POST", "/tasks/t1:delete"}, {"GET", "/tasks/t1:cancel"},
		{"GET", "/a/b/tasks"}, {"GET", "/tasks/t1/other"}, {"GET", "/tasks/t1/pushNotificationConfigs/c/d"}, {"PUT", "/tasks"}, {"GET", "/tasks/%zz"},
	} {
		if c, e := message.ReadREST(bad[0], bad[1], nil, nil, ""); !is(e, message.ErrMethod) {
			t.Errorf("%s %s: %+v, %v", bad[0], bad[1], c, e)
		}
	}
}

// TestBadRequests checks what ReadRPC refuses, and that the answer still has the id.
func TestBadRequests(t *testing.T) {
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	for _, tt := range []struct {
		name, body string
		want       *message.Error
	}{
		{"no JSON", `{`, message.ErrParse},
		{"an array", `[]`, message.ErrParse},
		{"a duplicate key", `{"jsonrpc":"2.0","jsonrpc":"2.0","id":7,"method":"GetTask"}`, message.ErrParse},
		{"deep", `{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"x":` + deep + `}}`, message.ErrParse},
		{"many values", `{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"x":[` + strings.Repeat("1,", 30_000) + `1]}}`, message.ErrParse},
		{"large", `{"x":"` + strings.Repeat("x", message.MaxBody) + `"}`, message.ErrTooLarge},
		{"no version of JSON-RPC", `{"id":7,"method":"GetTask"}`, message.ErrRequest},
		{"no id", `{"jsonrpc":"2.0","method":"GetTask"}`, message.ErrRequest},
		{"an object as id", `{"jsonrpc":"2.0","id":{},"method":"GetTask"}`, message.ErrRequest},
		{"no method", `{"jsonrpc":"2.0","id":7}`, message.ErrRequest},
		{"an unknown method", `{"jsonrpc":"2.0","id":7,"method":"Steal"}`, message.ErrMethod},
		{"params that are not an object", `{"jsonrpc":"2.0","id":7,"method":"GetTask","params":[1]}`, message.ErrParams},
	} {
		c, e := message.ReadRPC([]byte(tt.body), "1.0")
		if !is(e, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, e, tt.want)
		}
		_, body := c.Refuse(message.ErrParams)
		if !json.Valid(body) {
			t.Errorf("%s: the answer is %s", tt.name, body)
		}
	}
}

// TestMessages checks A2A-4 and the bounds of ids (A2A-10, A2A-D3).
func TestMessages(t *testing.T) {
	read := func(member string) *message.Error {
		_, e := message.ReadMessage(parse(t, `{"message":{"messageId":"m","role":"ROLE_USER",`+member+`}}`))
		return e
	}
	for _, good := range []string{
		`"parts":[{"text":""}]`, `"parts":[{"raw":"aGk="}]`, `"parts":[{"raw":"-_8","filename":"a.bin"}]`, `"parts":[{"url":"https://x.example/a"}]`,
		`"parts":[{"data":null}]`, `"parts":[{"data":[1,"a"],"mediaType":"application/json"}]`, `"parts":[{"text":"a","raw":null}]`,
		`"parts":[{"text":"a","unknown":1}],"unknown":{}`, `"contextId":"` + strings.Repeat("c", 128) + `","parts":[{"text":"a"}]`,
	} {
		if e := read(good); e != nil {
			t.Errorf("%s: %v", good, e)
		}
	}
	for _, bad := range []string{
		`"parts":[]`, `"parts":{}`, `"parts":[{}]`, `"parts":[1]`, `"parts":[{"text":"a","data":1}]`, `"parts":[{"text":1}]`, `"parts":[{"raw":"%"}]`,
		`"parts":[{"url":""}]`, `"parts":[{"url":"no url"}]`, `"parts":[{"text":"a","mediaType":1}]`, `"parts":[` + strings.Repeat(`{"text":"a"},`, 64) + `{"text":"a"}]`,
		`"contextId":"` + strings.Repeat("c", 129) + `","parts":[{"text":"a"}]`, `"contextId":"a b","parts":[{"text":"a"}]`,
		`"metadata":[],"parts":[{"text":"a"}]`,
	} {
		if e := read(bad); !is(e, message.ErrParams) {
			t.Errorf("%s: %v", bad, e)
		}
	}
	for _, bad := range []string{
		`{}`, `{"message":[]}`, `{"message":{"role":"ROLE_USER","parts":[{"text":"a"}]}}`, `{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"a"}]}}`,
	} {
		if _, e := message.ReadMessage(parse(t, bad)); !is(e, message.ErrParams) {
			t.Errorf("%s: %v", bad, e)
		}
	}
}

// TestPayloads checks the way of a message into the mesh, and of our messages out.
func TestPayloads(t *testing.T) {
	for _, tt := range []struct{ name, message, intent, payload string }{
		{"text", `"parts":[{"text":"a"},{"text":"b"}]`, "mesh.message", `{"action":"deliver","message":{"body":"a\nb","reply_requested":true}}`},
		{
			"file", `"parts":[{"text":"see"},{"raw":"aGk=","mediaType":"text/plain","filename":"a.txt","metadata":{"x":1}},{"url":"https://x.example/"},{"data":{"n":1}}]`,
			"mesh.message", `{"action":"deliver","message":{"body":"see","reply_requested":true},"parts":[{"text":"see"},{"raw":"aGk=","filename":"a.txt","media_type":"text/plain"},{"url":"https://x.example/"},{"data":{"n":1}}]}`,
		},
		{
			"of the mesh", `"metadata":{"urn:agentmesh:a2a:v1":{"intent":"mesh.request_info"}},"parts":[{"data":{"action":"ask","question":"why?"}}]`,
			"mesh.request_info", `{"action":"ask","question":"why?"}`,
		},
		{
			"of the mesh, with two parts", `"metadata":{"urn:agentmesh:a2a:v1":{"intent":"mesh.request_info"}},"parts":[{"data":{}},{"text":"x"}]`,
			"mesh.message", `{"action":"deliver","message":{"body":"x","reply_requested":true},"parts":[{"data":{}},{"text":"x"}]}`,
		},
	} {
		m, e := message.ReadMessage(parse(t, `{"message":{"messageId":"m","role":"ROLE_USER",`+tt.message+`}}`))
		if e != nil {
			t.Fatal(e)
		}
		intent, payload := m.Payload()
		if string(intent) != tt.intent || string(payload.JSON()) != tt.payload {
			t.Errorf("%s: %s %s", tt.name, intent, payload.JSON())
		}
		out := message.NewMessage("m", "c", "", intent, payload.With("metadata", parse(t, `{"bridge":{},"in_reply_to":"msg_1"}`)))
		var sdk a2a.Message
		if err := json.Unmarshal(out.JSON(), &sdk); err != nil || sdk.Role != a2a.MessageRoleUser {
			t.Errorf("%s: the SDK does not read %s: %v", tt.name, out.JSON(), err)
		}
		again, e := message.ReadMessage(wire.Obj(wire.Field("message", out)))
		if e != nil {
			t.Fatal(e)
		}
		if i, p := again.Payload(); i != intent || !bytes.Equal(p.JSON(), payload.JSON()) {
			t.Errorf("%s: came back as %s %s", tt.name, i, p.JSON())
		}
	}
}

// TestReplies checks what our payloads say about a task, and that another node of ours reads the same.
func TestReplies(t *testing.T) {
	const result = `"task":{"state":"completed","text":"done"},"artifacts":[{"id":"r","name":"Report","parts":[{"text":"a"},{"raw":"aGk=","media_type":"x/y","filename":"f"},{"url":"https://x.example/"},{"data":{"n":1}}]},{"parts":[{}]}]`
	for _, tt := range []struct {
		name, payload string
		state         a2a.TaskState
		text          string
		artifacts     string
		receipt       bool
		empty         bool // nothing comes back, only the state
	}{
		{name: "receipt", payload: `{"action":"received"}`, state: a2a.TaskStateSubmitted, receipt: true},
		{name: "owner decides", payload: `{"action":"pending_approval","reason":"The owner of this agent approves new contacts."}`, state: a2a.TaskStateWorking, text: message.TextWaits},
		{name: "later", payload: `{"action":"pending_approval","reason":"The message was accepted. The agent's answer comes later."}`, state: a2a.TaskStateWorking, text: message.TextLater},
		{name: "failed hook", payload: `{"action":"pending_approval","reason":"The agent could not answer this message. Its owner decides what happens next."}`, state: a2a.TaskStateWorking, text: message.TextFailed},
		{name: "rejected", payload: `{"action":"close","status":"failed","reason":"OWNER_REJECTED"}`, state: a2a.TaskStateRejected, text: message.TextRejected},
		{name: "closed", payload: `{"action":"close","status":"failed"}`, state: a2a.TaskStateCanceled, text: message.TextCanceled},
		{name: "ended", empty: true, payload: `{"action":"close","status":"completed"}`, state: a2a.TaskStateCompleted},
		{name: "text", payload: `{"action":"deliver","message":{"body":"hi"},"metadata":{"in_reply_to":"msg_1"}}`, state: a2a.TaskStateCompleted, artifacts: `[{"artifactId":"id","parts":[{"text":"hi"}]}]`},
		{name: "answer", payload: `{"action":"answer","answer":"42"}`, state: a2a.TaskStateCompleted, artifacts: `[{"artifactId":"id","parts":[{"text":"42"}]}]`},
		{name: "data", payload: `{"action":"counter","event":{"title":"x"}}`, state: a2a.TaskStateCompleted, artifacts: `[{"artifactId":"id","parts":[{"data":{"action":"counter","event":{"title":"x"}},"mediaType":"application/json"}]}]`},
		{name: "question", payload: `{"action":"deliver","message":{"body":"which one?"},"task":{"state":"input_required"}}`, state: a2a.TaskStateInputRequired, text: "which one?"},
		{name: "failed", payload: `{"action":"deliver","message":{"body":"b"},"task":{"state":"failed","text":"no"}}`, state: a2a.TaskStateFailed, text: "no"},
		{name: "text of the artifacts", payload: `{"action":"deliver","message":{"body":"a"},"artifacts":[{"id":"r","parts":[{"text":"a"}]}]}`, state: a2a.TaskStateCompleted, artifacts: `[{"artifactId":"r","parts":[{"text":"a"}]}]`},
		{name: "result", payload: `{"action":"deliver","message":{"body":"talk"},` + result + `}`, state: a2a.TaskStateCompleted, text: "done", artifacts: `[{"artifactId":"r","parts":[{"text":"a"},{"raw":"aGk=","filename":"f","mediaType":"x/y"},{"url":"https://x.example/"},{"data":{"n":1}}],"name":"Report"}]`},
	} {
		r := message.ReadReply(wire.Deliver, parse(t, tt.payload), "id", false)
		if r.State != tt.state || r.Text != tt.text || r.Receipt != tt.receipt {
			t.Errorf("%s: %s %q, receipt %v", tt.name, r.State, r.Text, r.Receipt)
		}
		if got := string(wire.Arr(r.Artifacts...).JSON()); got != tt.artifacts && (tt.artifacts != "" || len(r.Artifacts) > 0) {
			t.Errorf("%s: %s", tt.name, got)
		}
		task := message.Task{ID: "t", Context: "c", State: r.State, At: time.Unix(1, 0), Artifacts: r.Artifacts}
		if r.Text != "" {
			task.Status = task.AgentMessage("s", r.Text)
		}
		var sdk a2a.Task
		if err := json.Unmarshal(task.Value().JSON(), &sdk); err != nil || sdk.Status.State != r.State || len(sdk.Artifacts) != len(r.Artifacts) {
			t.Errorf("%s: the SDK reads %+v, %v", tt.name, sdk, err)
		}
		for _, event := range []wire.Value{task.TaskResult(), task.ArtifactUpdate(parse(t, `{"artifactId":"a","parts":[{"text":"x"}]}`), true, true)} {
			var sdk a2a.StreamResponse
			if err := json.Unmarshal(event.JSON(), &sdk); err != nil {
				t.Errorf("%s: the SDK does not read %s: %v", tt.name, event.JSON(), err)
			}
		}
		if tt.receipt || tt.empty || r.State == a2a.TaskStateWorking {
			continue
		}
		remote, e := message.ReadResult(task.TaskResult())
		if e != nil || remote.IsWaiting() {
			t.Fatalf("%s: %v", tt.name, e)
		}
		_, payload := remote.Payload(wire.Deliver)
		back := message.ReadReply(wire.Deliver, payload, "id", false)
		if diff := cmp.Diff(string(wire.Arr(r.Artifacts...).JSON()), string(wire.Arr(back.Artifacts...).JSON())); back.State != r.State || diff != "" {
			t.Errorf("%s: came back as %s: %s", tt.name, payload.JSON(), diff)
		}
	}
	if stamp := (message.Task{ID: "t", At: time.UnixMilli(1_500)}).Value(); !strings.Contains(string(stamp.JSON()), `"timestamp":"1970-01-01T00:00:01.500Z"`) {
		t.Errorf("the time of a status: %s", stamp.JSON())
	}
}

// TestMeshArtifact checks that two nodes exchange payloads over A2A without loss.
func TestMeshArtifact(t *testing.T) {
	payload := parse(t, `{"action":"counter","event":{"title":"x"},"metadata":{"in_reply_to":"msg_1","k":1}}`)
	r := message.ReadReply(wire.Schedule, payload, "id", true)
	remote, e := message.ReadResult(message.Task{ID: "t", Context: "c", State: r.State, Artifacts: r.Artifacts}.TaskResult())
	if e != nil {
		t.Fatal(e)
	}
	intent, back := remote.Payload(wire.Schedule)
	if want := `{"action":"counter","event":{"title":"x"},"metadata":{"k":1}}`; intent != wire.Schedule || string(back.JSON()) != want {
		t.Errorf("came back as %s %s", intent, back.JSON())
	}
}

// TestResults checks the answers of other agents.
func TestResults(t *testing.T) {
	for _, bad := range []string{`{}`, `{"task":{}}`, `{"task":{"id":"t"}}`, `{"message":{}}`, `{"message":{"parts":[{}]}}`, `{"task":{"id":"","status":{"state":"TASK_STATE_WORKING"}}}`} {
		if r, e := message.ReadResult(parse(t, bad)); !is(e, message.ErrAgentResponse) {
			t.Errorf("%s: %+v, %v", bad, r, e)
		}
	}
	r, e := message.ReadResult(parse(t, `{"message":{"messageId":"x","contextId":"c","parts":[{"text":"direct"}]}}`))
	if e != nil || r.IsWaiting() || r.ContextID != "c" {
		t.Fatalf("%+v, %v", r, e)
	}
	if intent, payload := r.Payload(wire.RequestInfo); intent != wire.RequestInfo || string(payload.JSON()) != `{"action":"answer","answer":"direct"}` {
		t.Errorf("a direct message becomes %s %s", intent, payload.JSON())
	}
	if r, e := message.ReadResult(parse(t, `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}`)); e != nil || !r.IsWaiting() {
		t.Errorf("a task that works: %+v, %v", r, e)
	}
}

func card(t *testing.T, key *signing.PrivateKey) wire.Card {
	t.Helper()
	c, err := wire.ParseCard(wire.Obj(
		wire.TextField("agentmesh", wire.Version), wire.TextField("agent_id", string(key.Public().AgentID())), wire.TextField("name", "Ann"),
		wire.TextField("endpoint", "https://ann.example/agentmesh"), wire.TextField("public_key", key.PublicText()),
		wire.Field("capabilities", wire.Texts([]string{"scheduling"})), wire.Field("intents", wire.Texts([]string{"mesh.schedule"})),
	), wire.CardRules{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCard checks A2A-2: every required member has a value, and arrays have an element.
func TestCard(t *testing.T) {
	key := signing.NewEd25519FromSeed(make([]byte, 32))
	c := card(t, key)
	for _, skills := range [][]string{{"scheduling"}, nil} {
		c.Capabilities = skills
		made := message.NewCard(message.CardInfo{Card: c, URL: "https://ann.example/a2a/v1", Directory: "https://dir.example/v1", Version: "1.2", NeedsToken: true, Streaming: true, Push: true})
		tree, err := message.Tree(made)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"name", "description", "version"} {
			if tree.GetStr(key) == "" {
				t.Errorf("the card has no %s: %s", key, tree.JSON())
			}
		}
		for _, key := range []string{"supportedInterfaces", "defaultInputModes", "defaultOutputModes", "skills"} {
			if list, _ := tree.Get(key); list.Kind() != wire.Array || list.Len() == 0 {
				t.Errorf("the card has no %s: %s", key, tree.JSON())
			}
		}
		skill := made.Skills[0]
		if skill.ID == "" || skill.Name == "" || skill.Description == "" || len(skill.Tags) == 0 {
			t.Errorf("the skill is %+v", skill)
		}
		ext := made.Capabilities.Extensions[0]
		if ext.URI != message.Extension || ext.Required || ext.Params["agent_id"] != string(c.ID) || ext.Params["directory"] != "https://dir.example/v1" {
			t.Errorf("the extension is %+v", ext)
		}
		face, ok := message.FindInterface(tree)
		if !ok || face.Binding != message.JSONRPC || face.URL != "https://ann.example/a2a/v1" {
			t.Errorf("the interface is %+v", face)
		}
	}
	for text, want := range map[string]message.Binding{
		`{"supportedInterfaces":[{"url":"https://x/","protocolBinding":"HTTP+JSON","protocolVersion":"1.0"},{"url":"https://y/","protocolBinding":"JSONRPC","protocolVersion":"1.0.1"}]}`: message.JSONRPC,
		`{"supportedInterfaces":[{"url":"https://x/","protocolBinding":"HTTP+JSON","protocolVersion":"1.0"},{"url":"https://y/","protocolBinding":"JSONRPC","protocolVersion":"0.3"}]}`:   message.HTTPJSON,
		`{"supportedInterfaces":[{"url":"https://x/","protocolBinding":"GRPC","protocolVersion":"1.0"}]}`:                                                                                 "",
		`{"supportedInterfaces":{}}`: "",
	} {
		if face, ok := message.FindInterface(parse(t, text)); ok != (want != "") || face.Binding != want {
			t.Errorf("%s: %+v", text, face)
		}
	}
}

// TestSignature checks A2A-14 and A2A-D5: our signature on a card, and what does not verify.
func TestSignature(t *testing.T) {
	key := signing.NewEd25519FromSeed(make([]byte, 32))
	tree, err := message.Tree(message.NewCard(message.CardInfo{Card: card(t, key), URL: "https://ann.example/a2a/v1", Version: "1"}))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := message.SignCard(tree, key, "https://ann.example"+message.PathKeys)
	if err != nil {
		t.Fatal(err)
	}
	list := message.SignaturesOf(signed)
	if len(list) != 1 || list[0].Alg != "EdDSA" || list[0].KeyID != key.Public().Fingerprint() || list[0].KeySet != "https://ann.example/.well-known/jwks.json" {
		t.Fatalf("the signatures are %+v", list)
	}
	keys := message.KeySet(key.Public())
	if thumb, err := list[0].Verify(signed, keys); err != nil || thumb == "" {
		t.Errorf("our own signature: %v", err)
	}
	if message.Digest(signed) != message.Digest(tree) || message.Digest(signed) == message.Digest(tree.With("name", wire.Text("Eve"))) {
		t.Error("the digest does not identify the card")
	}
	price, err := message.ReadCard([]byte(`{"amount":9007199254740993.0}`))
	if err != nil {
		t.Fatal(err)
	}
	inexact, err := message.SignCard(tree.With("price", price), key, "https://ann.example"+message.PathKeys)
	if err != nil {
		t.Fatal(err)
	}
	other := signing.NewEd25519FromSeed(bytes.Repeat([]byte{1}, 32))
	for name, try := range map[string]func() (string, error){
		"a changed card":  func() (string, error) { return list[0].Verify(signed.With("name", wire.Text("Eve")), keys) },
		"an added member": func() (string, error) { return list[0].Verify(signed.With("iconUrl", wire.Text("https://x/")), keys) },
		"no such key":     func() (string, error) { return list[0].Verify(signed, message.KeySet(other.Public())) },
		"another key with the id": func() (string, error) {
			text := strings.Replace(string(message.KeySet(other.Public()).JSON()), other.Public().Fingerprint(), key.Public().Fingerprint(), 1)
			return list[0].Verify(signed, parse(t, text))
		},
		"no key set":     func() (string, error) { return list[0].Verify(signed, wire.Obj()) },
		"2^53+1 as 2^53": func() (string, error) { return message.SignaturesOf(inexact)[0].Verify(inexact, keys) },
	} {
		if _, err := try(); err == nil {
			t.Errorf("%s verified", name)
		}
	}
	age, err := signing.ParsePrivateKey([]byte(ageIdentity(t)))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := message.SignCard(tree, age, "https://x/"); err != nil || len(message.SignaturesOf(got)) != 0 {
		t.Errorf("a card signed with an age key: %v, %s", err, got.JSON())
	}
}

func ageIdentity(t *testing.T) string {
	t.Helper()
	identity, _, err := signing.GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// TestSignedByJS verifies cards that @a2a-js/sdk 1.3.0 signed, by EdDSA and ES256, also with members that have default
// values.
func TestSignedByJS(t *testing.T) {
	data, err := os.ReadFile("testdata/signed-by-js.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Alg               string
		Card, Loose, Keys wire.Value
	}
	if err := json.Unmarshal(data, &list); err != nil || len(list) != 2 {
		t.Fatal(err)
	}
	for _, c := range list {
		for name, card := range map[string]wire.Value{"as signed": c.Card, "with default values": c.Loose} {
			sig := message.SignaturesOf(card)
			if len(sig) != 1 || sig[0].Alg != c.Alg {
				t.Fatalf("%s: %+v", c.Alg, sig)
			}
			if _, err := sig[0].Verify(card, c.Keys); err != nil {
				t.Errorf("%s %s: %v", c.Alg, name, err)
			}
			if _, err := sig[0].Verify(card.With("name", wire.Text("Eve")), c.Keys); err == nil {
				t.Errorf("%s %s: a changed card verified", c.Alg, name)
			}
		}
	}
}

// FuzzRead checks that no request panics, and that what is accepted becomes a message of bounded size.
func FuzzRead(f *testing.F) {
	f.Add(rpc("SendMessage", hello), "/message:send", "1.0")
	f.Add(rpc("GetTask", `{"id":"t","historyLength":0}`), "/tasks/t:cancel", "")
	f.Add([]byte(`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"raw":"aGk="},{"data":null}]}}`), "/x/tasks/t/pushNotificationConfigs/c", "0.3")
	f.Fuzz(func(t *testing.T, body []byte, path, version string) {
		calls := []message.Call{}
		if c, e := message.ReadRPC(body, version); e == nil {
			calls = append(calls, c)
		} else if _, answer := c.Refuse(e); !json.Valid(answer) {
			t.Errorf("the refusal is %s", answer)
		}
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if c, e := message.ReadREST(method, path, url.Values{"historyLength": {version}}, body, version); e == nil {
				calls = append(calls, c)
			}
		}
		for _, c := range calls {
			m, e := message.ReadMessage(c.Params)
			if e != nil {
				continue
			}
			intent, payload := m.Payload()
			if !intent.Valid() || payload.Kind() != wire.Object || len(payload.JSON()) > 8*message.MaxBody {
				t.Errorf("%s became %s with %d bytes", body, intent, len(payload.JSON()))
			}
		}
		if v, err := wire.Parse(body); err == nil {
			message.ReadReply(wire.Deliver, v, "id", true)
			if r, e := message.ReadResult(v); e == nil {
				r.Payload(wire.Deliver)
			}
			for _, s := range message.SignaturesOf(v) {
				_, _ = s.Verify(v, v)
			}
		}
	})
}
