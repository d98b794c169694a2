package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var changesVersion = regexp.MustCompile(`^## (\d+\.\d+\.\d+)( \(unreleased\))?$`)

// TestChanges: changes.md has one heading for each version, only the first of them unreleased, and the table of what
// is gone has an answer in each row. TestLinks checks its links.
func TestChanges(t *testing.T) {
	var versions []string
	gone, table := 0, false
	for line := range strings.Lines(documents(t)["docs/changes.md"]) {
		line = strings.TrimSuffix(line, "\n")
		switch m := changesVersion.FindStringSubmatch(line); {
		case m != nil:
			if slices.Contains(versions, m[1]) || m[2] != "" && len(versions) > 0 {
				t.Errorf("%q is there twice, or is not the newest", line)
			}
			versions = append(versions, m[1])
		case strings.HasPrefix(line, "## "):
			t.Errorf("%q is not a version", line)
		}
		if line == "| was | use instead |" {
			table = true
			continue
		}
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if !table || len(cells) != 2 || strings.TrimSpace(cells[0]) == "" || strings.TrimSpace(cells[1]) == "" {
			t.Errorf("%q is not a row of the table", line)
		}
		gone++
	}
	if len(versions) == 0 || gone == 0 {
		t.Errorf("%d versions and %d rows were read: this test sees too little", len(versions), gone)
	}
}
