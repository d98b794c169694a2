package hook_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

func parse(t *testing.T, text string) wire.Value {
	t.Helper()
	v, err := wire.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestResultRoundTrip: all kinds of parts survive a payload.
func TestResultRoundTrip(t *testing.T) {
	data := parse(t, `{"rows":[1,2]}`)
	want := hook.Result{
		Task: &hook.Task{State: hook.TaskInputRequired, Text: "which one?"},
		Artifacts: []hook.Artifact{
			{ID: "a", Name: "n", Description: "d", Append: true, Last: true, Parts: []hook.Part{
				{Text: new("hello")}, {Text: new("")}, {Raw: []byte{0, 255}, MediaType: "image/png", Filename: "x.png"}, {Raw: []byte{}},
			}},
			{Parts: []hook.Part{{URL: "https://example.com/x"}, {Data: &data, MediaType: "application/json"}}},
		},
	}
	payload := want.AddTo(parse(t, `{"action":"x","task":"old"}`))
	got, err := hook.ReadResult(payload)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b wire.Value) bool { return string(a.JSON()) == string(b.JSON()) })); diff != "" {
		t.Errorf("result changed (-want +got):\n%s", diff)
	}
	if payload.GetStr("action") != "x" {
		t.Errorf("payload = %s", payload.JSON())
	}
	if got, err := hook.ReadResult(parse(t, `{"action":"x"}`)); err != nil || got.Task != nil || got.Artifacts != nil {
		t.Errorf("ReadResult without a result = %+v, %v", got, err)
	}
}

// TestBadResults: members that are not a result, or larger than the bounds, are an error.
func TestBadResults(t *testing.T) {
	part := func(s string) string { return `{"artifacts":[{"parts":[` + s + `]}]}` }
	many := func(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	for name, text := range map[string]string{
		"task is a text":       `{"task":"working"}`,
		"no state":             `{"task":{"text":"x"}}`,
		"unknown state":        `{"task":{"state":"done"}}`,
		"state is a number":    `{"task":{"state":1}}`,
		"long text":            `{"task":{"state":"working","text":"` + strings.Repeat("x", 16<<10+1) + `"}}`,
		"artifacts object":     `{"artifacts":{}}`,
		"artifact is a text":   `{"artifacts":["x"]}`,
		"no parts":             `{"artifacts":[{"name":"x"}]}`,
		"empty parts":          `{"artifacts":[{"parts":[]}]}`,
		"many artifacts":       `{"artifacts":[` + many(`{"parts":[{"text":""}]}`, 65) + `]}`,
		"many parts":           part(many(`{"text":""}`, 257)),
		"long name":            `{"artifacts":[{"name":"` + strings.Repeat("x", 257) + `","parts":[{"text":""}]}]}`,
		"append without id":    `{"artifacts":[{"append":true,"parts":[{"text":""}]}]}`,
		"append is a text":     `{"artifacts":[{"id":"a","append":"yes","parts":[{"text":""}]}]}`,
		"part is a text":       part(`"x"`),
		"two kinds":            part(`{"text":"x","url":"https://example.com"}`),
		"no kind":              part(`{"media_type":"text/plain"}`),
		"text is a number":     part(`{"text":1}`),
		"raw is not base64":    part(`{"raw":"***"}`),
		"url without a host":   part(`{"url":"/etc/passwd"}`),
		"script":               part(`{"url":"javascript://example.com/%0aalert(1)"}`),
		"local file":           part(`{"url":"file://host/etc/passwd"}`),
		"filename with folder": part(`{"text":"","filename":"../x"}`),
		"filename is a folder": part(`{"text":"","filename":".."}`),
		"deep data":            part(`{"data":` + strings.Repeat("[", 17) + strings.Repeat("]", 17) + `}`),
	} {
		if got, err := hook.ReadResult(parse(t, text)); err == nil || got.Task != nil || got.Artifacts != nil {
			t.Errorf("%s: ReadResult = %+v, %v, want an error alone", name, got, err)
		}
	}
}

// streamTests are outputs of hooks with more than one member or object. The payload, if not empty, is that of the
// answer to a mesh.deliver message.
var streamTests = []struct {
	name, says string
	payload    string
	hold       string
	async      bool
	progress   int
	fault      hook.Fault
}{
	{name: "task", says: `{"task":{"state":"completed","text":"done"}}`,
		payload: `{"action":"deliver","message":{"body":"done"},"task":{"state":"completed","text":"done"}}`},
	{name: "task without text", says: `{"task":{"state":"input_required"}}`,
		payload: `{"action":"deliver","message":{"body":"input required"},"task":{"state":"input_required"}}`},
	{name: "rejected", says: `{"task":{"state":"rejected","text":"no"}}`,
		payload: `{"action":"deliver","message":{"body":"no"},"task":{"state":"rejected","text":"no"}}`},
	{name: "artifact", says: `{"artifacts":[{"parts":[{"text":"one"},{"url":"https://example.com/"}]}]}`,
		payload: `{"action":"deliver","artifacts":[{"parts":[{"text":"one"},{"url":"https://example.com/"}]}],"message":{"body":"one"}}`, progress: 1},
	{name: "file alone", says: `{"artifacts":[{"parts":[{"raw":"AA=="}]}]}`,
		payload: `{"action":"deliver","artifacts":[{"parts":[{"raw":"AA=="}]}],"message":{"body":"completed, 1 artifact"}}`, progress: 1},
	{name: "payload and task", says: `{"payload":{"action":"x"},"task":{"state":"failed"},"artifacts":[]}`,
		payload: `{"action":"x","task":{"state":"failed"}}`},
	{name: "later", says: `{"task":{"state":"working","text":"tomorrow"}}`, async: true, progress: 1},
	{name: "object over lines", says: "{\n \"payload\": {\n  \"action\": \"x\"\n }\n}\n", payload: `{"action":"x"}`},
	{name: "one line", says: `{"payload":{"action":"x"}}` + "\n\n", payload: `{"action":"x"}`},
	{name: "stream", says: "\n" + `{"task":{"state":"working"}}` + "\n" + `{}` + "\r\n" +
		`{"artifacts":[{"id":"a","parts":[{"text":"he"}]}]}` + "\n" + `{"artifacts":[{"id":"a","append":true,"last":true,"parts":[{"text":"llo"},{"raw":""}]}]}` + "\n" +
		`{"task":{"state":"completed"}}`,
		payload:  `{"action":"deliver","artifacts":[{"id":"a","parts":[{"text":"hello"},{"raw":""}]}],"message":{"body":"hello"},"task":{"state":"completed"}}`,
		progress: 3},
	{name: "replaced artifact", says: `{"artifacts":[{"id":"a","parts":[{"text":"old"}]}]}` + "\n" + `{"artifacts":[{"id":"a","parts":[{"text":"new"}]}],"payload":{"action":"x"}}`,
		payload: `{"action":"x","artifacts":[{"id":"a","parts":[{"text":"new"}]}]}`, progress: 1},
	{name: "working, then a message", says: `{"task":{"state":"working"}}` + "\n" + `{"payload":{"action":"x"}}`, payload: `{"action":"x"}`, progress: 1},
	{name: "working, then hold", says: `{"task":{"state":"working"}}` + "\n" + `{"hold":{"reason":"why"}}`, hold: "why", progress: 1},
	{name: "working and artifact, then nothing", says: `{"task":{"state":"working"}}` + "\n" + `{"artifacts":[{"parts":[{"text":"x"}]}]}` + "\n",
		payload: `{"action":"deliver","artifacts":[{"parts":[{"text":"x"}]}],"message":{"body":"x"}}`, progress: 2},
	{name: "nothing", says: "{}\n{}\n"},

	{name: "payload while working", says: `{"payload":{"action":"x"},"task":{"state":"working"}}`, fault: hook.Malformed},
	{name: "hold with task", says: `{"hold":{},"task":{"state":"working"}}`, fault: hook.Malformed},
	{name: "after the end", says: `{"payload":{"action":"x"}}` + "\n" + `{"payload":{"action":"y"}}`, fault: hook.Malformed},
	{name: "after a completed task", says: `{"task":{"state":"completed"}}` + "\n{}", fault: hook.Malformed},
	{name: "broken in the middle", says: `{"task":{"state":"working"}}` + "\nSegmentation fault\n" + `{"payload":{"action":"x"}}`, fault: hook.Malformed, progress: 1},
	{name: "cut off", says: `{"task":{"state":"working"}}` + "\n" + `{"payload":{"act`, fault: hook.Malformed, progress: 1},
	{name: "two on a line", says: `{}{}`, fault: hook.Malformed},
	{name: "bad artifact", says: `{"artifacts":[{"parts":[{"url":"file:///etc/passwd"}]}],"payload":{"action":"x"}}`, fault: hook.Malformed},
	{name: "parts that pile up", says: strings.Repeat(`{"artifacts":[{"id":"a","append":true,"parts":[{"raw":""}]}]}`+"\n", 257), fault: hook.Malformed, progress: 256},
	{name: "artifacts that pile up", says: strings.Repeat(`{"artifacts":[{"parts":[{"raw":""}]}]}`+"\n", 65), fault: hook.Malformed, progress: 64},
	{name: "key of digits", says: `{"artifacts":[{"parts":[{"data":{"10":1}}]}]}`, fault: hook.Malformed, progress: 1},
	{name: "does not fit", says: `{"artifacts":[{"parts":[{"text":"` + strings.Repeat("x", 254<<10) + `"}]}]}`, fault: hook.TooLarge, progress: 1},
	{name: "flood", says: strings.Repeat("{}\n", 100<<10), fault: hook.TooLarge},
}

// TestStreams: a program and a webhook may answer with a stream. An error anywhere in it fails the whole answer.
func TestStreams(t *testing.T) {
	var says, mediaType string
	url, c := hookServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		io.WriteString(w, says)
	})
	for _, tc := range streamTests {
		says = tc.says
		for _, via := range []string{"exec", "application/json", "application/x-ndjson; charset=utf-8"} {
			t.Run(tc.name+"/"+via, func(t *testing.T) {
				if mediaType = via; via == "application/x-ndjson; charset=utf-8" && strings.HasPrefix(says, "{\n") {
					t.Skip("an object over several lines is not a stream")
				}
				var h hook.Handler = hook.Webhook{URL: url, Secrets: secrets(t, whsec1), HTTP: c}
				if via == "exec" {
					h = hook.Exec{Argv: []string{"/bin/cat", writeFile(t, says)}}
				}
				var progress []hook.Result
				call := aCall(t)
				call.Progress = func(r hook.Result) { progress = append(progress, r) }
				got, err := h.Handle(t.Context(), call)
				failed, _ := errors.AsType[*hook.Error](err)
				if tc.fault != "" {
					if failed == nil || failed.Fault != tc.fault || got != (hook.Answer{}) {
						t.Fatalf("answer %+v, error %v, want %s", got, err, tc.fault)
					}
				} else if err != nil {
					t.Fatal(err)
				}
				payload := ""
				if got.Payload != nil {
					payload = string(got.Payload.JSON())
				}
				if payload != tc.payload || got.Hold != tc.hold || got.Async != tc.async {
					t.Errorf("answer = %s hold %q async %v, want %s %q %v", payload, got.Hold, got.Async, tc.payload, tc.hold, tc.async)
				}
				if tc.fault != hook.TooLarge && len(progress) != tc.progress {
					t.Errorf("%d reports of progress, want %d: %+v", len(progress), tc.progress, progress)
				}
			})
		}
	}
}

// TestStreamBreaksOff: a stream that loses its connection is an error, although each of its lines is valid, and it is
// not requested again.
func TestStreamBreaksOff(t *testing.T) {
	calls := 0
	url, c := hookServer(t, func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.Header().Set("Content-Type", "application/x-ndjson")
		fmt.Fprintln(w, `{"artifacts":[{"parts":[{"text":"half"}]}]}`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	got, err := hook.Webhook{URL: url, Secrets: secrets(t, whsec1), HTTP: c}.Handle(t.Context(), aCall(t))
	if failed, _ := errors.AsType[*hook.Error](err); failed == nil || failed.Fault != hook.Crashed || got.Payload != nil || calls != 1 {
		t.Errorf("Handle = %+v, %v after %d calls; want one call that failed", got, err, calls)
	}
}

// TestProgressComesAtOnce: a report reaches the listener while the hook still works.
func TestProgressComesAtOnce(t *testing.T) {
	reported := make(chan struct{})
	url, c := hookServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		fmt.Fprintln(w, `{"task":{"state":"working","text":"reading"}}`)
		w.(http.Flusher).Flush()
		<-reported
		fmt.Fprintln(w, `{"payload":{"action":"x"}}`)
	})
	var states []hook.TaskState
	call := aCall(t)
	call.Progress = func(r hook.Result) {
		states = append(states, r.Task.State)
		close(reported)
	}
	got, err := hook.Webhook{URL: url, Secrets: secrets(t, whsec1), HTTP: c}.Handle(t.Context(), call)
	if err != nil || got.Payload == nil || !slices.Equal(states, []hook.TaskState{hook.TaskWorking}) {
		t.Errorf("Handle = %+v, %v, progress %v", got, err, states)
	}
}

// TestFileSurvives: the bytes of a file arrive as the hook wrote them.
func TestFileSurvives(t *testing.T) {
	raw := []byte("\x00\x01PNG\xff")
	got, err := execHook(`{"artifacts":[{"id":"f","parts":[{"raw":"`+base64.StdEncoding.EncodeToString(raw)+`","filename":"a.png"}]}]}`).Handle(t.Context(), aCall(t))
	if err != nil {
		t.Fatal(err)
	}
	r, err := hook.ReadResult(*got.Payload)
	if err != nil || len(r.Artifacts) != 1 || string(r.Artifacts[0].Parts[0].Raw) != string(raw) || r.Artifacts[0].Parts[0].Filename != "a.png" {
		t.Errorf("result %+v, %v", r, err)
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "says")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
