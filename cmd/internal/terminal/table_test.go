package terminal

import (
	"bytes"
	"strings"
	"testing"

	"github.com/clipperhouse/displaywidth"
)

func listRows() [][]string {
	return [][]string{
		{"ID", "FROM", "WHAT", "AGENT", "STATE"},
		{"ask_01a2280005a7t3r5o5ipfq", "李小龍的代理人", "a long text that a stranger wrote, with a wide 🦊 in it, and more", "am_75gdjlceo7iibvtc4acqwaqb3d", "pending"},
		{"ask_01a2280005a7t4r5o5ipfq", "Zoë", "short", "am_85gdjlceo7iibvtc4acqwaqb3d", "approved"},
	}
}

// TestListFits: on a terminal a list fits its width, with wide characters, too, and ids that can be told apart. Without a
// terminal, nothing is cut.
func TestListFits(t *testing.T) {
	var out bytes.Buffer
	u := UI{Out: &out, Columns: 60, Color: "never"}
	u.List(listRows(), "")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, line := range lines {
		if w := displaywidth.String(line); w > 60 {
			t.Errorf("a line takes %d columns: %s", w, line)
		}
	}
	if strings.Fields(lines[1])[0] == strings.Fields(lines[2])[0] {
		t.Errorf("two ids look the same:\n%s", out.String())
	}
	at := func(line, text string) int {
		before, _, found := strings.Cut(line, text)
		if !found {
			t.Errorf("%q lacks %q", line, text)
		}
		return displaywidth.String(before)
	}
	if a, b := at(lines[1], "pending"), at(lines[2], "approved"); a != b {
		t.Errorf("the columns are at %d and %d:\n%s", a, b, out.String())
	}
	out.Reset()
	u.Columns = 200
	u.List(listRows(), "")
	if got := out.String(); !strings.Contains(got, "ask_01a2280005a7t3  ") || !strings.Contains(got, "am_75gdjlce…") {
		t.Errorf("ids are not short:\n%s", got)
	}
	out.Reset()
	u.Columns = 0
	u.List(listRows(), "")
	for _, cell := range listRows()[1] {
		if !strings.Contains(out.String(), cell) {
			t.Errorf("without a terminal, %q is cut:\n%s", cell, out.String())
		}
	}
}

// TestColor: a terminal gets colors, unless NO_COLOR or --color says something else.
func TestColor(t *testing.T) {
	for _, tc := range []struct {
		color, noColor, term string
		columns              int
		want                 bool
	}{
		{"auto", "", "xterm", 80, true}, {"auto", "1", "xterm", 80, false}, {"auto", "", "dumb", 80, false}, {"auto", "", "xterm", 0, false},
		{"always", "1", "dumb", 0, true}, {"never", "", "xterm", 80, false},
	} {
		t.Setenv("NO_COLOR", tc.noColor)
		t.Setenv("TERM", tc.term)
		var out bytes.Buffer
		u := UI{Out: &out, Columns: tc.columns, Color: tc.color}
		u.List(listRows(), "")
		if got := strings.Contains(out.String(), "\x1b[33mpending\x1b[0m"); got != tc.want {
			t.Errorf("%+v: colored %v", tc, got)
		}
	}
}
