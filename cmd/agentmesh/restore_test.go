//go:build slow

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// agentAt runs `agentmesh check` on a data directory and returns the agent id on its card.
func agentAt(t *testing.T, dir string) string {
	t.Helper()
	if out, err := agentmeshAt(dir, "check").CombinedOutput(); err != nil {
		t.Fatalf("check: %v\n%s", err, out)
	}
	card, err := datadir.Dir(dir).Card()
	if err != nil {
		t.Fatal(err)
	}
	return card.GetStr("agent_id")
}

func agentmeshAt(dir string, args ...string) *exec.Cmd {
	return exec.Command(agentmeshBinary(os.Environ()), append([]string{"--data", dir}, args...)...)
}

func mustRun(t *testing.T, dir string, args ...string) {
	t.Helper()
	if out, err := agentmeshAt(dir, args...).CombinedOutput(); err != nil {
		t.Fatalf("agentmesh %v: %v\n%s", args, err, out)
	}
}

// TestRestoreKilled: after a kill at any moment, the directory is empty or has one complete agent, and the next restore
// into an empty directory works.
func TestRestoreKilled(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGKILL on Windows")
	}
	t.Parallel()
	archived, archive := filepath.Join(t.TempDir(), "archived"), filepath.Join(t.TempDir(), "archive.zip")
	mustRun(t, archived, "init")
	for i := range 40 { // files to move
		if err := os.WriteFile(filepath.Join(archived, "hook"+strings.Repeat("x", i)), make([]byte, 100<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustRun(t, archived, "backup", archive)
	want := agentAt(t, archived)
	began := time.Now()
	mustRun(t, filepath.Join(t.TempDir(), "timed"), "restore", archive)
	took := time.Since(began)

	const rounds = 12
	complete := 0
	for i := range rounds {
		dir := filepath.Join(t.TempDir(), "data")
		cmd := agentmeshAt(dir, "restore", archive)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(took * time.Duration(i) / (rounds - 2))
		cmd.Process.Kill()
		cmd.Wait()
		if out, err := agentmeshAt(dir, "check").CombinedOutput(); err != nil { // nothing was in place yet
			if !strings.Contains(string(out), "there is no agent in") {
				t.Fatalf("round %d: %v\n%s", i, err, out)
			}
			mustRun(t, dir, "restore", archive)
		} else {
			complete++
		}
		if got := agentAt(t, dir); got != want {
			t.Fatalf("round %d: the agent is %q, want %s", i, got, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "hook")); err != nil {
			t.Fatalf("round %d: the agent of the archive without its files: %v", i, err)
		}
		left, err := filepath.Glob(filepath.Join(dir, ".agentmesh-*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	t.Logf("killed %d restores, %d of them were complete", rounds, complete)
}
