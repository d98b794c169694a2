//go:build slow

package main

import (
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// TestDiskFull: on a full disk, backup, restore and compact say so and leave no files behind.
func TestDiskFull(t *testing.T) {
	if err := exec.Command("unshare", "-rm", "true").Run(); err != nil {
		t.Skipf("cannot mount file systems: %v", err)
	}
	data, archive := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "archive.zip")
	mustRun(t, data, "init")
	if err := os.WriteFile(filepath.Join(data, "large"), randomBytes(3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, data, "backup", archive)
	small := t.TempDir()
	const script = `mount -t tmpfs -o size=1m none "$0" || exit 99; "$@"; code=$?; find "$0" -mindepth 1; exit $code`
	for name, args := range map[string][]string{
		"backup":           {"--data", data, "backup", filepath.Join(small, "archive.zip")},
		"encrypted backup": {"--data", data, "backup", "--recipient", "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj", filepath.Join(small, "archive.age")},
		"restore":          {"--data", filepath.Join(small, "data"), "restore", archive},
	} {
		cmd := exec.Command("unshare", append([]string{"-rm", "sh", "-c", script, small, agentmeshBinary(os.Environ())}, args...)...)
		var errOut strings.Builder
		cmd.Stderr = &errOut
		left, err := cmd.Output()
		ended, _ := errors.AsType[*exec.ExitError](err)
		if ended == nil || ended.ExitCode() != exit.Unavailable || !strings.Contains(errOut.String(), "no space left on device; make room") {
			t.Errorf("%s: %v\n%s", name, err, errOut.String())
		}
		if len(left) > 0 {
			t.Errorf("%s left behind %s", name, left)
		}
	}
	if err := os.Remove(filepath.Join(data, "large")); err != nil {
		t.Fatal(err)
	}
	const compact = `mount -t tmpfs -o size=1m none "$0" && cp -pr "$2" "$0/data" || exit 99
		head -c 2000000 /dev/zero >"$0/filler"; "$1" --data "$0/data" compact; code=$?; rm "$0/filler"; "$1" --data "$0/data" check && exit $code`
	out, err := exec.Command("unshare", "-rm", "sh", "-c", compact, small, agentmeshBinary(os.Environ()), data).CombinedOutput()
	ended, _ := errors.AsType[*exec.ExitError](err)
	if ended == nil || ended.ExitCode() != exit.Unavailable || !strings.Contains(string(out), "no space left on device; make room") {
		t.Errorf("compact: %v\n%s", err, out)
	}
}

// TestFullOutput: a command fails if its result cannot be written whole: a log cut at a line end looks complete.
func TestFullOutput(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	mustRun(t, data, "init")
	mustRun(t, data, "send", "echo:self/echo", "hello", "--approve")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{
		{"backup", "-"}, {"audit", "--json"}, {"audit"}, {"status"}, {"status", "--json"}, {"inbox", "--json"}, {"completion", "bash"},
		{"conversations", "export", "conv"}, {"message", "canonical", filepath.Join(data, "card.json")},
	} {
		cmd := agentmeshAt(data, args...)
		cmd.Stdout = full
		err := cmd.Run()
		if ended, _ := errors.AsType[*exec.ExitError](err); ended == nil || ended.ExitCode() != exit.Unavailable {
			t.Errorf("%s: %v, want the exit code %d", args, err, exit.Unavailable)
		}
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}
