package terminal

import (
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TreeLines returns a tree as lines for a person. A list or an object that contains no list and no object is one line.
// Line breaks in texts become blanks, as with [Clean]: a stranger's text cannot look like another member of the tree.
func TreeLines(v wire.Value) []string {
	if !hasTrees(v) {
		return []string{Clean(treeLine(v))}
	}
	var out []string
	for _, m := range v.Members() {
		key, lines := Clean(m.Key), TreeLines(m.Value)
		switch {
		case hasTrees(m.Value):
			out = append(out, key+":")
			for _, line := range lines {
				out = append(out, "  "+line)
			}
		case m.Value.Kind() == wire.Object:
			out = append(out, key+"  "+lines[0])
		default:
			out = append(out, key+": "+lines[0])
		}
	}
	for e := range v.Elems() {
		for i, line := range TreeLines(e) {
			out = append(out, [...]string{"- ", "  "}[min(i, 1)]+line) // only the first line has the hyphen
		}
	}
	return out
}

// hasTrees reports whether a list or an object has another one in it.
func hasTrees(v wire.Value) bool {
	isTree := func(v wire.Value) bool { return v.Kind() == wire.Object || v.Kind() == wire.Array }
	for e := range v.Elems() {
		if isTree(e) {
			return true
		}
	}
	return slices.ContainsFunc(v.Members(), func(m wire.Member) bool { return isTree(m.Value) })
}

// treeLine returns a value without trees in it on one line.
func treeLine(v wire.Value) string {
	var parts []string
	for _, m := range v.Members() {
		parts = append(parts, m.Key+": "+treeLine(m.Value))
	}
	for e := range v.Elems() {
		parts = append(parts, treeLine(e))
	}
	if text, ok := v.Str(); ok {
		return text
	}
	if parts == nil {
		return string(v.JSON())
	}
	return strings.Join(parts, "  ")
}
