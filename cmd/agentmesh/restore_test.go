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

// TestRestoreKilled: after a kill at any moment, the directory contains one complete agent, the old one or that of the
// archive, and the next restore works.
func TestRestoreKilled(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGKILL on Windows")
	}
	t.Parallel()
	dir, archived := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "archived")
	archive := filepath.Join(t.TempDir(), "archive.zip")
	mustRun(t, dir, "init")
	mustRun(t, archived, "init")
	for i := range 40 { // files to move
		if err := os.WriteFile(filepath.Join(archived, "hook"+strings.Repeat("x", i)), make([]byte, 100<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustRun(t, archived, "backup", archive)
	before, after := agentAt(t, dir), agentAt(t, archived)
	began := time.Now()
	mustRun(t, filepath.Join(t.TempDir(), "timed"), "restore", archive)
	took := time.Since(began)

	const rounds = 12
	seen := map[string]int{}
	for i := range rounds {
		cmd := agentmeshAt(dir, "restore", "--replace", archive)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(took * time.Duration(i) / (rounds - 2))
		cmd.Process.Kill()
		cmd.Wait()
		got := agentAt(t, dir)
		if got != before && got != after {
			t.Fatalf("round %d: the agent is %q, want %s or %s", i, got, before, after)
		}
		seen[got]++
		if got == after {
			if _, err := os.Stat(filepath.Join(dir, "hook")); err != nil {
				t.Fatalf("round %d: the agent of the archive without its files: %v", i, err)
			}
		}
	}
	if err := os.Mkdir(filepath.Join(dir, datadir.PrefixRestore+"left"), 0o700); err != nil {
		t.Fatal(err)
	}
	mustRun(t, dir, "status")
	if _, err := os.Stat(filepath.Join(dir, datadir.PrefixRestore+"left")); !os.IsNotExist(err) {
		t.Errorf("the next command did not remove the folder of a killed restore: %v", err)
	}
	t.Logf("killed %d restores: %v", rounds, seen)
	mustRun(t, dir, "restore", "--replace", archive)
	if got := agentAt(t, dir); got != after {
		t.Errorf("at the end the agent is %s, want %s", got, after)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".agentmesh-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
