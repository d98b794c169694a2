package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
)

// blocks returns the contents of the fenced blocks of a document whose first line is fence.
func blocks(t *testing.T, name, fence string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, block := range strings.Split(string(data), "\n"+fence+"\n")[1:] {
		text, _, closed := strings.Cut(block, "\n```")
		if !closed {
			t.Fatalf("%s: a block is not closed", name)
		}
		list = append(list, text+"\n")
	}
	return list
}

// TestOperations: a script runs every command in docs/operations.md and docs/keys-and-recovery.md.
func TestOperations(t *testing.T) {
	script, err := txtar.ParseFile("testdata/operations.txtar")
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for line := range strings.Lines(string(script.Comment)) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "exec "); ok {
			tested[command] = true
		}
	}
	const fence = "<!-- operations -->\n```sh"
	list := slices.Concat(blocks(t, "docs/operations.md", fence), blocks(t, "docs/keys-and-recovery.md", fence))
	if len(list) < 6 {
		t.Errorf("the documents have %d blocks of commands", len(list))
	}
	for _, block := range list {
		for line := range strings.Lines(block) {
			if command := strings.TrimSpace(line); !tested[command] {
				t.Errorf("no script runs %q", command)
			}
		}
	}
}

// TestDocsConfigurations: config check accepts every configuration in the documents.
func TestDocsConfigurations(t *testing.T) {
	found := 0
	for _, name := range []string{"docs/walkthrough.md", "docs/operations.md", "docs/architecture.md", "docs/agents.md", "docs/run-a-directory.md"} {
		for _, block := range blocks(t, name, "```yaml") {
			found++
			file := filepath.Join(t.TempDir(), "agentmesh.yaml")
			if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(config.Source{File: file, Required: true})
			if err == nil {
				err = c.Check(daemon.LinkKinds())
			}
			if err != nil {
				t.Errorf("%s: %v in\n%s", name, err, block)
			}
		}
	}
	if found < 4 {
		t.Errorf("%d configurations were found: the test sees too little", found)
	}
}

// TestSystemdUnit checks agentmesh.service with systemd-analyze: its syntax, and its exposure from 0 to 10.
func TestSystemdUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("AGENTMESH_TOOLS") == "required" {
			t.Fatal("systemd-analyze is not installed (AGENTMESH_TOOLS=required)")
		}
		t.Skip("systemd-analyze is not installed")
	}
	unit, err := os.ReadFile("../../docs/operations/agentmesh.service")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable() // systemd-analyze requires that the program exists
	if err != nil {
		t.Fatal(err)
	}
	const program = "/usr/bin/agentmesh"
	if !strings.Contains(string(unit), "ExecStart="+program+" serve ") {
		t.Fatal("the unit does not run agentmesh serve")
	}
	file := filepath.Join(t.TempDir(), "agentmesh.service")
	if err := os.WriteFile(file, []byte(strings.Replace(string(unit), program, self, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	const maxExposure = "20" // in tenths
	if out, err := exec.Command(analyze, "security", "--offline=yes", "--no-pager", "--threshold="+maxExposure, file).CombinedOutput(); err != nil {
		if strings.Contains(string(out), "unrecognized option") {
			t.Skip("systemd is older than 250")
		}
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
