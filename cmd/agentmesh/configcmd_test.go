package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// TestConfigCheckNamesLines: config check names the file, line and key of each invalid value in the file.
func TestConfigCheckNamesLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	text := "name: x\naccess:\n  mode: nonsense\nlog: {level: loud, format: odd}\nhooks:\n  - intent: mesh.schedule\n    inbox: true\n" +
		"  - exec: [./x]\n    webhook: http://x\nwindow:\n  past: 48h\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	args := []string{"config", "check", "--config", file, "--set", "log.format=odder", "--set", "registration.mode=never"}
	if code := run(t.Context(), args, strings.NewReader(""), &out, &out); code != exit.Config {
		t.Errorf("config check = %d, want %d", code, exit.Config)
	}
	for _, want := range []string{
		file + `:3: access.mode: "nonsense" is not one of open`,
		file + `:4: log.level: "loud"`,
		file + `:8: hooks[1]: needs exactly one of`,
		file + `:8: hooks[1].intent: is missing`,
		file + `:10: window: must be at most 24h`,
		`agentmesh: log.format: "odder"`, // a flag set it
		`agentmesh: registration.mode: "never"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %s:\n%s", want, out.String())
		}
	}
}
