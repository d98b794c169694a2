package bolt

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/RoaringBitmap/roaring/v2"
)

// index finds slots by terms. The writer changes it, one card at a time under mu; readers hold mu for as long as
// it takes to gather one page of candidates. A renewal with the same terms takes no lock at all.
type index struct {
	expires expiries

	mu    sync.RWMutex
	terms dict
	all   posting // every slot that is listed

	// prefixes holds the unions of term ranges that are too long to gather for a query. They are exact: the
	// writer keeps them up to date. Readers add to the map under prefixMu while they read-hold mu.
	prefixMu sync.Mutex
	prefixes map[string]*roaring.Bitmap
}

func newIndex() *index {
	return &index{prefixes: make(map[string]*roaring.Bitmap)}
}

// put lists a card, or moves it from its old terms to new ones. Both are sorted sets; old counts only where the
// slot is listed.
func (ix *index) put(s slot, old, terms []string, expires int64) {
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

// drop takes a card out.
func (ix *index) drop(s slot, terms []string) {
	if ix.expires.get(s) == 0 {
		return
	}
	ix.expires.set(s, 0)
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.change(s, terms, nil)
	ix.all.remove(s)
}

// change needs mu.
func (ix *index) change(s slot, old, terms []string) {
	for gone, term := range differing(old, terms) {
		if gone {
			ix.terms.remove(term, s)
		} else {
			ix.terms.add(term, s)
		}
		for prefix, set := range ix.prefixes {
			switch {
			case !strings.HasPrefix(term, prefix):
			case !gone:
				set.Add(s)
			case !hasPrefix(terms, prefix):
				set.Remove(s)
			}
		}
	}
}

// differing lists what is in only one of two sorted sets: true for what is only in old.
func differing(old, terms []string) func(yield func(bool, string) bool) {
	return func(yield func(bool, string) bool) {
		for len(old) > 0 || len(terms) > 0 {
			order := 0
			switch {
			case len(old) == 0:
				order = 1
			case len(terms) == 0:
				order = -1
			default:
				order = cmp.Compare(old[0], terms[0])
			}
			switch {
			case order < 0:
				if !yield(true, old[0]) {
					return
				}
				old = old[1:]
			case order > 0:
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

// hasPrefix looks into a sorted set.
func hasPrefix(terms []string, prefix string) bool {
	i, _ := slices.BinarySearch(terms, prefix)
	return i < len(terms) && strings.HasPrefix(terms[i], prefix)
}

const (
	prefixGather = 4096 // slots that are gathered for one query
	prefixTerms  = 1024 // terms that are looked at for one query
	prefixKept   = 128  // unions kept, of at most 128 KiB for each million cards
)

// prefixed is the set of slots that carry a term beginning with prefix. It needs mu, read or write.
func (ix *index) prefixed(prefix string) *posting {
	ix.prefixMu.Lock()
	kept := ix.prefixes[prefix]
	ix.prefixMu.Unlock()
	if kept != nil {
		return &posting{many: kept}
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
	case slots <= prefixGather && len(lists) <= prefixTerms:
		few := make([]slot, 0, slots)
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
	union := roaring.New()
	for _, list := range lists {
		list.addTo(union)
	}
	ix.prefixMu.Lock()
	defer ix.prefixMu.Unlock()
	for other := range ix.prefixes {
		if len(ix.prefixes) < prefixKept {
			break
		}
		delete(ix.prefixes, other) // any: the map's order is random
	}
	ix.prefixes[prefix] = union
	return &posting{many: union}
}

// expiries holds when each slot stops being listed: 0 for a slot that is not, never for one that stays. Anybody
// may read; the writer alone sets.
type expiries struct {
	chunks atomic.Pointer[[]*expiryChunk]
}

const expiryChunkSize = 1 << 13

type expiryChunk [expiryChunkSize]atomic.Int64

func (e *expiries) get(s slot) int64 {
	chunks := e.chunks.Load()
	i := int(s / expiryChunkSize)
	if chunks == nil || i >= len(*chunks) || (*chunks)[i] == nil {
		return 0
	}
	return (*chunks)[i][s%expiryChunkSize].Load()
}

func (e *expiries) set(s slot, at int64) {
	var have []*expiryChunk
	if p := e.chunks.Load(); p != nil {
		have = *p
	}
	i := int(s / expiryChunkSize)
	if i >= len(have) || have[i] == nil {
		if at == 0 {
			return
		}
		grown := make([]*expiryChunk, max(len(have), i+1))
		copy(grown, have)
		grown[i] = new(expiryChunk)
		e.chunks.Store(&grown)
		have = grown
	}
	have[i][s%expiryChunkSize].Store(at)
}

// each lists the slots that are listed, with their ends.
func (e *expiries) each(yield func(slot, int64) bool) {
	chunks := e.chunks.Load()
	if chunks == nil {
		return
	}
	for i, chunk := range *chunks {
		if chunk == nil {
			continue
		}
		for j := range chunk {
			if at := chunk[j].Load(); at != 0 && !yield(slot(i*expiryChunkSize+j), at) {
				return
			}
		}
	}
}
