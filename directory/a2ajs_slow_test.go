//go:build slow

package directory

import (
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

var updateJS = flag.Bool("update-js", false, "record the wire of @a2a-js/sdk again; needs A2A_JS")

// TestJSRelay lets @a2a-js/sdk call an agent behind the relay: message, task, stream, cancel, and what the relay does
// not offer, in both bindings, with version 1.3.0 and with 0.3.14, which speaks A2A 0.3. A2A_JS and A2A_JS_03 name
// folders in which npm installed the SDK.
func TestJSRelay(t *testing.T) {
	playJSRelay(t, "A2A_JS", "relay.cjs", jsFiles, `{"message":["TASK_STATE_COMPLETED","42"],"get":"TASK_STATE_COMPLETED",`+
		`"stream":["task TASK_STATE_WORKING","artifactUpdate 42","statusUpdate TASK_STATE_COMPLETED"],"cancel":["TASK_STATE_WORKING","TASK_STATE_CANCELED"],`+
		`"missing":"TaskNotFoundError","list":[["TASK_STATE_CANCELED","TASK_STATE_COMPLETED"],3,true]}`)
	playJSRelay(t, "A2A_JS_03", "relay03.cjs", oldJSFiles, `{"card":["0.3.0","JSONRPC",2],"message":["task","completed","42"],"get":"completed",`+
		`"stream":["task working","artifact-update 42","status-update completed final"],"cancel":["working","canceled"],`+
		`"missing":"TaskNotFoundError","push":"PushNotificationNotSupportedError"}`)
}

func playJSRelay(t *testing.T, sdk, script string, files map[string]string, want string) {
	dir := os.Getenv(sdk)
	if dir == "" {
		t.Log(sdk + " names no folder with @a2a-js/sdk; the recorded wire is tested without it")
		return
	}
	for binding, file := range files {
		relay := newScriptedAgent(t)
		var mu sync.Mutex
		var list []jsExchange
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			x := jsExchange{Method: r.Method, Path: r.URL.RequestURI(), Body: string(body), Header: map[string]string{}}
			for _, name := range []string{"Content-Type", "Accept", "A2a-Version"} {
				if v := r.Header.Get(name); v != "" {
					x.Header[name] = v
				}
			}
			x.Status, x.Type, x.Answer = x.play(t, relay.URL)
			mu.Lock()
			list = append(list, x)
			mu.Unlock()
			w.Header().Set("Content-Type", x.Type)
			w.WriteHeader(x.Status)
			_, _ = io.WriteString(w, x.Answer)
		}))
		cmd := exec.CommandContext(t.Context(), "node", "testdata/a2ajs/"+script)
		cmd.Env = append(os.Environ(), sdk+"="+dir, "URL="+proxy.URL+"/a2a/am_alice", "BINDING="+binding)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s, %s: the client saw\n%s\nwant\n%s\n%v", script, binding, got, want, err)
		}
		proxy.Close()
		if data, err := json.MarshalIndent(list, "", " "); err != nil {
			t.Error(err)
		} else if *updateJS {
			if err := os.WriteFile(file, append(data, '\n'), 0o600); err != nil {
				t.Error(err)
			}
		}
	}
}
