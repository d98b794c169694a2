package terminal

import (
	"bytes"
	"strings"
	"testing"
)

// TestFrame: the frame is as wide as its longest line, and a hostile text cannot break it.
func TestFrame(t *testing.T) {
	var out bytes.Buffer
	u := UI{Out: &out}
	u.Frame("Zoë is\x1b[31m running", [][2]string{{"page", "http://x"}, {"stop", "ctrl-c"}})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, l := range lines {
		if len([]rune(l)) != len([]rune(lines[0])) {
			t.Errorf("the frame is crooked:\n%s", out.String())
			break
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("an escape sequence is in %q", out.String())
	}
	out.Reset()
	u.Frame("t", [][2]string{{"page", strings.Repeat("x", 100)}})
	if strings.Contains(out.String(), "│") || !strings.Contains(out.String(), "page  "+strings.Repeat("x", 100)+"\n") {
		t.Errorf("a link that is wider than the screen is framed:\n%s", out.String())
	}
}

// TestHeld: nothing appears before the release, everything appears in order, and the memory is bounded.
func TestHeld(t *testing.T) {
	var out bytes.Buffer
	h := Hold(&out)
	write := func(s string) {
		if n, err := h.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	write("one ")
	if out.Len() != 0 {
		t.Errorf("written before the release: %q", out.String())
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	write("two")
	if out.String() != "one two" {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	h = Hold(&out)
	write("first ")
	write(strings.Repeat("x", maxHeld))
	if !strings.HasPrefix(out.String(), "first x") || h.buffer.Len() != 0 {
		t.Error("more than the bound is kept")
	}
}

func TestBrowserCommand(t *testing.T) {
	for _, tc := range []struct {
		system, env, want string
	}{
		{"linux", "", ""}, {"linux", "DISPLAY", "xdg-open"}, {"linux", "WAYLAND_DISPLAY", "xdg-open"}, {"darwin", "", "open"},
		{"darwin", "SSH_CONNECTION", ""}, {"windows", "", "rundll32"},
	} {
		command := browserCommand(tc.system, func(name string) string {
			if name == tc.env {
				return ":0"
			}
			return ""
		})
		if got := strings.Join(command, " "); !strings.HasPrefix(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%s with %q: %q", tc.system, tc.env, got)
		}
	}
}

// TestCommandsInHints: a command in a hint uses the data directory that the user named. Other words stay.
func TestCommandsInHints(t *testing.T) {
	t.Setenv("AGENTMESH_DATA", "/env")
	for _, tc := range []struct{ dir, hint, want string }{
		{"me", "agentmesh links list", "agentmesh --data me links list"},
		{"my agent", "start it with: agentmesh serve", "start it with: agentmesh --data 'my agent' serve"},
		{"me", "agentmesh check shows it; agentmesh restore unpacks it", "agentmesh --data me check shows it; agentmesh --data me restore unpacks it"},
		{"me", "because agentmesh never overwrites keys", "because agentmesh never overwrites keys"},
		{"me", "the reply is not verified: agentmesh is missing", "the reply is not verified: agentmesh is missing"},
		{"me", "the card is not acceptable: agentmesh must be 0.1.<n>", "the card is not acceptable: agentmesh must be 0.1.<n>"},
		{"/env", "agentmesh links list", "agentmesh links list"},
		{"", "agentmesh links list", "agentmesh links list"},
	} {
		u := UI{DataFlag: DataFlag(tc.dir)}
		if got := u.Command(tc.hint); got != tc.want {
			t.Errorf("with %q: %q, want %q", tc.dir, got, tc.want)
		}
	}
}
