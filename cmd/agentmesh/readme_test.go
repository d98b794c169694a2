package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// placeholder is what stands for an id: in the README as it is shown, in the script as a variable.
var placeholder = regexp.MustCompile(`(am_|ask_|conv_)…|\$[A-Za-z_]+`)

// TestWalkthrough holds the README to the script that plays it: the same files, and no command that the script
// does not run.
func TestWalkthrough(t *testing.T) {
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(data)
	script, err := txtar.ParseFile("testdata/walkthrough.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range script.Files {
		if !strings.Contains(readme, "\n"+string(f.Data)+"```\n") {
			t.Errorf("the README does not show %s as the script has it", f.Name)
		}
	}
	played := map[string]bool{}
	for line := range strings.Lines(string(script.Comment)) {
		fields := strings.Fields(line)
		for i, f := range fields {
			if f == "agentmesh" {
				played[placeholder.ReplaceAllString(strings.Join(fields[i:], " "), "*")] = true
				break
			}
		}
	}
	blocks := strings.Split(readme, "<!-- walkthrough -->\n```sh\n")[1:]
	if len(blocks) < 4 {
		t.Errorf("the README has %d blocks of the walk-through", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		for line := range strings.Lines(block) {
			command := placeholder.ReplaceAllString(strings.TrimSpace(line), "*")
			if !played[command] {
				t.Errorf("no script plays %q", strings.TrimSpace(line))
			}
		}
	}
}

// The curl lines of the README are the ones that serve prints or that scripts try.
func TestReadmeNamesTheTestCommand(t *testing.T) {
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\ngo test ./...\n", "\ngo run ./cmd/agentmesh serve\n", "\ngo run ./cmd/agentmesh demo\n"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the README lacks the line %q", strings.TrimSpace(want))
		}
	}
}
