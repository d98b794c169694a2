package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

const edited = `# my node
name: Old # shown to everybody

owner: # me
  contact: sarah@example.com

# where I am listed
directories:
  - https://one.example/v1
# below: who may write
access:
  mode: open # for now
`

// TestRewrite: new values replace the old ones, and every other line stays with its comments.
func TestRewrite(t *testing.T) {
	for name, tt := range map[string]struct {
		before string
		edits  []Edit
		after  string
	}{
		"in place": {edited, []Edit{{"name", "Sarah's: agent"}, {"owner.name", "Sarah"}, {"directories", []string{"https://one.example/v1", "https://two.example/v1"}}},
			strings.NewReplacer("name: Old #", "name: 'Sarah''s: agent' #", "  contact", "  name: Sarah\n  contact", "  - https://one.example/v1\n", "  - https://one.example/v1\n  - https://two.example/v1\n").Replace(edited)},
		"nothing to change":       {edited, []Edit{{"name", "Old"}, {"directories", []string{"https://one.example/v1"}}, {"description", "A personal agent."}}, edited + "description: A personal agent.\n"},
		"a new file":              {"", []Edit{{"name", "Sarah"}, {"owner.name", "Sarah C."}, {"directories", []string(nil)}}, fileHead + "name: Sarah\nowner:\n  name: Sarah C.\n"},
		"emptied":                 {edited, []Edit{{"directories", []string(nil)}}, strings.Replace(edited, "directories:\n  - https://one.example/v1", "directories: []", 1)},
		"without a last line end": {"name: |\n  Old\n  agent", []Edit{{"name", "New"}}, "name: New\n"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "agentmesh.yaml")
			if tt.before != "" {
				if err := os.WriteFile(file, []byte(tt.before), 0o640); err != nil {
					t.Fatal(err)
				}
			}
			if err := (Source{File: file}).Rewrite(tt.edits, nil); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(file)
			if err != nil || string(got) != tt.after {
				t.Errorf("the file has (%v)\n%s\nwant\n%s", err, got, tt.after)
			}
		})
	}
}

// TestRewriteRefuses: a value that does not fit, a key that a flag sets, and a form that Rewrite does not know leave
// the file as it is.
func TestRewriteRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		before string
		src    Source
		edit   Edit
	}{
		"value":              {edited, Source{}, Edit{"name", ""}},
		"flag":               {edited, Source{Settings: []Setting{{Key: "name", Value: "Flag", From: "--name"}}}, Edit{"name", "New"}},
		"flow":               {"owner: {contact: sarah@example.com}\n", Source{}, Edit{"owner.name", "Sarah"}},
		"two keys on a line": {"a2a: {\n  serve: off, anonymous: true\n}\n", Source{}, Edit{"a2a.serve", "on"}},
		"anchor":             {"owner: &me\n  name: Old\nname: *me\n", Source{}, Edit{"owner.name", "Sarah"}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.src.File = filepath.Join(t.TempDir(), "agentmesh.yaml")
			if err := os.WriteFile(tt.src.File, []byte(tt.before), 0o600); err != nil {
				t.Fatal(err)
			}
			err := tt.src.Rewrite([]Edit{tt.edit}, nil)
			if err == nil {
				t.Fatal("it was written")
			}
			goldentest.Says(t, "", strings.ReplaceAll(err.Error(), tt.src.File, "FILE"))
			if got, err := os.ReadFile(tt.src.File); err != nil || string(got) != tt.before {
				t.Errorf("the file has (%v)\n%s", err, got)
			}
			if entries, err := os.ReadDir(filepath.Dir(tt.src.File)); err != nil || len(entries) != 1 {
				t.Errorf("%v, %v is left", err, entries)
			}
		})
	}
}
