package mew

import (
	"math/bits"
	"strings"
	"unicode/utf8"
)

// glob is a string pattern with wildcards: * and ? stay inside one path element, ** does not (section 5).
type glob struct {
	toks []globTok
	head string // what stands before the first wildcard
	tail rune   // '*' or globAny where the only wildcard is the last character, else 0
}

type globTok struct {
	wild rune // 0 for a literal; '?', '*', or globAny for **
	lit  rune
}

const globAny = 'W'

// isGlob says whether s has a wildcard.
func isGlob(s string) bool { return strings.ContainsAny(s, "*?") }

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
	if last := g.toks[len(g.toks)-1].wild; (last == '*' || last == globAny) && utf8.RuneCountInString(g.head) == len(g.toks)-1 {
		g.tail = last
	}
	return g
}

// match walks all places in the pattern at once, so it neither recurses nor goes back: its cost is the length of s
// times the places alive, and it is charged to b.
func (g *glob) match(s string, b *budget) bool {
	if !strings.HasPrefix(s, g.head) {
		return false
	}
	if g.tail != 0 {
		rest := s[len(g.head):]
		return b.step(len(rest)) && (g.tail == globAny || strings.IndexByte(rest, '/') < 0)
	}
	var alive places
	g.arrive(&alive, 0)
	for _, r := range s {
		var next places
		cost := 0
		for w, word := range alive {
			for ; word != 0; word &= word - 1 {
				cost++
				at := w<<6 + bits.TrailingZeros64(word)
				if at == len(g.toks) {
					continue
				}
				switch t := g.toks[at]; {
				case t.wild == globAny, t.wild == '*' && r != '/':
					g.arrive(&next, at) // it may end here or go on
				case t.wild == '?' && r != '/', t.wild == 0 && t.lit == r:
					g.arrive(&next, at+1)
				}
			}
		}
		if cost == 0 || !b.step(cost) {
			return false
		}
		alive = next
	}
	return alive.has(len(g.toks))
}

// arrive adds a place, and the one behind it where a wildcard may stand for nothing. No two such wildcards follow
// each other: newGlob has joined them.
func (g *glob) arrive(p *places, at int) {
	p.add(at)
	if at < len(g.toks) && (g.toks[at].wild == '*' || g.toks[at].wild == globAny) {
		p.add(at + 1)
	}
}

// places is a set of positions in a pattern of at most maxPattern characters.
type places [maxPattern/64 + 1]uint64

func (p *places) add(i int)      { p[i>>6] |= 1 << (i & 63) }
func (p *places) has(i int) bool { return p[i>>6]&(1<<(i&63)) != 0 }
