//go:build slow

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
)

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
