package cardindex

import (
	"bytes"
	"hash/maphash"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
)

// Part gathers a range of cards for [Join]. The zero value is empty. It numbers the terms, and has no pointer for a term or
// a card, because a directory of a million cards has twenty million occurrences of terms.
type Part struct {
	cards []card
	uses  []uint32 // the terms of all cards, card by card

	text  []byte  // all terms
	ends  []int   // of each term in text
	table []place // by hash; a power of two in size, at most three quarters full

	sorted []uint32 // the terms, sorted; set by Join, like the fields below
	slots  []Slot   // those of the first term, then those of the second
	lists  []int    // the end of each term in slots
}

type card struct {
	slot    Slot
	terms   uint32 // number of its terms
	expires int64
}

// place is a place in a hash table. It is empty if next is 0.
type place struct{ hash, next uint32 } // next is the number of the term plus 1

var seed = maphash.MakeSeed()

// Len returns the number of cards in the part.
func (p *Part) Len() int { return len(p.cards) }

// Add adds a card, and copies its terms. The caller must add cards in the order of their slots.
func (p *Part) Add(s Slot, expires int64, terms [][]byte) {
	p.cards = append(p.cards, card{s, uint32(len(terms)), expires})
	for _, term := range terms {
		p.uses = append(p.uses, p.number(term))
	}
}

// number returns the number of a term.
func (p *Part) number(term []byte) uint32 {
	if 4*len(p.ends) >= 3*len(p.table) {
		p.grow()
	}
	hash := uint32(maphash.Bytes(seed, term))
	mask := uint32(len(p.table) - 1)
	i := hash & mask
	for ; p.table[i].next > 0; i = (i + 1) & mask {
		if e := p.table[i]; e.hash == hash && bytes.Equal(p.term(e.next-1), term) {
			return e.next - 1
		}
	}
	p.text = append(p.text, term...)
	p.ends = append(p.ends, len(p.text))
	p.table[i] = place{hash, uint32(len(p.ends))}
	return uint32(len(p.ends) - 1)
}

func (p *Part) grow() {
	old := p.table
	p.table = make([]place, max(1024, 2*len(old)))
	mask := uint32(len(p.table) - 1)
	for _, e := range old {
		i := e.hash & mask
		for ; p.table[i].next > 0; i = (i + 1) & mask {
		}
		if e.next > 0 {
			p.table[i] = e
		}
	}
}

func (p *Part) term(n uint32) []byte {
	start := 0
	if n > 0 {
		start = p.ends[n-1]
	}
	return p.text[start:p.ends[n]]
}

// list returns the slots of a term, after the call of finish.
func (p *Part) list(n uint32) []Slot {
	start := 0
	if n > 0 {
		start = p.lists[n-1]
	}
	return p.slots[start:p.lists[n]]
}

// finish sorts the terms and makes the lists of their slots.
func (p *Part) finish() {
	p.sorted = make([]uint32, len(p.ends))
	for n := range p.sorted {
		p.sorted[n] = uint32(n)
	}
	slices.SortFunc(p.sorted, func(a, b uint32) int { return bytes.Compare(p.term(a), p.term(b)) })
	p.lists, p.slots = make([]int, len(p.ends)+1), make([]Slot, len(p.uses))
	for _, n := range p.uses {
		p.lists[n+1]++
	}
	for n := range p.ends { // now p.lists has the beginnings of the lists
		p.lists[n+1] += p.lists[n]
	}
	uses := p.uses
	for _, c := range p.cards {
		for _, n := range uses[:c.terms] {
			p.slots[p.lists[n]] = c.slot
			p.lists[n]++ // at last the end of the list
		}
		uses = uses[c.terms:]
	}
}

// manyCards is the number of cards from which on [Join] gives memory back to the system at once.
const manyCards = 50_000

// Join makes one index from parts, which must be in the order of their slots. It uses all processors, and empties the
// parts, which take more memory than the index.
func Join(parts []Part) *Index {
	ix := New()
	var work sync.WaitGroup
	for i := range parts {
		work.Go(parts[i].finish)
	}
	for i := range parts {
		for _, c := range parts[i].cards { // finish changes the rest of the part meanwhile
			ix.all.add(c.slot)
			ix.expires.set(c.slot, c.expires)
		}
	}
	work.Wait()
	merged := mergeTerms(parts)
	count := len(merged) / len(parts)
	terms, lists := make([]string, count), make([]*posting, count)
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		work.Go(func() {
			var slots []Slot
			for i := w * count / workers; i < (w+1)*count/workers; i++ {
				slots = slots[:0]
				for k, n := range merged[i*len(parts):][:len(parts)] {
					if n != noTerm {
						slots, terms[i] = append(slots, parts[k].list(n)...), string(parts[k].term(n))
					}
				}
				lists[i] = newPosting(slots)
			}
		})
	}
	work.Wait()
	for i, term := range terms {
		ix.terms.appendLast(term, lists[i])
	}
	clear(parts)
	if ix.Len() >= manyCards {
		debug.FreeOSMemory()
	}
	return ix
}

// noTerm stands for a term that a part does not have.
const noTerm = math.MaxUint32

// mergeTerms returns, for each term in order, its numbers in all parts.
func mergeTerms(parts []Part) (merged []uint32) {
	next := make([][]byte, len(parts)) // nil at the end
	for i, p := range parts {
		if len(p.sorted) > 0 {
			next[i] = p.term(p.sorted[0])
		}
	}
	for {
		var least []byte
		for _, term := range next {
			if term != nil && (least == nil || bytes.Compare(term, least) < 0) {
				least = term
			}
		}
		if least == nil {
			return merged
		}
		for i := range parts {
			p, n := &parts[i], uint32(noTerm)
			if next[i] != nil && bytes.Equal(next[i], least) {
				n, p.sorted, next[i] = p.sorted[0], p.sorted[1:], nil
				if len(p.sorted) > 0 {
					next[i] = p.term(p.sorted[0])
				}
			}
			merged = append(merged, n)
		}
	}
}
