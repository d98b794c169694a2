package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// manCmd writes the manual: agentmesh.1, and one page for each command with its subcommands. The pages are generated from
// the grammar of the command line, so they always match the program.
type manCmd struct {
	Page string `arg:"" optional:"" help:"Command whose page to print (default: the main page). For example: agentmesh man send | man -l -"`
	Dir  string `placeholder:"DIR" help:"Write all pages into this directory."`
}

func (c *manCmd) Run(a *app) error {
	var cli commands
	pages := manual(newParser(&cli, a.Out, a.Err).Model.Node, thisBuild())
	if c.Dir != "" {
		return a.writeManual(c.Dir, pages)
	}
	name := "agentmesh"
	if c.Page != "" {
		name += "-" + c.Page
	}
	for _, p := range pages {
		if p.name == name {
			_, err := fmt.Fprint(a.Out, p.text)
			return err
		}
	}
	return exit.FailHint(exit.Usage, fmt.Errorf("there is no page for %s", terminal.Clean(c.Page)), "list the commands with: agentmesh --help")
}

func (a *app) writeManual(dir string, pages []manPage) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("write the manual: %w", err))
	}
	var faults []error
	for _, p := range pages {
		faults = append(faults, os.WriteFile(filepath.Join(dir, p.name+".1"), []byte(p.text), 0o644))
	}
	if err := errors.Join(faults...); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("write the manual: %w", err))
	}
	a.Note("wrote %d pages to %s", len(pages), dir)
	return nil
}

// manPage is one page of section 1.
type manPage struct{ name, text string }

// manual generates all pages.
func manual(root *kong.Node, b daemon.Build) []manPage {
	pages := []manPage{mainPage(root, b)}
	for _, cmd := range withoutHidden(root.Children) {
		pages = append(pages, commandPage(cmd, b))
	}
	return pages
}

// withoutHidden returns the nodes that are not hidden.
func withoutHidden(nodes []*kong.Node) []*kong.Node {
	var out []*kong.Node
	for _, n := range nodes {
		if !n.Hidden {
			out = append(out, n)
		}
	}
	return out
}

func mainPage(root *kong.Node, b daemon.Build) manPage {
	var r roff
	r.title("agentmesh", b)
	r.section("NAME")
	r.text("agentmesh - " + strings.TrimSuffix(root.Help, "."))
	r.section("SYNOPSIS")
	r.request(".B agentmesh\n[flags]\n.I command\n[arguments]")
	r.section("DESCRIPTION")
	for _, p := range manDescription {
		r.paragraph(p)
	}
	r.section("COMMANDS")
	group := ""
	for _, cmd := range withoutHidden(root.Children) {
		if g := cmd.ClosestGroup(); g != nil && g.Title != group {
			group = g.Title
			r.subsection(strings.TrimSuffix(group, ":"))
		}
		r.item(`\fBagentmesh\-`+escape(cmd.Name)+`\fR(1)`, cmd.Help)
	}
	r.section("OPTIONS")
	r.paragraph("Every command has these options:")
	r.flags(root.Flags)
	r.section("EXIT STATUS")
	for _, e := range exit.Meanings {
		r.item(fmt.Sprintf(`\fB%d\fR`, e.Code), e.Text+".")
	}
	r.section("ENVIRONMENT")
	for _, e := range manEnvironment {
		r.item(`\fB`+escape(e.name)+`\fR`, e.meaning)
	}
	r.section("FILES")
	r.paragraph("In the data directory, which has mode 0700:")
	for _, f := range manFiles {
		r.item(`\fI`+escape(f.name)+`\fR`, f.meaning)
	}
	r.examples(manExamples[""])
	r.section("SEE ALSO")
	r.request(seeAlso("", root))
	return manPage{"agentmesh", r.String()}
}

func commandPage(cmd *kong.Node, b daemon.Build) manPage {
	name := "agentmesh-" + cmd.Name
	var r roff
	r.title(name, b)
	r.section("NAME")
	r.text(name + " - " + strings.TrimSuffix(cmd.Help, "."))
	leaves := []*kong.Node{cmd}
	if !cmd.Leaf() {
		leaves = withoutHidden(cmd.Leaves(true))
	}
	r.section("SYNOPSIS")
	for i, leaf := range leaves {
		if i > 0 {
			r.request(".br")
		}
		r.synopsis(leaf)
	}
	r.section("DESCRIPTION")
	for _, leaf := range leaves {
		if len(leaves) > 1 {
			r.subsection(strings.TrimPrefix(commandPath(leaf), "agentmesh "))
		}
		r.paragraph(leaf.Help)
		if leaf.Parent != nil && leaf.Parent.DefaultCmd == leaf {
			r.paragraph("This is the default: " + commandPath(leaf.Parent) + " runs it without a subcommand.")
		}
		for _, p := range leaf.Positional {
			r.item(`\fI`+escape(strings.ToUpper(p.Name))+`\fR`, expandEnum(p.Help, p.Enum))
		}
		r.flags(leaf.Flags)
	}
	r.section("NOTES")
	r.paragraph("agentmesh(1) describes the options of all commands, the exit status, the environment and the files.")
	r.examples(manExamples[cmd.Name])
	r.section("SEE ALSO")
	r.request(seeAlso(cmd.Name, cmd.Parent))
	return manPage{name, r.String()}
}

// commandPath returns the words of a command, such as "agentmesh peers add".
func commandPath(n *kong.Node) string {
	if n.Parent == nil {
		return n.Name
	}
	return commandPath(n.Parent) + " " + n.Name
}

// seeAlso returns references to the pages of the same group. The main page lists all pages, so it refers to none of them.
func seeAlso(name string, root *kong.Node) string {
	if name == "" {
		return ".BR age (1),\n.BR curl (1)"
	}
	refs := []string{".BR agentmesh (1)"}
	var group *kong.Group
	for _, n := range root.Children {
		if n.Name == name {
			group = n.Group
		}
	}
	for _, n := range withoutHidden(root.Children) {
		if n.Name != name && n.Group == group {
			refs = append(refs, `.BR agentmesh\-`+escape(n.Name)+" (1)")
		}
	}
	return strings.Join(refs, ",\n")
}
