// Package cardindex finds cards by their terms, in memory. Engines of the store keep one [Index] each, next to the
// cards. The index is exact for the changes that it has. A card may change before the engine reads its row, so the engine
// must check the row's expiry, and its terms unless it knows that no change was committed meanwhile.
package cardindex

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/RoaringBitmap/roaring/v2"
)

// Index finds slots, the numbers of cards, by terms. Only one goroutine at a time may change it; several may read it
// meanwhile. Changing the terms of a card takes mu, and so does gathering a page of candidates. A renewal with the same
// terms takes no lock. Start with [New].
type Index struct {
	expires expiries

	mu    sync.RWMutex
	terms dict
	all   posting // all slots that are listed

	// prefixes caches, for a prefix of many terms, the union of their lists. The writer keeps the unions exact. Readers
	// add to the map under prefixMu while they hold mu for reading.
	prefixMu sync.Mutex
	prefixes map[string]*roaring.Bitmap
}

// New returns an empty index.
func New() *Index {
	return &Index{prefixes: make(map[string]*roaring.Bitmap)}
}

// Put lists a card under terms, or moves a listed card from old to terms. Both are sorted. If the card is not listed,
// Put ignores old.
func (ix *Index) Put(s Slot, old, terms []string, expires int64) {
	listed := ix.expires.get(s) != 0
	if listed && slices.Equal(old, terms) {
		ix.expires.set(s, expires)
		return
	}
	if !listed {
		old = nil
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.change(s, old, terms)
	ix.all.add(s)
	ix.expires.set(s, expires)
}

// Drop removes a card from the lists of its terms.
func (ix *Index) Drop(s Slot, terms []string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.expires.get(s) == 0 {
		return
	}
	ix.expires.set(s, 0)
	ix.change(s, terms, nil)
	ix.all.remove(s)
}

// change replaces the terms of a card. The caller holds mu.
func (ix *Index) change(s Slot, old, terms []string) {
	for removed, term := range Diff(old, terms) {
		if removed {
			ix.terms.remove(term, s)
		} else {
			ix.terms.add(term, s)
		}
		for prefix, set := range ix.prefixes {
			switch {
			case !strings.HasPrefix(term, prefix):
			case !removed:
				set.Add(s)
			case !hasPrefix(terms, prefix): // it was the last term of the card with this prefix
				set.Remove(s)
			}
		}
	}
}

// Diff yields the terms that are in only one of two sorted sets: with true if the term is only in old, and with false if
// it is only in terms.
func Diff(old, terms []string) func(yield func(bool, string) bool) {
	return func(yield func(bool, string) bool) {
		for len(old) > 0 || len(terms) > 0 {
			switch {
			case len(terms) == 0 || len(old) > 0 && old[0] < terms[0]:
				if !yield(true, old[0]) {
					return
				}
				old = old[1:]
			case len(old) == 0 || terms[0] < old[0]:
				if !yield(false, terms[0]) {
					return
				}
				terms = terms[1:]
			default:
				old, terms = old[1:], terms[1:]
			}
		}
	}
}

// hasPrefix reports whether a term of a sorted set begins with prefix.
func hasPrefix(terms []string, prefix string) bool {
	i, _ := slices.BinarySearch(terms, prefix)
	return i < len(terms) && strings.HasPrefix(terms[i], prefix)
}

const (
	// maxMergedSlots and maxMergedTerms are the sizes up to which the lists of a prefix's terms are merged again for each
	// query. A larger union is cached.
	maxMergedSlots = 4096
	maxMergedTerms = 1024

	maxUnions = 128 // cached unions, each of at most 128 KiB per million cards
)

// withPrefix returns the slots that carry a term beginning with prefix. The caller holds mu, for reading or writing.
func (ix *Index) withPrefix(prefix string) *posting {
	ix.prefixMu.Lock()
	union := ix.prefixes[prefix]
	ix.prefixMu.Unlock()
	if union != nil {
		return &posting{many: union}
	}
	var lists []*posting
	slots := 0
	for term, list := range ix.terms.from(prefix) {
		if !strings.HasPrefix(term, prefix) {
			break
		}
		lists = append(lists, list)
		slots += list.len()
	}
	switch {
	case len(lists) == 0:
		return nil
	case len(lists) == 1:
		return lists[0]
	case slots <= maxMergedSlots && len(lists) <= maxMergedTerms:
		few := make([]Slot, 0, slots)
		for _, list := range lists {
			if list.many != nil {
				few = append(few, list.many.ToArray()...)
			} else {
				few = append(few, list.few...)
			}
		}
		slices.Sort(few)
		return &posting{few: slices.Compact(few)}
	}
	union = roaring.New()
	for _, list := range lists {
		list.addTo(union)
	}
	ix.prefixMu.Lock()
	defer ix.prefixMu.Unlock()
	for other := range ix.prefixes {
		if len(ix.prefixes) < maxUnions {
			break
		}
		delete(ix.prefixes, other) // removes a random one, because the order of a map is random
	}
	ix.prefixes[prefix] = union
	return &posting{many: union}
}

// expiries holds the time at which the card of each slot expires, in Unix nanoseconds. It is 0 for a slot that is not
// listed. Only the writer calls set; get and each are safe for concurrent use.
type expiries struct {
	chunks atomic.Pointer[[]*expiryChunk]
}

const expiryChunkSize = 1 << 13 // slots

type expiryChunk [expiryChunkSize]atomic.Int64

func (e *expiries) get(s Slot) int64 {
	chunks := e.chunks.Load()
	i := int(s / expiryChunkSize)
	if chunks == nil || i >= len(*chunks) || (*chunks)[i] == nil {
		return 0
	}
	return (*chunks)[i][s%expiryChunkSize].Load()
}

func (e *expiries) set(s Slot, expires int64) {
	var chunks []*expiryChunk
	if p := e.chunks.Load(); p != nil {
		chunks = *p
	}
	i := int(s / expiryChunkSize)
	if i >= len(chunks) || chunks[i] == nil {
		if expires == 0 {
			return
		}
		grown := make([]*expiryChunk, max(len(chunks), i+1))
		copy(grown, chunks)
		grown[i] = new(expiryChunk)
		e.chunks.Store(&grown)
		chunks = grown
	}
	chunks[i][s%expiryChunkSize].Store(expires)
}

// each yields the listed slots and the times at which their cards expire.
func (e *expiries) each(yield func(Slot, int64) bool) {
	chunks := e.chunks.Load()
	if chunks == nil {
		return
	}
	for i, chunk := range *chunks {
		if chunk == nil {
			continue
		}
		for j := range chunk {
			if expires := chunk[j].Load(); expires != 0 && !yield(Slot(i*expiryChunkSize+j), expires) {
				return
			}
		}
	}
}

// Len returns the number of slots that are listed.
func (ix *Index) Len() int {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	return ix.all.len()
}

// Ends yields the listed slots and the times at which their cards expire, in Unix nanoseconds.
func (ix *Index) Ends(yield func(Slot, int64) bool) { ix.expires.each(yield) }
