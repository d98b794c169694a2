//go:build slow

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestClassJoins: the operator makes forty links with one command, and forty members join with them, each in a process
// of its own and with the line of the page at /join. A class does that in less than ten minutes.
func TestClassJoins(t *testing.T) {
	const members, most = 40, 10 * time.Minute
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	dir := t.TempDir()
	command := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), agentmeshBinary(env), args...)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	stop := func(s *serveProcess) {
		_ = s.Process.Kill()
		_ = s.Wait() // it was killed
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	mesh, err := startServe(filepath.Join(dir, "mesh"), []string{
		"--roles", "directory", "--listen", address, "--public-url", "http://" + address,
		"--set", "network.allow_private=127.0.0.0/8", "--set", "registration.mode=invite", "--set", "registration.per_hour=100",
	}, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(mesh) })

	begin := time.Now()
	var links []string
	for line := range strings.Lines(command("--data", "mesh", "token", "create", "--count", fmt.Sprint(members), "--label", "student")) {
		if strings.HasPrefix(line, "http://"+address+"/join#") {
			links = append(links, strings.TrimSpace(line))
		}
	}
	if len(links) != members {
		t.Fatalf("token create made %d links, want %d", len(links), members)
	}
	for i, link := range links {
		name := fmt.Sprintf("member-%02d", i)
		command("--data", name, "quickstart", "agent", "--yes", "--name", name, "--join", link)
		server, err := startServe(filepath.Join(dir, name), nil, env)
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, name+" to be registered", func() bool {
			return strings.Contains(command("--data", name, "status"), address+"/v1: registered")
		})
		if i >= 5 { // five stay; more processes at once would only slow the machine down
			stop(server)
		} else {
			t.Cleanup(func() { stop(server) })
		}
	}
	took := time.Since(begin)
	t.Logf("%d members joined in %v", members, took.Round(time.Second))
	if list := command("--data", "mesh", "cards", "list"); strings.Count(list, "member-") != members || took > most {
		t.Errorf("%d of %d members are listed after %v:\n%s", strings.Count(list, "member-"), members, took, list)
	}
}
