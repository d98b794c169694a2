//go:build slow

package apitest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// TestLinters runs Redocly with its rules "recommended", and Spectral with its rules for OpenAPI. The environment
// variables name the programs, which come from the packages @redocly/cli and @stoplight/spectral-cli.
func TestLinters(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string][]byte{"openapi.yaml": httpapi.OpenAPI(), "rules.yaml": []byte("extends: ['spectral:oas']\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, linter := range []struct {
		env  string
		args []string
	}{
		{"AGENTMESH_REDOCLY", []string{"lint", "--extends", "recommended", "openapi.yaml"}},
		{"AGENTMESH_SPECTRAL", []string{"lint", "--ruleset", "rules.yaml", "--fail-severity", "error", "openapi.yaml"}},
	} {
		t.Run(linter.env, func(t *testing.T) {
			program := os.Getenv(linter.env)
			if program == "" {
				t.Skip(linter.env + " names no program")
			}
			cmd := exec.CommandContext(t.Context(), program, linter.args...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
