package relay

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestReferenceClient: the reference's command line client works unchanged. The test replays its exchanges frame by
// frame.
func TestReferenceClient(t *testing.T) {
	data, err := os.ReadFile("testdata/reference-cli.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := newTestRelay(t, Config{})
	listener := s.join("listener")
	var alice *agent
	token, steps := "", 0
	var answer wire.Value
	for line := range strings.Lines(string(data)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "register":
			status, body := s.ask("POST", "/register", rest)
			if status != 200 {
				t.Fatalf("register %s: %d %s", rest, status, body)
			}
			answer = read(t, string(body))
			if answer.GetStr("agent_id") == "alice" {
				token = answer.GetStr("token")
			}
		case "connect":
			target := "ws" + strings.TrimPrefix(s.url, "http") + "/arc?token=" + token
			conn, err := websocket.Dial(t.Context(), dialer, target, websocket.Options{})
			if err != nil {
				t.Fatal(err)
			}
			alice, answer = s.listen("alice", conn), wire.Value{}
		case ">":
			alice.send(strings.ReplaceAll(rest, "*token", token))
		case "hears":
			listener.send(rest)
		case "<":
			got := answer
			if got.IsNull() {
				got = alice.next()
			}
			answer = wire.Value{}
			like(t, got, read(t, rest), "$")
		case "heard":
			like(t, listener.next(), read(t, rest), "$")
		default:
			continue
		}
		steps++
	}
	if steps < 15 {
		t.Errorf("%d steps were replayed", steps)
	}
}

// TestReferenceProgram runs the reference's command line client itself, if AGENTMESH_ARC names its folder: cli of
// github.com/fabryx-dao/arc with its node_modules. It is in no package registry, so AGENTMESH_TOOLS does not ask for
// it.
func TestReferenceProgram(t *testing.T) {
	dir := os.Getenv("AGENTMESH_ARC")
	if dir == "" {
		t.Skip("AGENTMESH_ARC does not name the folder of the reference's client")
	}
	s := newTestRelay(t, Config{Extensions: Extensions{History: true}})
	arc := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "node", append([]string{filepath.Join(dir, "src", "index.js")}, append(args, "--relay", "ws"+strings.TrimPrefix(s.url, "http")+"/arc")...)...)
		cmd.Env = append(os.Environ(), "NO_COLOR=1", "FORCE_COLOR=0")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := arc("register", "alice")
	token := regexp.MustCompile(`tok_[0-9a-f]{32}`).FindString(out)
	if err != nil || !strings.Contains(out, "Agent ID: alice") || token == "" {
		t.Fatalf("register: %v\n%s", err, out)
	}
	listener := s.join("listener")
	for _, tt := range []struct {
		args []string
		fail bool
		says string
		hear string // the frame that the listener gets
	}{
		{args: []string{"register", "alice"}, fail: true, says: "agent_id_taken: "},
		{args: []string{"register", "No_Id"}, fail: true, says: "invalid_agent_id: "},
		{args: []string{"register"}, says: "Agent ID: agent-"},
		{args: []string{"ping", "--token", token}, says: "Extensions: history"},
		{args: []string{"ping", "--token", "tok_bad"}, fail: true, says: "401"},
		{args: []string{"subscribe", "listener", "agent-2", "--token", token}, says: "• agent-2"},
		{args: []string{"send", "Hello world", "--type", "thought", "--token", token}, says: "Agent ID: alice",
			hear: `{"id":"*","from":"alice","to":["*"],"payload":"Hello world","type":"thought","ts":"*"}`},
		{args: []string{"send", "null", "--json", "--token", token}, says: "Message sent",
			hear: `{"id":"*","from":"alice","to":["*"],"payload":null,"ts":"*"}`},
		{args: []string{"send", `{"task":"sync","n":[1,2.5,null]}`, "--json", "--type", "data", "--to", "listener,nobody", "--token", token}, says: "Message sent",
			hear: `{"id":"*","from":"alice","to":["listener","nobody"],"payload":{"task":"sync","n":[1,2.5,null]},"type":"data","ts":"*"}`},
	} {
		out, err := arc(tt.args...)
		if (err != nil) != tt.fail || !strings.Contains(out, tt.says) {
			t.Errorf("arc %v: %v, want it to say %q\n%s", tt.args, err, tt.says, out)
		}
		if tt.hear != "" {
			like(t, listener.next(), read(t, tt.hear), "$")
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := exec.CommandContext(ctx, "node", filepath.Join(dir, "src", "index.js"), "listen", "--token", token, "--relay", "ws"+strings.TrimPrefix(s.url, "http")+"/arc")
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "FORCE_COLOR=0")
	shown, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.waitConnected("alice", true)
	listener.send(`{"to":["alice"],"type":"question","ref":"q1","payload":"are you there?"}`)
	lines := bufio.NewScanner(shown)
	for lines.Scan() && !strings.Contains(lines.Text(), "Payload: are you there?") {
	}
	if !strings.Contains(lines.Text(), "Payload: are you there?") {
		t.Errorf("listen ended with %q", lines.Text())
	}
	stop()
	_ = cmd.Wait() // the error says that the process was killed
}

func read(t *testing.T, s string) wire.Value {
	t.Helper()
	v, err := wire.ParseForeign([]byte(s), frame.MaxDepth, frame.MaxValues)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return v
}

// like compares a value with the wanted one, in which "*" stands for anything. An array ["*"] means itself: everybody.
func like(t *testing.T, got, want wire.Value, at string) {
	t.Helper()
	if s, ok := want.Str(); ok && s == "*" && !strings.HasSuffix(at, "]") {
		if got.IsNull() {
			t.Errorf("%s is missing", at)
		}
		return
	}
	if got.Kind() != want.Kind() || got.Len() != want.Len() {
		t.Errorf("%s = %s, want %s", at, got.JSON(), want.JSON())
		return
	}
	switch want.Kind() {
	case wire.Object:
		for _, m := range want.Members() {
			v, ok := got.Get(m.Key)
			if !ok {
				t.Errorf("%s.%s is missing in %s", at, m.Key, got.JSON())
				continue
			}
			like(t, v, m.Value, at+"."+m.Key)
		}
	case wire.Array:
		for i := range want.Len() {
			like(t, got.At(i), want.At(i), at+"[]")
		}
	default:
		if string(got.JSON()) != string(want.JSON()) {
			t.Errorf("%s = %s, want %s", at, got.JSON(), want.JSON())
		}
	}
}
