//go:build slow

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// class is a folder with the data directories of people, who run programs in processes of their own.
type class struct {
	t       *testing.T
	dir     string
	env     []string
	address string // of the directory
}

// newClass starts a directory that takes members with an invitation. Its data directory is mesh.
func newClass(t *testing.T, settings ...string) *class {
	t.Helper()
	c := &class{
		t: t, dir: t.TempDir(), address: freeAddress(t),
		env: slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") }),
	}
	c.serve("mesh", append([]string{
		"--roles", "directory", "--listen", c.address, "--public-url", "http://" + c.address,
		"--set", "network.allow_private=127.0.0.0/8", "--set", "registration.mode=invite",
	}, settings...)...)
	return c
}

// run runs a command with the data directory of a person and returns its output.
func (c *class) run(data string, line ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, agentmeshBinary(c.env), append([]string{"--data", data}, line...)...)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.Output()
	if err != nil {
		var notes []byte
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			notes = failed.Stderr
		}
		c.t.Fatalf("%s: %v: %v\n%s%s", data, line, err, out, notes)
	}
	return string(out)
}

// serve starts a process for a data directory. It ends with the test, or before with stop.
func (c *class) serve(data string, flags ...string) (stop func()) {
	c.t.Helper()
	s, err := startServe(filepath.Join(c.dir, data), flags, c.env)
	if err != nil {
		c.t.Fatal(err)
	}
	stop = func() {
		_ = s.Process.Kill()
		_ = s.Wait() // it was killed
	}
	c.t.Cleanup(stop)
	return stop
}

// invite makes links to join the directory, with one command.
func (c *class) invite(n int) []string {
	c.t.Helper()
	out := c.run("mesh", "token", "create", "--count", fmt.Sprint(n), "--label", "student")
	links := regexp.MustCompile(`(?m)^http://`+regexp.QuoteMeta(c.address)+`/join#\S+$`).FindAllString(out, -1)
	if len(links) != n {
		c.t.Fatalf("token create made %d links, want %d:\n%s", len(links), n, out)
	}
	return links
}

// TestClassJoins: the operator makes forty links with one command, and forty members join with them, each in a process
// of its own and with the line of the page at /join. A class does that in less than ten minutes.
func TestClassJoins(t *testing.T) {
	const members, most = 40, 10 * time.Minute
	c := newClass(t, "--set", "registration.per_hour=100")
	begin := time.Now()
	for i, link := range c.invite(members) {
		name := fmt.Sprintf("member-%02d", i)
		c.run(name, "quickstart", "agent", "--yes", "--name", name, "--join", link)
		stop := c.serve(name)
		waitFor(t, name+" to be registered", func() bool {
			return strings.Contains(c.run(name, "status"), c.address+"/v1: registered")
		})
		if i >= 5 { // five stay; more processes at once would only slow the machine down
			stop()
		}
	}
	took := time.Since(begin)
	t.Logf("%d members joined in %v", members, took.Round(time.Second))
	if list := c.run("mesh", "cards", "list"); strings.Count(list, "member-") != members || took > most {
		t.Errorf("%d of %d members are listed after %v:\n%s", strings.Count(list, "member-"), members, took, list)
	}
}
