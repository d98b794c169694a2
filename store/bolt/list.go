package bolt

import (
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/RoaringBitmap/roaring/v2"
	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
)

// The bounds of store.CardQuery.
const (
	maxPage     = 1000
	maxPrefixes = 4
)

// List implements [store.Cards]. The index offers candidates in order; List then judges each candidate by its row.
func (c cards) List(ctx context.Context, q store.CardQuery) (store.CardPage, error) {
	if q.Limit < 1 || q.Limit > maxPage {
		return store.CardPage{}, errors.New("list cards: limit is not 1 to 1000")
	}
	if len(q.Prefixes) > maxPrefixes || slices.Contains(q.Prefixes, "") {
		return store.CardPage{}, errors.New("list cards: more than 4 prefixes, or an empty one")
	}
	tiers := q.Tiers
	if len(tiers) == 0 {
		tiers = []store.Tier{{}}
	}
	want := q.Limit + 1 // one more than the limit shows that there is a next page
	page := store.CardPage{Cards: make([]store.Card, 0, min(want, 128))}
	positions := make([]store.Position, 0, min(want, 128))
	slots := make([]slot, 0, min(want, 128))
	for tier := max(q.After.Tier, 0); tier < len(tiers) && len(page.Cards) < want; tier++ {
		from := uint64(1)
		if tier == q.After.Tier {
			from = min(q.After.Seq, math.MaxUint32) + 1
		}
		for more := true; more && from <= math.MaxUint32; {
			need := want - len(page.Cards)
			slots = c.s.index.candidates(slots[:0], q, tiers[:tier+1], slot(from), need)
			if err := c.judge(ctx, slots, q, tiers, tier, &page, &positions); err != nil {
				return store.CardPage{}, err
			}
			if more = len(slots) == need && len(page.Cards) < want; more {
				from = uint64(slots[len(slots)-1]) + 1
			}
		}
	}
	if len(page.Cards) == want {
		page.Cards = page.Cards[:q.Limit]
		page.Next = &positions[q.Limit-1]
	}
	return page, nil
}

// judge reads the rows of slots and appends the cards that are live and belong to tier. It matches a row in place, and
// copies only what the page shows.
func (c cards) judge(ctx context.Context, slots []slot, q store.CardQuery, tiers []store.Tier, tier int, page *store.CardPage, positions *[]store.Position) error {
	if len(slots) == 0 {
		return nil
	}
	return c.s.view(ctx, func(tx *bbolt.Tx) error {
		rows := bucketCards.in(tx)
		cursor := rows.b.Cursor() // one cursor for all rows, because get would create one per row
		key, terms := make([]byte, 0, 8), make([][]byte, 0, 64)
		for _, s := range slots {
			key = appendU64(key[:0], uint64(s))
			row, err := rows.at(cursor, key)
			if err == nil && !cardLive(row, q.Now) {
				continue
			}
			if err == nil {
				terms, err = cardTerms(terms[:0], uint64(s), row)
			}
			if err == nil && tierOf(terms, q, tiers) != tier {
				continue
			}
			card := store.Card{Seq: uint64(s)}
			if err == nil && len(page.Cards) < q.Limit { // the card after the limit only shows that there is a next page
				card, err = decodeCardForList(uint64(s), row)
			}
			if err != nil {
				c.s.damage.note("left out of a list", err)
				continue
			}
			page.Cards = append(page.Cards, card)
			*positions = append(*positions, store.Position{Tier: tier, Seq: card.Seq})
		}
		return nil
	})
}

// tierOf returns the first tier that a sorted set of terms matches, or -1.
func tierOf(terms [][]byte, q store.CardQuery, tiers []store.Tier) int {
	if !carries(terms, q.All) || slices.ContainsFunc(q.Prefixes, func(p string) bool { return !carriesPrefix(terms, p) }) {
		return -1
	}
	return slices.IndexFunc(tiers, func(t store.Tier) bool {
		return carries(terms, t.All) && (t.Prefix == "" || carriesPrefix(terms, t.Prefix))
	})
}

func carries(terms [][]byte, all []string) bool {
	for _, term := range all {
		if _, found := slices.BinarySearchFunc(terms, term, compareTerm); !found {
			return false
		}
	}
	return true
}

func carriesPrefix(terms [][]byte, prefix string) bool {
	i, _ := slices.BinarySearchFunc(terms, prefix, compareTerm)
	return i < len(terms) && len(terms[i]) >= len(prefix) && string(terms[i][:len(prefix)]) == prefix
}

// compareTerm compares a and b without copying: the compiler sees that the strings do not outlive the comparison.
func compareTerm(a []byte, b string) int {
	switch {
	case string(a) < b:
		return -1
	case string(a) > b:
		return 1
	}
	return 0
}

// maxProbes is the number of slots of the shortest list that are tested one by one against the other lists, which takes
// about 50 µs, before candidates computes the whole intersection.
const maxProbes = 1024

// candidates appends to dst at most n slots that are live, are not before from, and match q with the last of tiers but
// with no earlier tier. If it appends fewer than n, the list ends there.
func (ix *index) candidates(dst []slot, q store.CardQuery, tiers []store.Tier, from slot, n int) []slot {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	last, now := len(tiers)-1, nanos(q.Now)
	sets := ix.sets(q.All, q.Prefixes, tiers[last])
	if sets == nil {
		return dst
	}
	var without [][]*posting
	for _, t := range tiers[:last] {
		earlier := ix.sets(nil, nil, t)
		if t.Prefix == "" && len(t.All) == 0 {
			return dst // the earlier tier matches everything
		}
		if earlier != nil {
			without = append(without, earlier)
		}
	}
	var w walker
	w.start(sets[0], from)
	for tried := 0; len(dst) < n; tried++ {
		s, ok := w.next()
		if !ok {
			return dst
		}
		if tried == maxProbes && (len(sets) > 1 || len(without) > 0) && sets[0].remaining(s) > maxProbes {
			rest := intersect(sets)
			if rest.GetCardinality() > maxProbes { // fewer are cheaper to test one by one against the earlier tiers
				for _, earlier := range without {
					rest.AndNot(intersect(earlier))
				}
				without = nil
			}
			sets = []*posting{{many: rest}}
			w.start(sets[0], s)
			continue
		}
		if now < ix.expires.get(s) && inAll(sets[1:], s) && !slices.ContainsFunc(without, func(e []*posting) bool { return inAll(e, s) }) {
			dst = append(dst, s)
		}
	}
	return dst
}

// sets returns the lists whose intersection matches all, prefixes and t, the shortest first, or nil if one is empty.
func (ix *index) sets(all, prefixes []string, t store.Tier) []*posting {
	sets := make([]*posting, 0, len(all)+len(prefixes)+len(t.All)+1)
	for _, terms := range [2][]string{all, t.All} {
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

func inAll(sets []*posting, s slot) bool {
	for _, set := range sets {
		if !set.contains(s) {
			return false
		}
	}
	return true
}

// intersect returns a new bitmap of the slots that are in all sets. sets is not empty, and begins with the shortest.
func intersect(sets []*posting) *roaring.Bitmap {
	if len(sets) == 1 {
		return sets[0].bitmap().Clone()
	}
	both := roaring.And(sets[0].bitmap(), sets[1].bitmap())
	for _, set := range sets[2:] {
		both.And(set.bitmap())
	}
	return both
}

// Terms implements [store.Cards].
func (c cards) Terms(ctx context.Context, prefix, after string, limit int, now time.Time) ([]store.TermCount, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if limit < 1 {
		return nil, errLimit
	}
	var counts []store.TermCount
	for term := range c.s.index.termsAfter(prefix, after) {
		if n := c.s.index.countLive(term, nanos(now)); n > 0 {
			counts = append(counts, store.TermCount{Term: term, Count: n})
		}
		if len(counts) == limit {
			break
		}
	}
	return counts, nil
}

// termsAfter yields the terms that begin with prefix and follow last. It holds mu only while it looks up the next term.
func (ix *index) termsAfter(prefix, last string) iter.Seq[string] {
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

// countLive returns the number of slots that carry term and are live at now.
func (ix *index) countLive(term string, now int64) int {
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

// Count implements [store.Cards].
func (c cards) Count(ctx context.Context, now time.Time) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, at := 0, nanos(now)
	for _, expires := range c.s.index.expires.each {
		if at < expires {
			n++
		}
	}
	return n, nil
}
