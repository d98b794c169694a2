//go:build slow

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentmesh/agentmesh/node/meshtest"
)

const nobody = 65534

// openHome makes a folder that other users may read, with a copy of the program.
func openHome(t *testing.T) (home, program string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to start a process of another user")
	}
	t.Parallel()
	home, err := os.MkdirTemp("", "am")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	program = filepath.Join(home, "agentmesh")
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
	return home, program
}

// TestHookOfAnotherUser: a hook with hooks[].user finds a door that it can use, and reaches no other one, whatever it
// does with its environment (THREATS row 48).
func TestHookOfAnotherUser(t *testing.T) {
	home, program := openHome(t)
	data := filepath.Join(home, "data")
	calls := []struct{ command, want string }{
		{"agentmesh status --json", `"agent_id"`},
		{"agentmesh approvals", "ask the owner"},
		{"agentmesh --data DATA approvals approve ask_1", "ask the owner"},
		{"env -i agentmesh --data DATA approvals", "run the command as the user who owns the file"},
		{"env -i HOME=/ XDG_CONFIG_HOME=DATA agentmesh approvals", "run the command as the user who owns the file"},
		{"env -i agentmesh --agent-socket DATA/owner.sock status", "nothing answers"},
		{"ls DATA", "Permission denied"},
	}
	script := "#!/bin/sh\ncat >/dev/null\n{\n"
	for _, c := range calls {
		script += c.command + "; echo END\n"
	}
	script = strings.NewReplacer("agentmesh ", program+" ", "DATA", data).Replace(script) + "} >" + home + "/log 2>&1\necho {}\n"
	if err := errors.Join(os.WriteFile(filepath.Join(home, "act"), []byte(script), 0o700), os.Chmod(filepath.Join(home, "act"), 0o755),
		os.WriteFile(filepath.Join(home, "log"), nil, 0o600), os.Chown(filepath.Join(home, "log"), nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	serve := func(data string, args ...string) *serveProcess {
		server, err := startServe(data, args, append(os.Environ(), "TMPDIR="+home))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			server.Process.Kill()
			server.Wait()
		})
		return server
	}
	sarah := serve(data, "--set=access.mode=open", fmt.Sprintf("--set=hooks=[{intent: mesh.message, exec: [%s/act], user: %d}]", home, nobody))
	if err := sarah.awaitListing(); err != nil {
		t.Fatal(err)
	}
	chris := filepath.Join(home, "chris")
	serve(chris, "--directory="+sarah.info.Directory)
	mustRun(t, chris, "send", string(sarah.info.AgentID), "hello", "--wait")
	log, err := os.ReadFile(filepath.Join(home, "log"))
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(string(log), "END\n")
	if len(answers) != len(calls)+1 {
		t.Fatalf("the hook wrote %s", log)
	}
	for i, c := range calls {
		if !strings.Contains(answers[i], c.want) {
			t.Errorf("%s: %s, want %s", c.command, answers[i], c.want)
		}
	}
}

// TestAgentOfAnotherUser: a process of another user sends through the agent's door, decides nothing, and cannot open
// the data directory (THREATS row 40).
func TestAgentOfAnotherUser(t *testing.T) {
	home, program := openHome(t)
	data, socket := filepath.Join(home, "data"), filepath.Join(home, "agent.sock")
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
