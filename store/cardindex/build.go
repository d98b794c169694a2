package cardindex

import (
	"maps"
	"slices"
	"strings"

	"github.com/RoaringBitmap/roaring/v2"
)

// Part gathers a range of cards for [Join]. The zero value is empty.
type Part struct {
	lists map[string]*[]Slot // slots by term
	cards []card
}

type card struct {
	slot    Slot
	expires int64
}

// Len returns the number of cards in the part.
func (p *Part) Len() int { return len(p.cards) }

// Add adds a card. Cards are added in the order of their slots.
func (p *Part) Add(s Slot, expires int64, terms []string) {
	if p.lists == nil {
		p.lists = make(map[string]*[]Slot)
	}
	p.cards = append(p.cards, card{s, expires})
	for _, term := range terms {
		list := p.lists[term]
		if list == nil {
			list = new([]Slot)
			p.lists[strings.Clone(term)] = list
		}
		*list = append(*list, s)
	}
}

// Join makes one index from parts, which must be in the order of their slots.
func Join(parts []Part) *Index {
	ix := New()
	terms := make(map[string][]Slot)
	for _, p := range parts {
		for _, c := range p.cards {
			ix.all.add(c.slot)
			ix.expires.set(c.slot, c.expires)
		}
		for term, list := range p.lists {
			terms[term] = append(terms[term], *list...)
		}
	}
	for _, term := range slices.Sorted(maps.Keys(terms)) {
		ix.terms.appendLast(term, newPosting(terms[term]))
	}
	return ix
}

// Expunge removes slots from the lists of all terms.
func (ix *Index) Expunge(slots *roaring.Bitmap) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for it := slots.Iterator(); it.HasNext(); {
		ix.expires.set(it.Next(), 0)
	}
	clear(ix.prefixes)
	ix.all.removeAll(slots)
	kept := dict{}
	for term, list := range ix.terms.from("") {
		if list.removeAll(slots); list.len() > 0 {
			kept.appendLast(term, list)
		}
	}
	ix.terms = kept
}

func (p *posting) removeAll(slots *roaring.Bitmap) {
	if p.many == nil {
		p.few = slices.DeleteFunc(p.few, slots.Contains)
		return
	}
	if p.many.AndNot(slots); p.many.IsEmpty() {
		p.many = nil
	}
}
