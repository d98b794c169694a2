package directory

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The recorded wire of @a2a-js/sdk as a client of the relay, by binding: version 1.3.0, and 0.3.14.
var (
	jsFiles    = map[string]string{"JSONRPC": "testdata/a2ajs/jsonrpc.json", "HTTP+JSON": "testdata/a2ajs/rest.json"}
	oldJSFiles = map[string]string{"JSONRPC": "testdata/a2ajs/jsonrpc03.json", "HTTP+JSON": "testdata/a2ajs/rest03.json"}
)

// jsExchange is a request of the client and the answer to it.
type jsExchange struct {
	Method, Path, Body string
	Header             map[string]string
	Status             int
	Type, Answer       string
}

// newScriptedAgent starts a relay behind which am_alice answers every call, except those that say "forever", which it
// does not take.
func newScriptedAgent(t *testing.T) *httptest.Server {
	w := newCallWorld(t)
	card := `{"name":"Alice","description":"d","version":"1","capabilities":{"streaming":true},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],` +
		`"skills":[{"id":"s","name":"s","description":"d","tags":["t"]}],"supportedInterfaces":[{"url":"` + aliceDoor + `","protocolBinding":"JSONRPC","protocolVersion":"1.0"},` +
		`{"url":"` + aliceDoor + `","protocolBinding":"HTTP+JSON","protocolVersion":"1.0"}]}`
	want(t, w.do("PUT", "/v1/mailbox/am_alice/a2a", card, withBearer(alice)...), 204, "")
	server := httptest.NewServer(w.edge.Handler())
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for open := true; open; {
			list, ids := w.calls()
			for i, c := range list {
				if strings.Contains(string(c.Params.JSON()), "forever") {
					continue
				}
				w.report(c, remoteTask("TASK_STATE_WORKING", "01"))
				time.Sleep(300 * time.Millisecond) // a stream writes its first event
				w.report(c, remoteTask("TASK_STATE_COMPLETED", "02"))
				w.do("POST", "/v1/relay/"+ids[i]+"/ack", "", withBearer(alice)...)
			}
			select {
			case <-stop:
				open = false
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		server.Close()
	})
	return server
}

// play sends the request to a relay and returns the answer.
func (x jsExchange) play(t *testing.T, relay string) (status int, kind, answer string) {
	req, err := http.NewRequestWithContext(t.Context(), x.Method, relay+x.Path, bytes.NewReader([]byte(x.Body)))
	if err != nil {
		t.Error(err)
		return 0, "", ""
	}
	for name, value := range x.Header {
		req.Header.Set(name, value)
	}
	req.Header.Set("Authorization", "Bearer token-of-js")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, "", ""
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(data)
}

var (
	jsTask   = regexp.MustCompile(`[0-9a-f]{32}`)
	jsMoment = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z|-\d{14}\.\d{3}`)
	jsToken  = regexp.MustCompile(`"nextPageToken":"[^"]+"`)
	// jsFirst is the first event of a stream: the task, before or after the agent took it.
	jsFirst = regexp.MustCompile(`data: [^\n]*("task":\{|"kind":"task")[^\n]*"(TASK_STATE_WORKING|working)"[^\n]*`)
	// jsWorking is an event that a stream may show before the result: that the agent works.
	jsWorking = regexp.MustCompile(`data: [^\n]*(artifact|status)-?[uU]pdate[^\n]*\n\n(data: [^\n]*"status-?[uU]pdate"[^\n]*"(TASK_STATE_WORKING|working)"[^\n]*\n\n)`)
)

// TestRecordedJSRelay plays the requests of @a2a-js/sdk as recorded, and compares the answers.
func TestRecordedJSRelay(t *testing.T) {
	for _, file := range slices.Concat(slices.Collect(maps.Values(jsFiles)), slices.Collect(maps.Values(oldJSFiles))) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []jsExchange
		if err := json.Unmarshal(data, &list); err != nil || len(list) < 7 {
			t.Fatalf("%s has %d exchanges, %v", file, len(list), err)
		}
		relay := newScriptedAgent(t)
		ids := map[string]string{} // of tasks now, by the recorded id
		for i, x := range list {
			for old, now := range ids {
				x.Path, x.Body = strings.ReplaceAll(x.Path, old, now), strings.ReplaceAll(x.Body, old, now)
			}
			status, kind, answer := x.play(t, relay.URL)
			if old, now := jsTask.FindString(x.Answer), jsTask.FindString(answer); old != "" && now != "" {
				ids[old] = now
			}
			if got, want := stableJS(answer), stableJS(x.Answer); status != x.Status || kind != x.Type || got != want {
				t.Errorf("%s, exchange %d, %s %s %s:\n%d %s %s\nwant\n%d %s %s", file, i, x.Method, x.Path, x.Body, status, kind, got, x.Status, x.Type, want)
			}
		}
	}
}

// stableJS removes what differs between two runs.
func stableJS(answer string) string {
	answer = jsFirst.ReplaceAllString(jsWorking.ReplaceAllString(answer, ""), "data: the task, at work")
	answer = jsToken.ReplaceAllString(answer, `"nextPageToken":"TOKEN"`)
	return jsMoment.ReplaceAllString(jsTask.ReplaceAllString(answer, "ID"), "TIME")
}
