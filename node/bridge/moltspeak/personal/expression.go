package personal

import (
	"regexp"
	"regexp/syntax"
	"strings"
)

// expression is a regular expression that is fast in long texts. If it begins with \b, it is tried only at words whose
// first character can start a match. Package regexp alone tries every character, which takes several times as long.
type expression struct {
	*regexp.Regexp
	part     string         // every match contains it
	anchored *regexp.Regexp // matches only at the start of a text; nil if the expression does not begin with \b
	starts   [128]bool      // ASCII characters that can start a match
}

// re compiles an expression. If it begins with \b, every match must begin with an ASCII letter, a digit or "_".
func re(s string) expression {
	e := expression{Regexp: regexp.MustCompile(s)}
	if !strings.HasPrefix(strings.TrimPrefix(s, "(?i)"), `\b`) {
		return e
	}
	s = `^(?:` + s + `)`
	e.anchored = regexp.MustCompile(s)
	tree, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		panic("personal: " + err.Error()) // cannot happen: regexp has parsed it
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		panic("personal: " + err.Error())
	}
	e.addStarts(prog, prog.Start)
	return e
}

// reWith compiles an expression all of whose matches contain part.
func reWith(part, s string) expression {
	e := re(s)
	e.part = part
	return e
}

// addStarts adds the characters that the program can read first if it continues at instruction pc.
func (e *expression) addStarts(prog *syntax.Prog, pc int) {
	switch inst := &prog.Inst[pc]; inst.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		e.addStarts(prog, int(inst.Out))
		e.addStarts(prog, int(inst.Arg))
	case syntax.InstCapture, syntax.InstEmptyWidth, syntax.InstNop:
		e.addStarts(prog, int(inst.Out))
	default:
		for c := range e.starts {
			e.starts[c] = e.starts[c] || inst.MatchRune(rune(c))
		}
	}
}

// maxMatch is the longest match of an expression that begins with \b, in bytes. A longer one ends there. Without this
// bound, a text in which many matches could start would take time in proportion to the square of its length.
const maxMatch = 256

// findAll returns what FindAllStringSubmatchIndex(text, -1) returns, except for matches longer than maxMatch.
func (e expression) findAll(text string) [][]int {
	switch {
	case !strings.Contains(text, e.part):
		return nil
	case e.anchored == nil:
		return e.FindAllStringSubmatchIndex(text, -1)
	}
	var all [][]int
	for i := 0; i < len(text); i++ {
		if text[i] >= 128 || !e.starts[text[i]] || i > 0 && isWordByte(text[i-1]) {
			continue
		}
		at := e.anchored.FindStringSubmatchIndex(text[i:min(len(text), i+maxMatch)])
		if at == nil {
			continue
		}
		for j := range at {
			if at[j] >= 0 { // a group that matched
				at[j] += i
			}
		}
		all = append(all, at)
		i = at[1] - 1
	}
	return all
}

// isWordByte reports whether \b takes c as a part of a word.
func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}
