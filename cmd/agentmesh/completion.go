package main

import (
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: ${enum}."`
}

// completionScripts call the program for the candidates, so that they stay right when commands change.
var completionScripts = map[string]string{
	"bash": `_agentmesh() { local IFS=$'\n'; COMPREPLY=($(agentmesh complete -- "${COMP_WORDS[@]:1:COMP_CWORD}")); }
complete -o default -F _agentmesh agentmesh
`,
	"zsh": `_agentmesh() { compadd -- $(agentmesh complete -- "${(@)words[2,CURRENT]}"); (( $? == 0 )) || _files; }
compdef _agentmesh agentmesh
`,
	"fish": `complete -c agentmesh -a '(agentmesh complete -- (commandline -opc)[2..] (commandline -ct))'
`,
}

func (c *completionCmd) Run(a *app) error {
	_, err := a.Out.Write([]byte(completionScripts[c.Shell]))
	return err
}

// completeCmd prints the candidates for the last word of a command line.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" help:"The words after the program's name. The last word is incomplete."`
}

func (c *completeCmd) Run(a *app) error {
	var cli commands
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	for _, w := range complete(newParser(&cli, a.Out, a.Err).Model.Node, words) {
		a.Print("%s", w)
	}
	return nil
}

// complete returns the commands or flags that begin with the last word.
func complete(node *kong.Node, words []string) []string {
	last := ""
	if len(words) > 0 {
		last = words[len(words)-1]
		for _, w := range words[:len(words)-1] {
			if next := findSubcommand(node, w); next != nil {
				node = next
			}
		}
	}
	var out []string
	add := func(word string) {
		if strings.HasPrefix(word, last) {
			out = append(out, word)
		}
	}
	if strings.HasPrefix(last, "-") {
		if node.DefaultCmd != nil { // the user may omit the default command and still give its flags
			node = node.DefaultCmd
		}
		for _, group := range node.AllFlags(true) {
			for _, f := range group {
				add("--" + f.Name)
			}
		}
		return out
	}
	for _, n := range node.Children {
		if !n.Hidden {
			add(n.Name)
		}
	}
	return out
}

func findSubcommand(node *kong.Node, name string) *kong.Node {
	for _, n := range node.Children {
		if n.Name == name {
			return n
		}
	}
	return nil
}
