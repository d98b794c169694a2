package capability

import (
	"math/bits"
	"strings"
	"unicode/utf8"
)

// glob is a string pattern with wildcards: * and ? match within one path element, ** also across elements (MEW-55).
type glob struct {
	toks []globTok
	head string // the text before the first wildcard
	only rune   // '*' or globAny, if that is the only wildcard; otherwise 0
	tail string // the text after the wildcard, if only is not 0
}

// trailingWildcard returns the only wildcard of a pattern that ends with it; otherwise 0.
func (g *glob) trailingWildcard() rune {
	if g.tail != "" {
		return 0
	}
	return g.only
}

type globTok struct {
	wild rune // 0 for a literal; '?', '*', or globAny for **
	lit  rune
}

// globAny stands for **.
const globAny = 'W'

// A [Budget] counts steps of about a nanosecond.
const (
	globWeight  = 5  // steps for each character and each position in the pattern that is active for it
	searchBytes = 16 // bytes that a search for one byte covers in a step
)

func isGlob(s string) bool { return strings.ContainsAny(s, "*?") }

// newGlob compiles a pattern with at least one wildcard.
func newGlob(s string) *glob {
	g := &glob{}
	first := strings.IndexAny(s, "*?")
	g.head = s[:first]
	for rest := s; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		rest = rest[n:]
		switch r {
		case '?':
			g.toks = append(g.toks, globTok{wild: '?'})
		case '*':
			run := len(rest) - len(strings.TrimLeft(rest, "*"))
			rest = rest[run:]
			wild := '*'
			if run > 0 {
				wild = globAny
			}
			g.toks = append(g.toks, globTok{wild: wild})
		default:
			g.toks = append(g.toks, globTok{lit: r})
		}
	}
	wildcards := 0
	for _, t := range g.toks {
		if t.wild != 0 {
			wildcards++
		}
	}
	if at := utf8.RuneCountInString(g.head); wildcards == 1 && g.toks[at].wild != '?' {
		g.only, g.tail = g.toks[at].wild, strings.TrimLeft(s[first:], "*")
	}
	return g
}

// match reports whether s matches. It follows all active positions in the pattern at once, so it neither recurses nor
// backtracks. Its cost, which it charges to b, is the length of s times the active positions.
func (g *glob) match(s string, b *Budget) bool {
	if !strings.HasPrefix(s, g.head) {
		return false
	}
	if g.only != 0 {
		rest, ok := strings.CutSuffix(s[len(g.head):], g.tail)
		return ok && b.takeSteps(len(rest)/searchBytes) && (g.only == globAny || strings.IndexByte(rest, '/') < 0)
	}
	var active positions
	g.arrive(&active, 0)
	for _, r := range s {
		var next positions
		cost := 0
		for w, word := range active {
			for ; word != 0; word &= word - 1 {
				cost++
				at := w<<6 + bits.TrailingZeros64(word)
				if at == len(g.toks) {
					continue
				}
				switch t := g.toks[at]; {
				case t.wild == globAny, t.wild == '*' && r != '/':
					g.arrive(&next, at) // the wildcard may end here or go on
				case t.wild == '?' && r != '/', t.wild == 0 && t.lit == r:
					g.arrive(&next, at+1)
				}
			}
		}
		if cost == 0 || !b.takeSteps(globWeight*cost) {
			return false
		}
		active = next
	}
	return active.has(len(g.toks))
}

// arrive adds a position and, if * or ** is there, which may match nothing, the next position. Two of these never follow
// each other, because newGlob joins them.
func (g *glob) arrive(p *positions, at int) {
	p.add(at)
	if at < len(g.toks) && (g.toks[at].wild == '*' || g.toks[at].wild == globAny) {
		p.add(at + 1)
	}
}

// positions is a set of positions in a pattern of at most maxPattern characters.
type positions [maxPattern/64 + 1]uint64

func (p *positions) add(i int)      { p[i>>6] |= 1 << (i & 63) }
func (p *positions) has(i int) bool { return p[i>>6]&(1<<(i&63)) != 0 }
