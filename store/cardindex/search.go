package cardindex

import (
	"iter"
	"slices"
	"strings"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/agentmesh/agentmesh/store"
)

// maxProbes bounds the slots of the shortest list that [Index.Candidates] tests one by one against the other lists, which
// takes about 50 µs. If more are left, it computes the whole intersection.
const maxProbes = 1024

// Candidates appends to dst, in order, the slots (the numbers of cards) from start on that are live at now and match
// q.All, q.Prefixes and the last of tiers, but no earlier tier. It stops when dst has n slots. If dst has fewer, no
// candidates follow.
func (ix *Index) Candidates(dst []Slot, q store.CardQuery, tiers []store.Tier, now int64, start Slot, n int) []Slot {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	last := len(tiers) - 1
	sets := ix.findSets(q.All, q.Prefixes, tiers[last])
	if sets == nil {
		return dst
	}
	var excluded [][]*posting // the sets of each earlier tier
	for _, t := range tiers[:last] {
		earlier := ix.findSets(nil, nil, t)
		if t.Prefix == "" && len(t.All) == 0 {
			return dst // the earlier tier matches everything
		}
		if earlier != nil {
			excluded = append(excluded, earlier)
		}
	}
	var w walker
	w.start(sets[0], start)
	for tried := 0; len(dst) < n; tried++ {
		s, ok := w.next()
		if !ok {
			return dst
		}
		// If testing slots one by one takes too long, compute the rest of the intersection at once.
		if tried == maxProbes && (len(sets) > 1 || len(excluded) > 0) && sets[0].remaining(s) > maxProbes {
			matches := intersect(sets)
			if matches.GetCardinality() > maxProbes { // testing fewer slots one by one against the earlier tiers is cheaper
				for _, earlier := range excluded {
					matches.AndNot(intersect(earlier))
				}
				excluded = nil
			}
			sets = []*posting{{many: matches}}
			w.start(sets[0], s)
			continue
		}
		if now < ix.expires.get(s) && inAll(sets[1:], s) && !slices.ContainsFunc(excluded, func(e []*posting) bool { return inAll(e, s) }) {
			dst = append(dst, s)
		}
	}
	return dst
}

// findSets returns the sets whose intersection matches terms, prefixes and t, the shortest first. If one of them is
// empty, findSets returns nil.
func (ix *Index) findSets(terms, prefixes []string, t store.Tier) []*posting {
	sets := make([]*posting, 0, len(terms)+len(prefixes)+len(t.All)+1)
	for _, terms := range [2][]string{terms, t.All} {
		for _, term := range terms {
			list := ix.terms.get(term)
			if list == nil {
				return nil
			}
			if !slices.Contains(sets, list) {
				sets = append(sets, list)
			}
		}
	}
	if t.Prefix != "" {
		prefixes = append(prefixes[:len(prefixes):len(prefixes)], t.Prefix)
	}
	for _, prefix := range prefixes {
		list := ix.withPrefix(prefix)
		if list == nil {
			return nil
		}
		sets = append(sets, list)
	}
	if len(sets) == 0 {
		return append(sets, &ix.all)
	}
	slices.SortFunc(sets, func(a, b *posting) int { return a.len() - b.len() })
	return sets
}

func inAll(sets []*posting, s Slot) bool {
	for _, set := range sets {
		if !set.contains(s) {
			return false
		}
	}
	return true
}

// intersect returns a new bitmap of the slots in all sets. sets is not empty and begins with the shortest set.
func intersect(sets []*posting) *roaring.Bitmap {
	if len(sets) == 1 {
		return sets[0].bitmap().Clone()
	}
	result := roaring.And(sets[0].bitmap(), sets[1].bitmap())
	for _, set := range sets[2:] {
		result.And(set.bitmap())
	}
	return result
}

// TermsAfter yields, in order, the terms after last that begin with prefix. It holds mu only to look up a term.
func (ix *Index) TermsAfter(prefix, last string) iter.Seq[string] {
	next := func() (string, bool) {
		ix.mu.RLock()
		defer ix.mu.RUnlock()
		for term := range ix.terms.from(max(prefix, last)) {
			if term != last {
				return term, strings.HasPrefix(term, prefix)
			}
		}
		return "", false
	}
	return func(yield func(string) bool) {
		for term, ok := next(); ok && yield(term); term, ok = next() {
			last = term
		}
	}
}

// CountLive returns the number of slots that carry term and are live at now.
func (ix *Index) CountLive(term string, now int64) int {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	list := ix.terms.get(term)
	if list == nil {
		return 0
	}
	n := 0
	var w walker
	w.start(list, 0)
	for s, ok := w.next(); ok; s, ok = w.next() {
		if now < ix.expires.get(s) {
			n++
		}
	}
	return n
}
