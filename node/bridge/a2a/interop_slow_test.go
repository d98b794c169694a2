//go:build slow

package a2a_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

var update = goldentest.Update

// needsJS skips the test unless a variable names a folder whose node_modules have express and @a2a-js/sdk: A2A_JS for
// version 1.3.0, A2A_JS_03 for version 0.3.14.
func needsJS(t *testing.T, name string) {
	t.Helper()
	if os.Getenv(name) == "" {
		t.Skip(name + " names no folder with @a2a-js/sdk; the recorded wire is tested without it")
	}
}

// recorder is a proxy that records what passes.
type recorder struct {
	*httptest.Server
	mu   sync.Mutex
	list []exchange
}

func newRecorder(t *testing.T, target string) *recorder {
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }, FlushInterval: -1}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		x := exchange{Method: req.Method, Path: req.URL.RequestURI(), Body: string(body), Header: map[string]string{}}
		for _, name := range []string{"Content-Type", "Accept", "A2a-Version", "A2a-Extensions"} {
			if v := req.Header.Get(name); v != "" {
				x.Header[name] = v
			}
		}
		copied := &copyWriter{ResponseWriter: w}
		proxy.ServeHTTP(copied, req)
		x.Status, x.Type, x.Answer = copied.status, w.Header().Get("Content-Type"), copied.body.String()
		r.mu.Lock()
		r.list = append(r.list, x)
		r.mu.Unlock()
	}))
	t.Cleanup(r.Close)
	return r
}

type copyWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *copyWriter) WriteHeader(status int) { w.status = status; w.ResponseWriter.WriteHeader(status) }

func (w *copyWriter) Write(p []byte) (int, error) {
	w.body.Write(p)
	return w.ResponseWriter.Write(p)
}

func (w *copyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// save writes what the recorder saw, in the form that does not depend on the run.
func (r *recorder) save(t *testing.T, file string, ports map[string]string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		for from, to := range ports {
			r.list[i].Body = strings.ReplaceAll(r.list[i].Body, from, to)
			r.list[i].Answer = strings.ReplaceAll(r.list[i].Answer, from, to)
		}
		r.list[i].Answer = stable(r.list[i].Answer)
	}
	data, err := json.MarshalIndent(r.list, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
}

const jsSaw = `{"signature":"verified","message":["TASK_STATE_COMPLETED","you said: hello"],"get":["TASK_STATE_COMPLETED",1],` +
	`"stream":["task TASK_STATE_WORKING","artifactUpdate slow answer","statusUpdate TASK_STATE_COMPLETED"],"cancel":["TASK_STATE_WORKING","TASK_STATE_CANCELED"],` +
	`"push":["c1",true,1],"subscribed":"statusUpdate","pushed":["tok","TASK_STATE_COMPLETED"],"list":[2,4,true],"missing":"TaskNotFoundError","extended":true}`

const oldJSSaw = `{"card":["0.3.0","JSONRPC",2,"http"],"message":["task","completed","you said: hello"],"get":["completed",1,"user"],` +
	`"question":["input-required","which one?",true,"completed"],"stream":["task working","artifact-update slow answer","status-update completed final"],` +
	`"cancel":["working","canceled"],"push":["c1",true,1],"subscribed":"status-update","pushed":["tok","task","completed"],"missing":"TaskNotFoundError"}`

// TestJSClient lets @a2a-js/sdk 1.3.0 call the node: card and signature, message, task, stream, cancel, push
// notifications, list, in both bindings.
func TestJSClient(t *testing.T) {
	needsJS(t, "A2A_JS")
	playJSClient(t, "testdata/js/client.cjs", jsSaw, map[string]string{"JSONRPC": "testdata/js/client-jsonrpc.json", "HTTP+JSON": "testdata/js/client-rest.json"})
}

// TestOldJSClient is TestJSClient with @a2a-js/sdk 0.3.14, which speaks A2A 0.3.
func TestOldJSClient(t *testing.T) {
	needsJS(t, "A2A_JS_03")
	playJSClient(t, "testdata/js/client03.cjs", oldJSSaw, map[string]string{"JSONRPC": "testdata/js/client03-jsonrpc.json", "HTTP+JSON": "testdata/js/client03-rest.json"})
}

func playJSClient(t *testing.T, script, saw string, files map[string]string) {
	for binding, file := range files {
		h := serveScript(t)
		proxy := newRecorder(t, h.url)
		cmd := exec.CommandContext(t.Context(), "node", script)
		cmd.Env = append(os.Environ(), "URL="+proxy.URL, "TOKEN="+h.token("js"), "BINDING="+binding)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != saw {
			t.Errorf("%s: the client saw\n%s\nwant\n%s\n%v", binding, got, saw, err)
		}
		if *update {
			proxy.save(t, file, nil)
		}
	}
}

// jsAgent starts the agent of @a2a-js/sdk and returns its URL.
func jsAgent(t *testing.T, script, binding string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", script)
	cmd.Env = append(os.Environ(), "BINDING="+binding)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestJSAgent lets our client write to an agent of @a2a-js/sdk 1.3.0: direct message, task, question and answer,
// cancel, in both bindings.
func TestJSAgent(t *testing.T) {
	needsJS(t, "A2A_JS")
	talkToJS(t, "testdata/js/agent.cjs", map[string]string{"JSONRPC": "testdata/js/agent-jsonrpc.json", "HTTP+JSON": "testdata/js/agent-rest.json"})
}

// TestOldJSAgent is TestJSAgent with @a2a-js/sdk 0.3.14, which speaks A2A 0.3.
func TestOldJSAgent(t *testing.T) {
	needsJS(t, "A2A_JS_03")
	talkToJS(t, "testdata/js/agent03.cjs", map[string]string{"JSONRPC": "testdata/js/agent03-jsonrpc.json", "HTTP+JSON": "testdata/js/agent03-rest.json"})
}

func talkToJS(t *testing.T, script string, files map[string]string) {
	for binding, file := range files {
		real := jsAgent(t, script, binding)
		proxy := newRecorder(t, real)
		front := rewriteCard(t, proxy.URL, real)
		h := serve(t, nil, nil, nil)
		h.talk(front)
		canceled := func(x exchange) bool {
			return strings.Contains(x.Path+x.Body, "ancel") && (strings.Contains(x.Answer, "TASK_STATE_CANCEL") || strings.Contains(x.Answer, `"canceled"`))
		}
		for deadline := time.Now().Add(20 * time.Second); !slices.ContainsFunc(proxy.snapshot(), canceled); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("%s: the task was not canceled: %v", binding, proxy.snapshot())
				break
			}
		}
		if *update {
			proxy.save(t, file, map[string]string{real: "URL"})
		}
	}
}

func (r *recorder) snapshot() []exchange {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// rewriteCard serves an agent behind a proxy, with a card that names the proxy.
func rewriteCard(t *testing.T, proxy, real string) string {
	var srv *httptest.Server
	to, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }}
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/.well-known/") {
			forward.ServeHTTP(w, r)
			return
		}
		resp, err := http.Get(proxy + r.URL.Path)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		data, _ := io.ReadAll(resp.Body)
		w.WriteHeader(resp.StatusCode)
		_, _ = w.Write(bytes.ReplaceAll(data, []byte(real), []byte(srv.URL)))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}
