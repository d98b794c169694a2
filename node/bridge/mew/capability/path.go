package capability

import (
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// path is a JSONPath with names, indexes, wildcards and descent to a name. It has no filters, slices or scripts.
type path []pathStep

type pathStep struct {
	kind  byte // 'n' name, 'i' index, '*' any child, 'd' descent to a name
	name  string
	index int
}

// compilePath reads a path. It reports false if the path is too long or is not one of these forms.
func compilePath(s string) (path, bool) {
	if len(s) > maxPattern || s == "" || s[0] != '$' {
		return nil, false
	}
	var p path
	for rest := s[1:]; rest != ""; {
		var step pathStep
		var ok bool
		switch {
		case strings.HasPrefix(rest, ".."):
			step.kind = 'd'
			step.name, rest, ok = readPathName(rest[2:])
		case strings.HasPrefix(rest, ".*"):
			step.kind, rest, ok = '*', rest[2:], true
		case rest[0] == '.':
			step.kind = 'n'
			step.name, rest, ok = readPathName(rest[1:])
		case rest[0] == '[':
			step, rest, ok = readPathBracket(rest[1:])
		}
		if !ok {
			return nil, false
		}
		p = append(p, step)
	}
	return p, true
}

// readPathName reads a name up to the next step. A name may not contain characters with a meaning elsewhere in JSONPath.
func readPathName(s string) (name, rest string, ok bool) {
	end := strings.IndexAny(s, ".[")
	if end < 0 {
		end = len(s)
	}
	name = s[:end]
	return name, s[end:], name != "" && !strings.ContainsAny(name, "*?@()]'\"$,: \t")
}

// readPathBracket reads the rest of a step after an opening bracket: 'name', an index or a wildcard.
func readPathBracket(s string) (step pathStep, rest string, ok bool) {
	if quoted, found := strings.CutPrefix(s, "'"); found {
		name, rest, closed := strings.Cut(quoted, "']")
		return pathStep{kind: 'n', name: name}, rest, closed && !strings.ContainsAny(name, `'\`)
	}
	inner, rest, closed := strings.Cut(s, "]")
	if inner == "*" {
		return pathStep{kind: '*'}, rest, closed
	}
	n, err := strconv.ParseUint(inner, 10, 31)
	return pathStep{kind: 'i', index: int(n)}, rest, closed && err == nil && strconv.FormatUint(n, 10) == inner
}

// find reports whether hit returns true for one of the values to which p leads from v.
func (p path) find(v wire.Value, b *Budget, hit func(wire.Value) bool) bool {
	if !b.takeNode() {
		return false
	}
	if len(p) == 0 {
		return hit(v)
	}
	switch step := p[0]; step.kind {
	case 'n':
		next, ok := v.Get(step.name)
		return b.takeSteps(v.Len()) && ok && p[1:].find(next, b, hit)
	case 'i':
		return v.Kind() == wire.Array && step.index < v.Len() && p[1:].find(v.At(step.index), b, hit)
	case 'd':
		if next, ok := v.Get(step.name); b.takeSteps(v.Len()) && ok && p[1:].find(next, b, hit) {
			return true
		}
		return anyChild(v, func(child wire.Value) bool { return p.find(child, b, hit) })
	}
	return anyChild(v, func(child wire.Value) bool { return p[1:].find(child, b, hit) })
}

// anyChild reports whether hit returns true for a member or element of v.
func anyChild(v wire.Value, hit func(wire.Value) bool) bool {
	if k := v.Kind(); k != wire.Array && k != wire.Object {
		return false
	}
	for i := range v.Len() {
		if hit(v.At(i)) {
			return true
		}
	}
	return false
}
