package cardindex

import (
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
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

// Add adds a card, and copies its terms. The caller must add cards in the order of their slots.
func (p *Part) Add(s Slot, expires int64, terms [][]byte) {
	if p.lists == nil {
		p.lists = make(map[string]*[]Slot)
	}
	p.cards = append(p.cards, card{s, expires})
	for _, term := range terms {
		list := p.lists[string(term)]
		if list == nil {
			list = new([]Slot)
			p.lists[string(term)] = list
		}
		*list = append(*list, s)
	}
}

// manyCards is the number of cards from which on [Join] gives memory back to the system at once.
const manyCards = 50_000

// Join makes one index from parts, which must be in the order of their slots. It uses all processors, and empties the
// parts, which take more memory than the index.
func Join(parts []Part) *Index {
	ix := New()
	sorted := make([][]string, len(parts))
	var work sync.WaitGroup
	for i := range parts {
		work.Go(func() { sorted[i] = slices.Sorted(maps.Keys(parts[i].lists)) })
	}
	for _, p := range parts {
		for _, c := range p.cards {
			ix.all.add(c.slot)
			ix.expires.set(c.slot, c.expires)
		}
	}
	work.Wait()
	terms := mergeSorted(sorted)
	lists := make([]*posting, len(terms))
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		work.Go(func() {
			var slots []Slot
			for i := w * len(terms) / workers; i < (w+1)*len(terms)/workers; i++ {
				slots = slots[:0]
				for _, p := range parts {
					if list := p.lists[terms[i]]; list != nil {
						slots = append(slots, *list...)
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

// mergeSorted merges sorted lists without repetitions. It empties the lists.
func mergeSorted(lists [][]string) (merged []string) {
	for {
		least, found := "", false
		for _, l := range lists {
			if len(l) > 0 && (!found || l[0] < least) {
				least, found = l[0], true
			}
		}
		if !found {
			return merged
		}
		merged = append(merged, least)
		for i, l := range lists {
			if len(l) > 0 && l[0] == least {
				lists[i] = l[1:]
			}
		}
	}
}
