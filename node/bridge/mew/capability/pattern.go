package capability

import (
	"regexp"
	"regexp/syntax"
	"strings"
)

// The bounds of patterns (section 5).
const (
	maxPattern    = 256     // bytes of a string pattern
	maxInsts      = 128     // instructions of a compiled regular expression
	maxRegexpText = 1 << 10 // bytes that a regular expression is matched against
	maxCapability = 4 << 10 // bytes
	MaxHeld       = 256     // capabilities of a participant
)

// text is a compiled string pattern. The zero value never matches.
type text struct {
	source string
	kind   textKind
	not    bool // a string that does not match
	lit    string
	glob   *glob
	re     *regexp.Regexp
	insts  int
}

type textKind uint8

const (
	textNever textKind = iota // over a bound or not to be compiled: no match, not even under !
	textAny
	textLiteral
	textGlob
	textRegexp
)

func (t text) isDead() bool { return t.kind == textNever }

// compileText compiles a string pattern.
func compileText(s string) text {
	t := text{source: s}
	if len(s) > maxPattern {
		return t
	}
	body := strings.TrimLeft(s, "!")
	t.not = (len(s)-len(body))%2 == 1
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

// compileRegexp returns nil for what is no RE2 or has too many instructions. They are counted before anything is
// expanded: a{1000} is seven bytes and a thousand instructions.
func compileRegexp(s string) (*regexp.Regexp, int) {
	tree, err := syntax.Parse(s, syntax.Perl)
	if err != nil || instructions(tree) > maxInsts {
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

// instructions estimates from below how many instructions an expression compiles to.
func instructions(re *syntax.Regexp) int {
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpConcat, syntax.OpAlternate, syntax.OpRepeat:
		n = 0
	}
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, 1<<20)
}

// match says whether s matches. What the bounds refuse does not match, negated or not.
func (t *text) match(s string, b *Budget) bool {
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
		if len(s) > maxRegexpText || !b.step(regexpWeight*t.insts*(len(s)+1)) {
			return false
		}
		hit = t.re.MatchString(s)
	}
	return hit != t.not && !b.spent
}

// contains says whether t matches whatever c matches, where that can be told from their texts (section 5,
// containment).
func (t *text) contains(c *text, b *Budget) bool {
	if !b.step(compareWeight) {
		return false
	}
	switch {
	case t.source == c.source:
		return true
	case t.kind == textNever, c.kind == textNever, c.not, c.kind == textRegexp:
		return false
	case t.kind == textAny:
		return !t.not
	case c.kind == textLiteral:
		return t.match(c.lit, b)
	case t.not || t.kind != textGlob || t.glob.tail == 0:
		return false
	}
	head, crosses := "", true // c is "*" alone: any string
	if c.kind == textGlob {
		if c.glob.tail == 0 {
			return false
		}
		head, crosses = c.glob.head, c.glob.tail == globAny
	}
	rest, ok := strings.CutPrefix(head, t.glob.head)
	return ok && (t.glob.tail == globAny || !crosses && !strings.Contains(rest, "/"))
}

// Budget bounds one decision, over all capabilities that are asked (section 5): nodes of the payload visited, and
// steps of comparing text. Once it is spent nothing matches any more.
type Budget struct {
	nodes, steps int
	spent        bool
}

const (
	maxNodes = 10_000
	// A step is about a nanosecond, or two. The largest single comparison that the bounds allow, 128 instructions over
	// 1,024 bytes, must fit.
	maxSteps     = 2*maxInsts*(maxRegexpText+1) + 1<<16
	regexpWeight = 2
)

// Comparing capabilities costs one budget for a whole grant or revocation: lists of alternatives multiply.
const (
	compareSteps  = 1 << 22
	compareWeight = 8
)

// NewComparison returns the budget of one grant or revocation.
func NewComparison() *Budget { return &Budget{nodes: compareSteps, steps: compareSteps} }

func newBudget() *Budget { return &Budget{nodes: maxNodes, steps: maxSteps} }

// Spent reports whether the budget did not suffice.
func (b *Budget) Spent() bool { return b.spent }

func (b *Budget) step(n int) bool {
	b.steps -= n
	b.spent = b.spent || b.steps < 0
	return !b.spent
}

func (b *Budget) node() bool {
	b.nodes--
	b.spent = b.spent || b.nodes < 0
	return !b.spent
}
