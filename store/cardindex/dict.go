package cardindex

import (
	"hash/maphash"
	"iter"
	"slices"
	"sort"
	"strings"
)

// blockMax is the largest number of terms in a block. It bounds the number of terms that an insertion must move.
const blockMax = 512

// dict is the sorted dictionary of terms: a list of sorted blocks. Index.mu guards it.
type dict struct {
	blocks []*block

	// recent has terms that cards were added to, by their hashes, because most terms of a new card are on many others.
	recent [1 << 12]recentTerm
}

type recentTerm struct {
	term string
	list *posting
}

// recentOf returns the place of a term in recent, where another term may be.
func (d *dict) recentOf(term string) *recentTerm {
	return &d.recent[maphash.String(seed, term)%uint64(len(d.recent))]
}

// block is a range of terms with their posting lists.
type block struct {
	terms []string
	lists []*posting
}

// seek returns the position of term, or the position at which it would be inserted.
func (d *dict) seek(term string) (blk, pos int, found bool) {
	blk = sort.Search(len(d.blocks), func(i int) bool { return d.blocks[i].terms[0] > term })
	if blk > 0 {
		blk--
	}
	if len(d.blocks) == 0 {
		return 0, 0, false
	}
	pos, found = slices.BinarySearch(d.blocks[blk].terms, term)
	return blk, pos, found
}

func (d *dict) get(term string) *posting {
	blk, pos, found := d.seek(term)
	if !found {
		return nil
	}
	return d.blocks[blk].lists[pos]
}

func (d *dict) add(term string, s Slot) {
	recent := d.recentOf(term)
	if recent.term == term && recent.list != nil {
		recent.list.add(s)
		return
	}
	blk, pos, found := d.seek(term)
	if !found {
		d.insert(blk, pos, strings.Clone(term)) // copied, because term shares memory with a whole row
		blk, pos, _ = d.seek(term)
	}
	b := d.blocks[blk]
	b.lists[pos].add(s)
	recent.term, recent.list = b.terms[pos], b.lists[pos]
}

// insert inserts a term with an empty list, at a position from seek. It splits a block that has become too large.
func (d *dict) insert(blk, pos int, term string) {
	if len(d.blocks) == 0 {
		d.blocks = append(d.blocks, &block{})
	}
	b := d.blocks[blk]
	b.terms = slices.Insert(b.terms, pos, term)
	b.lists = slices.Insert(b.lists, pos, new(posting))
	if len(b.terms) <= blockMax {
		return
	}
	half := len(b.terms) / 2
	upper := &block{terms: slices.Clone(b.terms[half:]), lists: slices.Clone(b.lists[half:])}
	b.terms, b.lists = slices.Delete(b.terms, half, len(b.terms)), slices.Delete(b.lists, half, len(b.lists))
	d.blocks = slices.Insert(d.blocks, blk+1, upper)
}

// remove removes s from the list of term, and the term if its list is then empty.
func (d *dict) remove(term string, s Slot) {
	blk, pos, found := d.seek(term)
	if !found {
		return
	}
	b := d.blocks[blk]
	b.lists[pos].remove(s)
	if b.lists[pos].len() > 0 {
		return
	}
	if recent := d.recentOf(term); recent.list == b.lists[pos] {
		recent.term, recent.list = "", nil
	}
	b.terms = slices.Delete(b.terms, pos, pos+1)
	b.lists = slices.Delete(b.lists, pos, pos+1)
	if len(b.terms) == 0 {
		d.blocks = slices.Delete(d.blocks, blk, blk+1)
	}
}

// from yields the terms that are not before start, in order.
func (d *dict) from(start string) iter.Seq2[string, *posting] {
	return func(yield func(string, *posting) bool) {
		if len(d.blocks) == 0 {
			return
		}
		blk, pos, _ := d.seek(start)
		for ; blk < len(d.blocks); blk, pos = blk+1, 0 {
			b := d.blocks[blk]
			for ; pos < len(b.terms); pos++ {
				if !yield(b.terms[pos], b.lists[pos]) {
					return
				}
			}
		}
	}
}

// appendLast adds a term that sorts after all others. It is for filling a dictionary in bulk.
func (d *dict) appendLast(term string, p *posting) {
	const fill = blockMax * 3 / 4
	if n := len(d.blocks); n == 0 || len(d.blocks[n-1].terms) == fill {
		d.blocks = append(d.blocks, &block{terms: make([]string, 0, fill), lists: make([]*posting, 0, fill)})
	}
	b := d.blocks[len(d.blocks)-1]
	b.terms = append(b.terms, term)
	b.lists = append(b.lists, p)
}
