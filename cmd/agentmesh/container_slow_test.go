//go:build slow

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestContainerBuild runs the build commands of the container file, with another output folder.
func TestContainerBuild(t *testing.T) {
	if testing.Short() || runtime.GOOS == "windows" {
		t.Skip("it compiles everything, in a shell")
	}
	t.Parallel()
	out := t.TempDir()
	ran := 0
	for _, i := range readContainerfile(t)[0] {
		if i.name != "RUN" {
			continue
		}
		ran++
		cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(i.args, "/out/", out+"/"))
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "VERSION=0.1.0-test", "COMMIT=0123456789abcdef", "DATE=2026-11-21T00:00:00Z")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", i.args, err, text)
		}
	}
	if ran != 3 {
		t.Errorf("%d commands were run, want 3", ran)
	}
	version, err := exec.Command(filepath.Join(out, "agentmesh"), "version").Output()
	if err != nil || !strings.HasPrefix(string(version), "agentmesh 0.1.0-test (0123456789ab), ") {
		t.Errorf("version says %q, %v", version, err)
	}
	if info, err := os.Stat(filepath.Join(out, "data")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("data directory: %v, %v", info, err)
	}
}
