package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/manual"
)

// testManual generates the pages for a build with a version and a date.
func testManual(t *testing.T) (*kong.Node, []manual.Page) {
	t.Helper()
	var cli commands
	root := newParser(&cli, io.Discard, io.Discard).Model.Node
	return root, manual.Pages(root, "0.1.0", "2026-11-21T04:05:06Z")
}

// requests matches the macros that the pages may use. Roff would drop any other line that begins with a dot.
var requests = regexp.MustCompile(`^\.(TH|SH|SS|PP|TP|B|I|BR|RS|RE|nf|fi|nh|ad|br)( |$)`)

// TestManual: every visible command has a well-formed page with all its flags.
func TestManual(t *testing.T) {
	root, pages := testManual(t)
	texts := map[string]string{}
	for _, p := range pages {
		texts[p.Name] = p.Text
		if !strings.HasPrefix(p.Text, `.TH "`) || !strings.Contains(p.Text, `"2026\-11\-21" "agentmesh 0.1.0"`) {
			t.Errorf("%s does not begin with a title: %.80q", p.Name, p.Text)
		}
		indent := 0
		for n, line := range strings.Split(p.Text, "\n") {
			if strings.HasPrefix(line, ".") && !requests.MatchString(line) || strings.HasPrefix(line, "'") {
				t.Errorf("%s.1:%d: roff would take %q for a request", p.Name, n+1, line)
			}
			if strings.HasPrefix(line, ".RS") {
				indent++
			} else if strings.HasPrefix(line, ".RE") {
				indent--
			}
		}
		if indent != 0 {
			t.Errorf("%s: indentation is left open", p.Name)
		}
		for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"} {
			if !strings.Contains(p.Text, "\n.SH "+section+"\n") {
				t.Errorf("%s has no section %s", p.Name, section)
			}
		}
	}
	for _, section := range []string{"OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"} {
		if !strings.Contains(texts["agentmesh"], "\n.SH "+section+"\n") {
			t.Errorf("agentmesh.1 has no section %s", section)
		}
	}
	for _, leaf := range root.Leaves(true) {
		top := leaf
		for top.Parent.Parent != nil {
			top = top.Parent
		}
		for _, f := range leaf.Flags {
			if want := `\fB\-\-` + strings.ReplaceAll(f.Name, "-", `\-`) + `\fR`; !strings.Contains(texts["agentmesh-"+top.Name], want) {
				t.Errorf("%s --%s is on no page", manual.CommandPath(leaf), f.Name)
			}
		}
	}
	if want := `\fB\-\-yaml\fR`; !strings.Contains(texts["agentmesh-mess"], want) {
		t.Error("the page of mess lacks the flag of all its commands")
	}
	if _, ok := texts["agentmesh-demo-hook"]; ok {
		t.Error("a hidden command has a page")
	}
}

// TestManualPagesAreWellFormed checks the pages with groff and mandoc, if they are installed.
func TestManualPagesAreWellFormed(t *testing.T) {
	type checker struct {
		program string
		args    []string
	}
	found := false
	_, pages := testManual(t)
	for _, c := range []checker{
		{"groff", []string{"-man", "-ww", "-Tascii", "-z"}},
		{"mandoc", []string{"-Tlint", "-Wwarning"}},
	} {
		program, err := exec.LookPath(c.program)
		if err != nil {
			continue
		}
		found = true
		for _, p := range pages {
			cmd := exec.Command(program, c.args...)
			cmd.Stdin = strings.NewReader(p.Text)
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%s on %s: %v\n%s", c.program, p.Name, err, out)
			}
		}
	}
	if !found {
		t.Skip("neither groff nor mandoc is installed")
	}
}

// TestHelp: the help of every command has an example, its own flags, and then the global flags. No help quotes the number of a rule. The parser accepts every example of the help.
func TestHelp(t *testing.T) {
	root, _ := testManual(t)
	rule := regexp.MustCompile(`\b(AM|MS|MESS|MEW|AR)-[A-Z]?[0-9]`)
	var cli commands
	var out strings.Builder
	parser := newParser(&cli, &out, &out)
	for _, cmd := range root.Leaves(true) {
		path := strings.TrimPrefix(manual.CommandPath(cmd), "agentmesh ")
		out.Reset()
		func() {
			defer func() { _ = recover() }() // the exit after the help
			_, _ = parser.Parse(append(strings.Fields(path), "--help"))
		}()
		text := out.String()
		example, flags, global := strings.Index(text, "    $ agentmesh "), strings.Index(text, "\nFlags:"), strings.Index(text, "\nGlobal flags:")
		if example < 0 || global < example || flags >= 0 && (flags < example || global < flags) {
			t.Errorf("%s: example, flags and global flags are at %d, %d, %d of:\n%s", path, example, flags, global, text)
		}
		if server := strings.Contains(text, "--public-url") && strings.Contains(text, "--listen"); server != slices.Contains([]string{"serve", "init", "config check"}, path) {
			t.Errorf("%s: server flags: %t", path, server)
		}
		if found := rule.FindString(text); found != "" {
			t.Errorf("%s: the help names the rule %s", path, found)
		}
	}
	groups := slices.Clone(root.Children)
	for _, group := range root.Children {
		groups = append(groups, group.Children...)
	}
	for _, group := range groups { // a group without a subcommand lists what it is about
		lists := slices.ContainsFunc(group.Children, func(n *kong.Node) bool {
			return slices.Contains([]string{"list", "show", "status", "check", "agents"}, n.Name)
		})
		if lists && group.DefaultCmd == nil {
			t.Errorf("agentmesh %s: nothing runs without a subcommand", manual.CommandPath(group))
		}
	}
	for line := range strings.Lines(manual.Usages) {
		if _, err := parser.Parse(shellWords(strings.TrimSpace(line))[1:]); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestHelpShowsItsCommand: each example in the help of a command calls that command or a command below it.
func TestHelpShowsItsCommand(t *testing.T) {
	root, _ := testManual(t)
	var cli commands
	parser := newParser(&cli, io.Discard, io.Discard)
	_ = kong.Visit(root, func(node kong.Visitable, next kong.Next) error {
		n, ok := node.(*kong.Node)
		if !ok || n.Hidden {
			return nil
		}
		about, shown := "", true
		for line := range strings.Lines(n.Detail + "\n") {
			call, ok := strings.CutPrefix(line, "  $ ")
			if !ok {
				if !shown {
					t.Errorf("the help of %s shows another command below %q", manual.CommandPath(n), about)
				}
				about, shown = strings.TrimSpace(line), false
				continue
			}
			parsed, err := parser.Parse(shellWords(strings.TrimSpace(call))[1:])
			if err != nil {
				t.Fatalf("%s: %v", call, err)
			}
			called := manual.CommandPath(parsed.Selected()) + " "
			shown = shown || strings.HasPrefix(called, manual.CommandPath(n)+" ")
		}
		if !shown {
			t.Errorf("the help of %s shows another command below %q", manual.CommandPath(n), about)
		}
		return next(nil)
	})
}

// TestManualExamplesParse: the parser accepts every example.
func TestManualExamplesParse(t *testing.T) {
	root, _ := testManual(t)
	for name, list := range manual.Examples {
		if name != "" && manual.FindSubcommand(root, name) == nil {
			t.Errorf("there are examples for %s, which is not a command", name)
		}
		for _, e := range list {
			for line := range strings.Lines(e.Command) {
				words := shellWords(strings.TrimSpace(line))
				var cli commands
				if _, err := newParser(&cli, io.Discard, io.Discard, manual.OmitUnnamed(&cli, words[1:])).Parse(words[1:]); err != nil || words[0] != "agentmesh" {
					t.Errorf("%s: %v", line, err)
				}
			}
		}
	}
}

// shellWords splits a line into words as a shell does. It does not support variables.
func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, begun := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ':
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

func TestManCommand(t *testing.T) {
	var out, errOut bytes.Buffer
	dir := filepath.Join(t.TempDir(), "man1")
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"man"}, exit.OK, `.TH "AGENTMESH"`},
		{[]string{"man", "send"}, exit.OK, `.TH "AGENTMESH\-SEND"`},
		{[]string{"man", "no-such"}, exit.Usage, ""},
		{[]string{"man", "--dir", dir}, exit.OK, ""},
	} {
		out.Reset()
		if code := run(t.Context(), tc.args, nil, &out, &errOut); code != tc.code || !strings.HasPrefix(out.String(), tc.want) {
			t.Errorf("%q: exit code %d, %.40q, want %d, %q", tc.args, code, out.String(), tc.code, tc.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "agentmesh-conversations.1")); err != nil {
		t.Error(err)
	}
}
