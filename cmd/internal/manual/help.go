// Package manual writes the help texts and completes command lines, both from the grammar of the command line.
package manual

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

// Arrange prepares the grammar for the help texts: every command shows its examples, then its own flags, then the
// global flags, which are those of the program and --help.
func Arrange(model *kong.Application) {
	global := &kong.Group{Key: "global", Title: "Global flags:"}
	for _, f := range model.Flags {
		f.Group = global
	}
	model.HelpFlag.Group = global
	_ = kong.Visit(model.Node, func(node kong.Visitable, next kong.Next) error { // the visitor never fails
		if n, ok := node.(*kong.Node); ok {
			arrangeNode(n)
		}
		return next(nil)
	})
}

func arrangeNode(n *kong.Node) {
	var lines []string
	for _, e := range findExamples(n) {
		lines = append(lines, e.About)
		for line := range strings.Lines(e.Command) {
			lines = append(lines, "  $ "+strings.TrimSpace(line))
		}
	}
	n.Detail = strings.Join(lines, "\n")
}

// Usages has, one per line, a call of each command that has no example in [Examples].
//
//go:embed usages.txt
var Usages string

// findExamples returns the examples of a node: for the program those of the main page, for a group those of its
// top-level command, and for a command those that call it. Without examples, it returns one call from [Usages], or nil.
func findExamples(n *kong.Node) []Example {
	top := n
	for top.Parent != nil && top.Parent.Parent != nil {
		top = top.Parent
	}
	if n.Parent == nil {
		return Examples[""]
	}
	if list := Examples[top.Name]; !n.Leaf() && len(list) > 0 {
		return list
	}
	var found []Example
	for _, e := range Examples[top.Name] {
		if hasCall(e, top.Parent, n) {
			found = append(found, e)
		}
	}
	if len(found) > 0 {
		return found
	}
	for line := range strings.Lines(Usages) {
		if e := (Example{"For example:", line}); hasCall(e, top.Parent, n) {
			return []Example{e}
		}
	}
	return nil
}

// hasCall reports whether a line of the example is a call of the command, or of a command below it.
func hasCall(e Example, root, command *kong.Node) bool {
	for line := range strings.Lines(e.Command) {
		called := root
		for _, word := range strings.Fields(line)[1:] {
			sub := FindSubcommand(called, word)
			if sub == nil {
				break
			}
			if called = sub; called == command {
				return true
			}
		}
		if called.DefaultCmd == command {
			return true
		}
	}
	return false
}

// ExpandArgs rewrites the usual "help COMMAND", "-v" and "--version" into arguments that this program knows.
func ExpandArgs(args []string) []string {
	switch {
	case len(args) > 0 && args[0] == "help":
		return append(args[1:len(args):len(args)], "--help")
	case len(args) == 1 && (args[0] == "-v" || args[0] == "--version"):
		return []string{"version"}
	}
	return args
}

// ExplainMissing returns the text of a parse error. If an argument is missing, the text is the argument's name and help.
func ExplainMissing(err error) string {
	wrong, ok := errors.AsType[*kong.ParseError](err)
	if !ok || wrong.Context == nil || wrong.Context.Selected() == nil {
		return err.Error()
	}
	for _, arg := range wrong.Context.Selected().Positional {
		if strings.HasPrefix(err.Error(), `expected "`+arg.Summary()) {
			help := strings.TrimSuffix(arg.Help, ".")
			// An abbreviation such as "URL" keeps its first letter.
			if first, size := utf8.DecodeRuneInString(help); size < len(help) && unicode.IsLower(rune(help[size])) {
				help = string(unicode.ToLower(first)) + help[size:]
			}
			return arg.Summary() + " is missing: " + help
		}
	}
	return err.Error()
}

// everyday are the commands that the main help describes; it only names the others.
var everyday = []string{
	"quickstart", "serve", "page", "status", "doctor", "discover", "send", "reply", "inbox", "approve", "approvals", "conversations", "peers",
}

// PrintHelp prints the help of a command. That of the program fits one screen.
func PrintHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if ctx.Selected() != nil {
		return kong.DefaultHelpPrinter(options, ctx)
	}
	root := ctx.Model.Node
	fmt.Fprintf(ctx.Stdout, "%s\n\nUsage: agentmesh <command> [flags]\n\n", root.Help)
	for _, e := range Examples[""] {
		for line := range strings.Lines(e.Command) {
			fmt.Fprintf(ctx.Stdout, "    $ %s\n", strings.TrimSpace(line))
		}
	}
	fmt.Fprintln(ctx.Stdout)
	others, titles := make(map[string][]string), []string{}
	for _, n := range root.Children {
		switch {
		case n.Hidden:
		case slices.Contains(everyday, n.Name):
			fmt.Fprintf(ctx.Stdout, "  %-15s%s\n", n.Name, n.Help)
		default:
			title := n.Group.Title
			if others[title] == nil {
				titles = append(titles, title)
			}
			others[title] = append(others[title], n.Name)
		}
	}
	fmt.Fprintln(ctx.Stdout)
	for _, title := range titles {
		line := fmt.Sprintf("%-22s", title)
		for i, name := range others[title] {
			if i > 0 {
				line += ", "
			}
			if len(line)+len(name) > 78 {
				fmt.Fprintln(ctx.Stdout, strings.TrimSpace(line))
				line = strings.Repeat(" ", 22)
			}
			line += name
		}
		fmt.Fprintln(ctx.Stdout, line)
	}
	fmt.Fprint(ctx.Stdout, "\nEvery command explains itself and the global flags: agentmesh send --help\n")
	return nil
}
