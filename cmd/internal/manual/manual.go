// Package manual writes the manual pages of the program: agentmesh(1), and one page for each command with its
// subcommands. They come from the grammar of the command line and from the texts in texts.go.
package manual

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

type build struct{ version, date string }

// Page is one page of section 1.
type Page struct {
	Name string // without the section, such as "agentmesh-send"
	Text string // roff with the macros of man(7)
}

// Pages generates all pages. The title of each page contains version and date. date is in RFC 3339.
func Pages(root *kong.Node, version, date string) []Page {
	b := build{version, date}
	pages := []Page{mainPage(root, b)}
	for _, cmd := range withoutHidden(root.Children) {
		pages = append(pages, commandPage(cmd, b))
	}
	return pages
}

func withoutHidden(nodes []*kong.Node) []*kong.Node {
	var out []*kong.Node
	for _, n := range nodes {
		if !n.Hidden {
			out = append(out, n)
		}
	}
	return out
}

func mainPage(root *kong.Node, b build) Page {
	var r roff
	r.title("agentmesh", b)
	r.section("NAME")
	r.text("agentmesh - " + strings.TrimSuffix(root.Help, "."))
	r.section("SYNOPSIS")
	r.request(".B agentmesh\n[flags]\n.I command\n[arguments]")
	r.section("DESCRIPTION")
	for _, p := range description {
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
	for _, e := range environment {
		r.item(`\fB`+escape(e.name)+`\fR`, e.meaning)
	}
	r.section("FILES")
	r.paragraph("In the data directory, which has mode 0700:")
	for _, f := range files {
		r.item(`\fI`+escape(f.name)+`\fR`, f.meaning)
	}
	r.examples(Examples[""])
	r.section("SEE ALSO")
	r.request(seeAlso("", root))
	return Page{"agentmesh", r.String()}
}

func commandPage(cmd *kong.Node, b build) Page {
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
	if !cmd.Leaf() && len(cmd.Flags) > 0 {
		r.paragraph("All these commands have these options:")
		r.flags(cmd.Flags)
	}
	for _, leaf := range leaves {
		if len(leaves) > 1 {
			r.subsection(strings.TrimPrefix(CommandPath(leaf), "agentmesh "))
		}
		r.paragraph(leaf.Help)
		if leaf.Parent != nil && leaf.Parent.DefaultCmd == leaf {
			r.paragraph("This is the default: " + CommandPath(leaf.Parent) + " without a subcommand runs it.")
		}
		for _, p := range leaf.Positional {
			r.item(`\fI`+escape(strings.ToUpper(p.Name))+`\fR`, expandEnum(p.Help, p.Enum))
		}
		r.flags(leaf.Flags)
	}
	r.section("NOTES")
	r.paragraph("agentmesh(1) describes the options of all commands, the exit status, the environment and the files.")
	r.examples(Examples[cmd.Name])
	r.section("SEE ALSO")
	r.request(seeAlso(cmd.Name, cmd.Parent))
	return Page{name, r.String()}
}

// CommandPath returns the words of a command, such as "agentmesh peers add".
func CommandPath(n *kong.Node) string {
	if n.Parent == nil {
		return n.Name
	}
	return CommandPath(n.Parent) + " " + n.Name
}

// seeAlso returns references to agentmesh(1) and the pages of the same group. For the main page, whose name is "", it
// returns references to other programs, because that page already lists all pages of this one.
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
