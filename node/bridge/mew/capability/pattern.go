package capability

import (
	"regexp"
	"regexp/syntax"
	"strings"
)

// These are the bounds of patterns.
const (
	maxPattern    = 256     // bytes of a string pattern
	maxInsts      = 128     // instructions of a compiled regular expression
	maxRegexpText = 1 << 10 // bytes that a regular expression is matched against
	maxCapability = 4 << 10 // bytes
	MaxHeld       = 256     // capabilities of a participant
)

// textPattern is a compiled pattern for a string. The zero value never matches.
type textPattern struct {
	source  string // as written
	kind    textKind
	negated bool // matches what the pattern does not match
	lit     string
	glob    *glob
	re      *regexp.Regexp
	insts   int // instructions of re
}

type textKind uint8

const (
	textNever textKind = iota // exceeds a bound or does not compile: never matches, not even after "!"
	textAny
	textLiteral
	textGlob
	textRegexp
)

func (t textPattern) isDead() bool { return t.kind == textNever }

// compileText reads a string pattern: a regular expression between slashes, "*", a glob or a literal. Each "!" before it
// negates it.
func compileText(s string) textPattern {
	t := textPattern{source: s}
	if len(s) > maxPattern {
		return t
	}
	body := strings.TrimLeft(s, "!")
	t.negated = (len(s)-len(body))%2 == 1
	switch {
	case len(body) > 2 && body[0] == '/' && body[len(body)-1] == '/':
		t.re, t.insts = compileRegexp(body[1 : len(body)-1])
		if t.re != nil {
			t.kind = textRegexp
		}
	case body == "*":
		t.kind = textAny
	case isGlob(body):
		t.kind, t.glob = textGlob, newGlob(body)
	default:
		t.kind, t.lit = textLiteral, body
	}
	return t
}

// compileRegexp returns nil if s is not valid RE2 syntax or has too many instructions. Before it expands repetitions, it
// estimates the number of instructions, because a{1000} has only seven bytes, but a thousand instructions.
func compileRegexp(s string) (*regexp.Regexp, int) {
	tree, err := syntax.Parse(s, syntax.Perl)
	if err != nil || estimateInstructions(tree) > maxInsts {
		return nil, 0
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil || len(prog.Inst) > maxInsts {
		return nil, 0
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return nil, 0
	}
	return re, len(prog.Inst)
}

// estimateInstructions estimates the number of instructions of an expression without expanding its repetitions.
func estimateInstructions(re *syntax.Regexp) int {
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpConcat, syntax.OpAlternate, syntax.OpRepeat:
		n = 0
	}
	for _, sub := range re.Sub {
		n += estimateInstructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, 1<<20) // nested repetitions must not overflow
}

// match reports whether s matches. If a bound is exceeded, nothing matches, negated or not.
func (t *textPattern) match(s string, b *Budget) bool {
	hit := false
	switch t.kind {
	case textNever:
		return false
	case textAny:
		hit = true
	case textLiteral:
		hit = s == t.lit
	case textGlob:
		hit = t.glob.match(s, b)
	case textRegexp:
		if len(s) > maxRegexpText || !b.takeSteps(regexpWeight*t.insts*(len(s)+1)) {
			return false
		}
		hit = t.re.MatchString(s)
	}
	return hit != t.negated && !b.spent
}

// contains reports whether the patterns prove that t matches every string that other matches.
func (t *textPattern) contains(other *textPattern, b *Budget) bool {
	if !b.takeSteps(compareWeight) {
		return false
	}
	switch {
	case t.source == other.source:
		return true
	case t.kind == textNever, other.kind == textNever, other.negated, other.kind == textRegexp:
		return false
	case t.kind == textAny:
		return !t.negated
	case other.kind == textLiteral:
		return t.match(other.lit, b)
	case t.negated || t.kind != textGlob || t.glob.trailingWildcard() == 0:
		return false
	}
	otherHead, otherCrosses := "", true // if other is "*" alone, it matches every string, also across slashes
	if other.kind == textGlob {
		if other.glob.trailingWildcard() == 0 {
			return false
		}
		otherHead, otherCrosses = other.glob.head, other.glob.only == globAny
	}
	rest, ok := strings.CutPrefix(otherHead, t.glob.head)
	return ok && (t.glob.only == globAny || !otherCrosses && !strings.Contains(rest, "/"))
}

// Budget bounds the work of one decision, over all capabilities that the decision considers: the visited nodes of the
// payload, and the steps of text comparisons. Once the budget is spent, nothing matches.
type Budget struct {
	nodes, steps int
	spent        bool
}

const (
	maxNodes = 10_000
	// maxSteps bounds the steps of a decision. A step takes one or two nanoseconds. The largest single comparison
	// within the other bounds, 128 instructions over 1,024 bytes, must fit.
	maxSteps     = regexpWeight*maxInsts*(maxRegexpText+1) + 1<<16
	regexpWeight = 2 // steps for each instruction and byte
)

// One budget covers all comparisons of a grant or revocation, because lists of alternatives multiply the work.
const (
	compareSteps  = 1 << 22 // also the number of nodes
	compareWeight = 8       // steps for each pair of patterns
)

// NewComparisonBudget returns the budget of one grant or revocation.
func NewComparisonBudget() *Budget { return &Budget{nodes: compareSteps, steps: compareSteps} }

func newBudget() *Budget { return &Budget{nodes: maxNodes, steps: maxSteps} }

// Spent reports whether the budget was too small.
func (b *Budget) Spent() bool { return b.spent }

// takeSteps charges n steps. It reports whether the budget sufficed for everything so far.
func (b *Budget) takeSteps(n int) bool {
	b.steps -= n
	b.spent = b.spent || b.steps < 0
	return !b.spent
}

// takeNode charges one visited node. It reports whether the budget sufficed for everything so far.
func (b *Budget) takeNode() bool {
	b.nodes--
	b.spent = b.spent || b.nodes < 0
	return !b.spent
}
