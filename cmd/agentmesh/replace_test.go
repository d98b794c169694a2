package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store/bolt"
)

// agentAt is the agent of a data directory, by `agentmesh check` and the card.
func agentAt(t *testing.T, dir string) string {
	t.Helper()
	if out, err := agentmeshAt(dir, "check").CombinedOutput(); err != nil {
		t.Fatalf("check: %v\n%s", err, out)
	}
	card, err := (home{dir}).card()
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

// TestRestoreKilled: whenever a restore is killed, the directory holds one whole agent, the one before or the one of
// the archive, and the next restore works.
func TestRestoreKilled(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGKILL on Windows")
	}
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

	const rounds = 20
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
	if err := os.Mkdir(filepath.Join(dir, prefixRestore+"left"), 0o700); err != nil {
		t.Fatal(err)
	}
	mustRun(t, dir, "status")
	if _, err := os.Stat(filepath.Join(dir, prefixRestore+"left")); !os.IsNotExist(err) {
		t.Errorf("the next command leaves what a killed restore left: %v", err)
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

// TestFinishReplace goes on from every state that a kill leaves after the decision.
func TestFinishReplace(t *testing.T) {
	const id = "20260101-000000.000"
	for name, tt := range map[string]struct {
		old, aside, replace, place, up []string // entries: of before, and of the archive
		keeps                          []string
	}{
		"decided":          {old: []string{"a", "b", "old"}, replace: []string{"a", "b", "c"}, keeps: []string{"a", "b", "old"}},
		"half aside":       {old: []string{"b"}, aside: []string{"a", "old"}, replace: []string{"a", "b", "c"}, keeps: []string{"a", "b", "old"}},
		"all aside":        {aside: []string{"a", "b"}, replace: []string{"a", "b", "c"}, keeps: []string{"a", "b"}},
		"nothing was":      {replace: []string{"a", "b", "c"}},
		"nothing up":       {aside: []string{"a"}, place: []string{"a", "b", "c"}, keeps: []string{"a"}},
		"half up":          {aside: []string{"a"}, up: []string{"a"}, place: []string{"b", "c"}, keeps: []string{"a"}},
		"but the database": {aside: []string{"a"}, up: []string{"a", "b", "c"}, place: []string{}, keeps: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := home{filepath.Join(t.TempDir(), "data")}
			put := func(dir, content string, names []string) {
				for _, n := range names {
					if err := os.MkdirAll(dir, 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(dir, n), []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			put(h.dir, "old", tt.old)
			put(h.path(prefixReplaced+id), "old", tt.aside)
			put(h.path(prefixReplace+id), "new", tt.replace)
			put(h.path(prefixPlace+id), "new", tt.place)
			put(h.dir, "new", tt.up)
			database := prefixPlace
			if tt.replace != nil {
				database = prefixReplace
			}
			if err := os.MkdirAll(h.path(database+id), 0o700); err != nil {
				t.Fatal(err)
			}
			s, err := bolt.Open(t.Context(), filepath.Join(h.path(database+id), fileDatabase), bolt.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := openHome(h.dir); exitCode(err) != exitUnavailable {
				t.Errorf("while another process works on it: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time there is nothing to do
				if _, err := openHome(h.dir); err != nil {
					t.Fatal(err)
				}
			}
			want := []string{"a", "b", "c"}
			entries, err := os.ReadDir(h.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() == fileDatabase || e.Name() == fileDatabase+".index" || e.Name() == prefixReplaced+id && tt.keeps != nil {
					continue
				}
				if len(want) == 0 || e.Name() != want[0] {
					t.Fatalf("the directory holds %v", entries)
				}
				want = want[1:]
				if data, err := os.ReadFile(h.path(e.Name())); err != nil || string(data) != "new" {
					t.Errorf("%s is %q, %v", e.Name(), data, err)
				}
			}
			if _, err := os.Stat(h.path(fileDatabase)); err != nil || len(want) > 0 {
				t.Errorf("missing: %v, %v", want, err)
			}
			for _, n := range tt.keeps {
				if data, err := os.ReadFile(filepath.Join(h.path(prefixReplaced+id), n)); err != nil || string(data) != "old" {
					t.Errorf("kept %s is %q, %v", n, data, err)
				}
			}
		})
	}
}
