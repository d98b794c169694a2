package manual

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// CompletionScripts ask the program for the candidates, so that a script stays right when commands change.
var CompletionScripts = map[string]string{
	"bash": `_agentmesh() { local IFS=$'\n'; COMPREPLY=($(agentmesh complete -- "${COMP_WORDS[@]:1:COMP_CWORD}")); }
complete -o default -F _agentmesh agentmesh
`,
	"zsh": `_agentmesh() { compadd -- $(agentmesh complete -- "${(@)words[2,CURRENT]}"); (( $? == 0 )) || _files; }
compdef _agentmesh agentmesh
`,
	"fish": `complete -c agentmesh -a '(agentmesh complete -- (commandline -opc)[2..] (commandline -ct))'
`,
}

// Complete returns the commands, flags or peers that begin with the last word. It calls peers for the names of peers, if the
// command takes one.
func Complete(node *kong.Node, words []string, peers func() []string) []string {
	last := ""
	if len(words) > 0 {
		last = words[len(words)-1]
		for _, w := range words[:len(words)-1] {
			if next := FindSubcommand(node, w); next != nil {
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
		for _, group := range node.AllFlags(true) { // without hidden flags
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
	for _, arg := range node.Positional {
		if arg.Name == "to" || arg.Name == "agent" {
			for _, name := range peers() {
				add(name)
			}
		}
	}
	return out
}

// FindSubcommand returns the subcommand with this name or alias, or nil.
func FindSubcommand(node *kong.Node, name string) *kong.Node {
	for _, n := range node.Children {
		if n.Name == name || slices.Contains(n.Aliases, name) {
			return n
		}
	}
	return nil
}
