// Package manual writes the help texts and completes command lines, both from the grammar of the command line.
package manual

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

//go:embed examples.txt
var exampleTexts string

// Example is one or more calls of commands, with their purpose.
type Example struct {
	About string
	Calls []string
}

// Examples returns the examples of the file examples.txt. A paragraph that begins with its purpose is one example; of
// the others, each line is one.
func Examples() []Example {
	var list []Example
	for paragraph := range strings.SplitSeq(strings.TrimSpace(exampleTexts), "\n\n") {
		lines := strings.Split(paragraph, "\n")
		if !strings.HasPrefix(lines[0], "agentmesh ") {
			list = append(list, Example{lines[0], lines[1:]})
			continue
		}
		for _, line := range lines {
			list = append(list, Example{"For example:", []string{line}})
		}
	}
	return list
}

// Arrange prepares the grammar for the help texts: every command shows its examples, then its own flags, then the
// global flags, which are those of the program and --help.
func Arrange(model *kong.Application) {
	global := &kong.Group{Key: "global", Title: "Global flags:"}
	for _, f := range model.Flags {
		f.Group = global
	}
	model.HelpFlag.Group = global
	examples := Examples()
	_ = kong.Visit(model.Node, func(node kong.Visitable, next kong.Next) error { // the visitor never fails
		if n, ok := node.(*kong.Node); ok {
			n.Detail = describeCalls(examples, model.Node, n)
		}
		return next(nil)
	})
}

// describeCalls returns the examples that call the command, or a command below it: those with a purpose of their own,
// or else the first.
func describeCalls(examples []Example, root, command *kong.Node) string {
	var lines []string
	for _, e := range examples {
		if !hasCall(e, root, command) || e.About == "For example:" && lines != nil {
			continue
		}
		lines = append(lines, e.About)
		for _, call := range e.Calls {
			lines = append(lines, "  $ "+call)
		}
	}
	return strings.Join(lines, "\n")
}

// hasCall reports whether a line of the example is a call of the command, or of a command below it.
func hasCall(e Example, root, command *kong.Node) bool {
	for _, call := range e.Calls {
		called := root
		for _, word := range strings.Fields(call)[1:] {
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

// Parse parses a command line into the grammar. Unlike the parser's own Parse, it calls no hooks: hooks are methods that
// are found by their names, for which the linker would keep all methods of the program. The context is never nil.
func Parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	c, err := kong.Trace(parser, args)
	if err == nil {
		err = c.Error
	}
	if err != nil || AsksForHelp(c) {
		return c, err
	}
	if err = c.Reset(); err == nil {
		_, err = c.Apply()
	}
	if err == nil {
		err = c.Validate()
	}
	return c, err
}

// AsksForHelp reports whether the command line has the flag --help.
func AsksForHelp(c *kong.Context) bool {
	return slices.ContainsFunc(c.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag == c.Model.HelpFlag })
}

// HelpCommand returns the command that prints the help for a command line.
func HelpCommand(c *kong.Context) string {
	var command strings.Builder
	command.WriteString("agentmesh")
	for _, step := range c.Path {
		if step.Command != nil {
			command.WriteString(" " + step.Command.Name)
		}
	}
	return command.String() + " --help"
}

// ExplainMissing returns the text of a parse error. If an argument is missing, the text is the argument's name and help.
func ExplainMissing(c *kong.Context, err error) string {
	if c.Selected() == nil {
		return err.Error()
	}
	for _, arg := range c.Selected().Positional {
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

// firstCalls are the calls that the main help shows.
const firstCalls = `    $ agentmesh demo
    $ agentmesh serve
    $ agentmesh discover sarah --capability scheduling
    $ agentmesh send am_… 'Coffee on Friday?' --wait

`

// PrintHelp prints the help of a command. That of the program fits one screen.
func PrintHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if ctx.Selected() != nil {
		return kong.DefaultHelpPrinter(options, ctx)
	}
	root := ctx.Model.Node
	fmt.Fprintf(ctx.Stdout, "%s\n\nUsage: agentmesh <command> [flags]\n\n", root.Help)
	fmt.Fprint(ctx.Stdout, firstCalls)
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
