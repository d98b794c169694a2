//go:build slow

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBridgeWalks plays the walk at the top of each page about another network, with two processes.
func TestBridgeWalks(t *testing.T) {
	for page, want := range map[string]string{
		"agentrelay": "until six", "mess": "content: watered the red roses", "mew": "yes please", "moltspeak": "21 degrees and sunny",
	} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
			w := walk{t: t, dir: t.TempDir(), env: env}
			for _, block := range blocks(t, "docs/bridges/"+page+".md", "<!-- run by TestBridgeWalks -->\n```sh") {
				for line := range strings.Lines(block) {
					w.play(line)
				}
			}
			w.retry(func() bool { return strings.Contains(w.last(), want) })
		})
	}
}

// walk plays the commands of a page.
type walk struct {
	t      *testing.T
	dir    string
	env    []string
	hosted string        // address of the first serve, which is 127.0.0.1:3141 on the page
	last   func() string // runs the last command again and returns its output
}

var (
	walkServe = regexp.MustCompile(`^agentmesh serve --data (\w+) (?:(.*)--listen \S+ )?(.*)$`)
	walkID    = regexp.MustCompile(`\b(ask|in)_…`)
)

// play starts a serve, or runs a command until it succeeds.
func (w *walk) play(line string) {
	w.t.Helper()
	line = strings.TrimSpace(line)
	if w.hosted != "" {
		line = strings.ReplaceAll(line, "127.0.0.1:3141", w.hosted)
	}
	if m := walkServe.FindStringSubmatch(line); m != nil {
		server, err := startServe(filepath.Join(w.dir, m[1]), shellWords(m[2]+m[3]), w.env)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { server.Process.Kill(); server.Wait() })
		if w.hosted == "" {
			w.hosted = server.info.Address
		}
		return
	}
	data := regexp.MustCompile(`--data \w+`).FindString(line)
	if kind := walkID.FindStringSubmatch(line); kind != nil {
		list := map[string]string{"ask": "approvals", "in": "inbox list --state new"}[kind[1]]
		var id string
		w.retry(func() bool {
			out, _ := w.run("agentmesh " + data + " " + list + " --json")
			id = regexp.MustCompile(`\b` + kind[1] + `_\w+`).FindString(out)
			return id != ""
		})
		line = strings.Replace(line, kind[0], id, 1)
	}
	w.retry(func() bool { _, err := w.run(line); return err == nil })
	w.last = func() string { out, _ := w.run(line); return out }
}

// run runs a command in a shell. Exit code 4 is a success: the message waits for the owner of the peer.
func (w *walk) run(line string) (string, error) {
	cmd := exec.CommandContext(w.t.Context(), "sh", "-c", line)
	cmd.Dir, cmd.Env = w.dir, w.env
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() == 4 {
		err = nil
	}
	return string(out), err
}

func (w *walk) retry(done func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("it takes too long")
		}
	}
}

// TestReadmeInstall installs the command as in the README, with a temporary GOPATH.
func TestReadmeInstall(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it links the program")
	}
	modules, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "GOPATH="+t.TempDir(), "GOBIN=", "GOMODCACHE="+strings.TrimSpace(string(modules)),
		"CGO_ENABLED=0") // as a release; with cgo, which the race detector needs, everything would be compiled again
	for _, block := range blocks(t, "README.md", "<!-- run by TestReadmeInstall -->\n```sh") {
		out := runShell(t, "../..", env, block+"\"$(go env GOPATH)/bin/agentmesh\" version\nPATH=\"${PATH##*:}\" agentmesh version\n")
		if strings.Count(out, "agentmesh ") != 2 {
			t.Errorf("what was installed says %q", out)
		}
	}
}
