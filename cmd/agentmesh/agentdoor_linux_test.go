//go:build slow

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestAgentOfAnotherUser: a process of another user sends through the agent's door, decides nothing, and cannot open
// the data directory (THREATS row 40).
func TestAgentOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to start a process of another user")
	}
	t.Parallel()
	const nobody = 65534
	home, err := os.MkdirTemp("", "am")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	program, data, socket := filepath.Join(home, "agentmesh"), filepath.Join(home, "data"), filepath.Join(home, "agent.sock")
	binary, err := os.ReadFile(agentmeshBinary(os.Environ()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	mustRun(t, data, "init")
	server, err := startServe(data, []string{"--set=agent_door.socket=" + socket, fmt.Sprintf("--set=agent_door.group=%d", nobody)}, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	chris := meshtest.Card(t, "chris", "http://127.0.0.1:9/agentmesh")
	card := filepath.Join(home, "chris.json")
	if err := os.WriteFile(card, chris.Tree.JSON(), 0o644); err != nil {
		t.Fatal(err)
	}
	mustRun(t, data, "peers", "add", card)
	as := func(args ...string) (string, error) {
		cmd := exec.Command(program, args...)
		cmd.Dir = home
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := as("--agent-socket", socket, "send", string(chris.ID), "hello", "--json"); !strings.Contains(out, `"state": "queued"`) && !strings.Contains(out, `"state":"queued"`) {
		t.Errorf("send: %v %s", err, out)
	}
	if out, err := as("--agent-socket", socket, "status", "--json"); err != nil || !strings.Contains(out, `"agent_id"`) {
		t.Errorf("status: %v %s", err, out)
	}
	for _, args := range [][]string{
		{"approvals", "list"}, {"approvals", "approve", "ask_1"}, {"pause"}, {"keys", "rotate"}, {"peers", "allow", string(chris.ID)},
		{"backup", filepath.Join(home, "x.zip")}, {"audit"},
	} {
		out, err := as(append([]string{"--agent-socket", socket}, args...)...)
		if err == nil || !strings.Contains(out, "ask the owner") && !strings.Contains(out, "permission denied") {
			t.Errorf("%v: %v %s, want a refusal", args, err, out)
		}
	}
	for _, args := range [][]string{{"--data", data, "status"}, {"--data", data, "approvals", "list"}, {"--data", data, "backup", filepath.Join(home, "x.zip")}} {
		if out, err := as(args...); err == nil || !strings.Contains(out, "run the command as the user who owns the file") {
			t.Errorf("%v: %v %s, want no access, and what to do", args, err, out)
		}
	}
	if out, err := as("--data", data, "mcp"); err == nil || !strings.Contains(out, "this user may not open the data directory "+data+"; name the agent's door with --agent-socket") {
		t.Errorf("mcp without --agent-socket: %v %s, want no access, and what to do", err, out)
	}
}
