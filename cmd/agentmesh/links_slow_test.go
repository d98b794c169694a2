//go:build slow

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestLinksOneByOne adds and removes a link of each kind, adds links that are refused, and lets each bridge begin and
// stop serving others, while serve runs. Nobody else notices: an agent on our relay keeps its connection until the relay
// itself stops, and an observer of our MEW space sees our participant neither leave nor join.
func TestLinksOneByOne(t *testing.T) {
	t.Parallel()
	const token = "a-token-that-is-long-enough-to-be-one"
	dir := filepath.Join(t.TempDir(), "data")
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	start := func(dir string, config string) *serveProcess {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"agentmesh.yaml": config, "watch.token": token} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := startServe(dir, []string{"--config", filepath.Join(dir, "agentmesh.yaml"), "--set=log.level=info"}, env)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			s.Process.Kill()
			s.Wait()
			if t.Failed() {
				t.Logf("%s:\n%s", dir, s.log)
			}
		})
		return s
	}
	const space = "agentrelay:\n  serve: \"on\"\n  registration: open\nmew:\n  spaces:\n    - id: lab\n      participants: [{name: watch, token_file: watch.token, capabilities: [chat, participant/*]}]\n"
	here := start(dir, space)
	away := start(filepath.Join(t.TempDir(), "away"), "mess: {serve: \"on\"}\n"+space)
	run := func(args ...string) (string, error) {
		cmd := exec.Command(agentmeshBinary(env), append([]string{"--data", dir, "--config", filepath.Join(dir, "agentmesh.yaml")}, args...)...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}

	base := "ws" + strings.TrimPrefix(strings.TrimSuffix(here.info.URL, "/"), "http")
	dial := func(url, token string) *websocket.Conn {
		t.Helper()
		conn, err := websocket.Dial(t.Context(), mewtest.PlainDial, url, websocket.Options{Header: http.Header{"Authorization": {"Bearer " + token}}})
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	resp, err := http.Post(strings.TrimSuffix(here.info.URL, "/")+"/register", "application/json", strings.NewReader(`{"agent_id":"alice"}`))
	if err != nil {
		t.Fatal(err)
	}
	var registered struct{ Token string }
	err = json.NewDecoder(resp.Body).Decode(&registered)
	resp.Body.Close()
	if err != nil || registered.Token == "" {
		t.Fatalf("register at the relay: %d, %v", resp.StatusCode, err)
	}
	// watch reads what comes over a connection, until it ends.
	watch := func(conn *websocket.Conn) (ended chan error, heard func() string) {
		ended = make(chan error, 1)
		lines := make(chan string, 1000)
		go func() {
			for {
				_, data, err := conn.Read()
				if err != nil {
					ended <- err
					return
				}
				lines <- string(bytes.Clone(data))
			}
		}()
		return ended, func() string {
			var all strings.Builder
			for len(lines) > 0 {
				all.WriteString(<-lines + "\n")
			}
			return all.String()
		}
	}
	agent := dial(base+"/arc", registered.Token)
	agentEnded, _ := watch(agent)
	observer := dial(base+"/ws?space=lab", token)
	observerEnded, presence := watch(observer)
	waitUntil(t, "the node is in its own space", time.Minute, func() bool {
		out, _ := run("links", "list")
		return strings.Count(out, " up ") == 2 // own and own-lab
	})
	presence()

	awayURL := strings.TrimSuffix(away.info.URL, "/")
	awayBase := "ws" + strings.TrimPrefix(awayURL, "http")
	tokenFile := filepath.Join(dir, "watch.token")
	dead := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }))
	defer dead.Close()
	deadURL := "ws" + strings.TrimPrefix(dead.URL, "http")
	for _, tt := range []struct {
		add  []string
		want string // in the output of a link that is refused; "": the link works
	}{
		{add: []string{"mess", awayURL, "--name", "garden", "--exchange", "home"}},
		{add: []string{"mew", awayBase, "--name", "club", "--space", "lab", "--participant", "watch", "--token-file", tokenFile}},
		{add: []string{"agentrelay", awayBase + "/arc", "--name", "hall", "--agent-id", "visitor"}},
		{add: []string{"a2a", "http://127.0.0.1:1", "--name", "claw"}, want: "does not work yet"},
		{add: []string{"moltspeak", "http://127.0.0.1:1", "--name", "far", "--option", "peer=far@test"}, want: "does not work yet"},
		{add: []string{"moltspeak", "http://127.0.0.1:1", "--name", "no1"}, want: "not added: the link names no peer; add it with --option peer=agent@org"},
		{add: []string{"mew", deadURL, "--name", "no2", "--token-file", tokenFile}, want: "name the space with --space"},
		{add: []string{"agentrelay", deadURL + "/arc", "--name", "no3", "--token-file", tokenFile}, want: "not added: the relay refuses the connection"},
		{add: []string{"mess", dead.URL, "--name", "no5"}, want: "not added: the server does not say which exchange is meant: name it"},
		{add: []string{"agentrelay", awayURL, "--name", "no4"}, want: "not added: agentrelay: link no4: url must be ws:// or wss://"},
	} {
		out, err := run(append([]string{"links", "add"}, tt.add...)...)
		if tt.want == "" && err != nil || !strings.Contains(out, tt.want) {
			t.Errorf("links add %s: %v, want %q\n%s", tt.add, err, tt.want, out)
		}
	}
	waitUntil(t, "the added links are up", 30*time.Second, func() bool {
		out, _ := run("links", "list")
		return strings.Count(out, " up ") == 5
	})
	for range 3 { // the test of a link does not take the place of the running one
		if out, err := run("links", "test", "club"); err != nil {
			t.Errorf("links test: %v\n%s", err, out)
		}
	}
	out, err := run("links", "list")
	if err != nil || strings.Contains(out, "no1") || strings.Contains(out, "no2") || strings.Contains(out, "no3") || strings.Contains(out, "no4") || strings.Contains(out, "no5") {
		t.Errorf("links that were refused are listed: %v\n%s", err, out)
	}
	for _, name := range []string{"garden", "club", "hall", "claw", "far"} {
		if out, err := run("links", "remove", name); err != nil {
			t.Errorf("links remove %s: %v\n%s", name, err, out)
		}
	}
	if out, err := run("links", "list"); err != nil || strings.Count(out, "\n") != 3 {
		t.Errorf("after the removals: %v\n%s", err, out)
	}
	get := func(path string) (status int, body string) {
		t.Helper()
		resp, err := http.Get(strings.TrimSuffix(here.info.URL, "/") + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	toggle := func(state, kind string) {
		t.Helper()
		if out, err := run("bridge", state, kind); err != nil {
			t.Errorf("bridge %s %s: %v\n%s", state, kind, err, out)
		}
		setting := map[string]string{"enable": "on", "disable": "off"}[state]
		if out, _ := run("bridge", "list", "--json"); !strings.Contains(strings.Join(strings.Fields(out), ""), `"kind":"`+kind+`","serve":"`+setting+`"`) {
			t.Errorf("after bridge %s %s:\n%s", state, kind, out)
		}
	}
	listing := "/v1/agents/" + string(here.info.AgentID)
	for _, tt := range []struct{ kind, path, metadata string }{
		{"mess", "/api/v1/exchanges/home/threads", ""},
		{"a2a", "/.well-known/agent-card.json", `"a2a":`},
		{"moltspeak", "/moltspeak/v0.1/stream", `"moltspeak_key":`},
	} {
		for _, state := range []string{"enable", "disable"} {
			toggle(state, tt.kind)
			if status, body := get(tt.path); (status != http.StatusNotFound) != (state == "enable") {
				t.Errorf("%s after bridge %s %s: %d %s", tt.path, state, tt.kind, status, body)
			}
			waitUntil(t, "the directory knows that "+tt.kind+" is served", 10*time.Second, func() bool {
				_, card := get(listing)
				return tt.metadata == "" || strings.Contains(card, tt.metadata) == (state == "enable")
			})
			if _, body := get("/health"); strings.Contains(body, `"exchange_id"`) != (tt.kind == "mess" && state == "enable") {
				t.Errorf("/health after bridge %s %s: %s", state, tt.kind, body)
			}
		}
	}
	select {
	case err := <-agentEnded:
		t.Errorf("the agent on our relay lost its connection: %v", err)
	case err := <-observerEnded:
		t.Errorf("the observer of our space lost its connection: %v", err)
	default:
	}
	if heard := presence(); strings.Contains(heard, "system/presence") {
		t.Errorf("our participant left or joined:\n%s", heard)
	}
	// The relay stops alone, and begins again with the agents that it knows.
	toggle("disable", "agentrelay")
	select {
	case err := <-agentEnded:
		if closed, ok := errors.AsType[*websocket.CloseError](err); !ok || closed.Code != websocket.CodeGoingAway {
			t.Errorf("the relay ended the connection of its agent with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the relay has stopped, and the agent is still connected")
	}
	if status, _ := get("/stats"); status != http.StatusNotFound {
		t.Errorf("/stats without a relay: %d", status)
	}
	if _, body := get("/health"); strings.Contains(body, `"agentrelay"`) {
		t.Errorf("/health without a relay: %s", body)
	}
	if out, err := run("links", "list"); err != nil || strings.Count(out, "\n") != 2 {
		t.Errorf("the node still has a link to the relay that has stopped: %v\n%s", err, out)
	}
	toggle("enable", "agentrelay")
	again, _ := watch(dial(base+"/arc", registered.Token))
	waitUntil(t, "the node is on its relay again", 10*time.Second, func() bool {
		out, _ := run("links", "list")
		return strings.Count(out, " up ") == 2
	})
	select {
	case err := <-again:
		t.Errorf("the agent cannot come back: %v", err)
	case err := <-observerEnded:
		t.Errorf("the observer of our space lost its connection: %v", err)
	default:
	}
	if heard := presence(); strings.Contains(heard, "system/presence") {
		t.Errorf("our participant left or joined:\n%s", heard)
	}
	away.Process.Kill()
	away.Wait() // its log is complete
	if joins := strings.Count(away.log.String(), `"participant":"watch"`); joins > 4 {
		t.Errorf("the participant of the added link joined and left %d times:\n%s", joins/2, away.log)
	}
}
