package main

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/agentmesh/agentmesh/cmd/internal/manual"
)

// rootCommand returns the grammar of the command line.
func rootCommand() *kong.Node {
	var cli commands
	return newParser(&cli, io.Discard, io.Discard).Model.Node
}

// commandPath returns the words of a command, such as "agentmesh peers add".
func commandPath(n *kong.Node) string {
	if n.Parent == nil {
		return n.Name
	}
	return commandPath(n.Parent) + " " + n.Name
}

// TestHelp: the help of every command has an example, its own flags, and then the global flags. No help quotes the number of a rule. The parser accepts every example of the help.
func TestHelp(t *testing.T) {
	root := rootCommand()
	rule := regexp.MustCompile(`\b(AM|MS|MESS|MEW|AR)-[A-Z]?[0-9]`)
	var cli commands
	var out strings.Builder
	parser := newParser(&cli, &out, &out)
	for _, cmd := range root.Leaves(true) {
		path := strings.TrimPrefix(commandPath(cmd), "agentmesh ")
		out.Reset()
		parsed, err := manual.Parse(parser, append(strings.Fields(path), "--help"))
		if err != nil || !manual.AsksForHelp(parsed) || parsed.PrintUsage(false) != nil {
			t.Errorf("%s --help: %v", path, err)
		}
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
			t.Errorf("agentmesh %s: nothing runs without a subcommand", commandPath(group))
		}
	}
}

// TestHelpShowsItsCommand: each example in the help of a command calls that command or a command below it.
func TestHelpShowsItsCommand(t *testing.T) {
	root := rootCommand()
	var cli commands
	parser := newParser(&cli, io.Discard, io.Discard)
	_ = kong.Visit(root, func(node kong.Visitable, next kong.Next) error {
		n, ok := node.(*kong.Node)
		if !ok || n.Hidden || n == root {
			return nil
		}
		about, shown := "", true
		for line := range strings.Lines(n.Detail + "\n") {
			call, ok := strings.CutPrefix(line, "  $ ")
			if !ok {
				if !shown {
					t.Errorf("the help of %s shows another command below %q", commandPath(n), about)
				}
				about, shown = strings.TrimSpace(line), false
				continue
			}
			parsed, err := manual.Parse(parser, shellWords(strings.TrimSpace(call))[1:])
			if err != nil {
				t.Fatalf("%s: %v", call, err)
			}
			called := commandPath(parsed.Selected()) + " "
			shown = shown || strings.HasPrefix(called, commandPath(n)+" ")
		}
		if !shown {
			t.Errorf("the help of %s shows another command below %q", commandPath(n), about)
		}
		return next(nil)
	})
}

// TestExamplesParse: the parser accepts every example.
func TestExamplesParse(t *testing.T) {
	for _, e := range manual.Examples() {
		for _, line := range e.Calls {
			words := shellWords(line)
			var cli commands
			if _, err := manual.Parse(newParser(&cli, io.Discard, io.Discard, manual.OmitUnnamed(&cli, words[1:])), words[1:]); err != nil || words[0] != "agentmesh" {
				t.Errorf("%s: %v", line, err)
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
