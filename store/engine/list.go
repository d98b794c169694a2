package engine

import (
	"math"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
)

// CardMatch takes the row of a card for [ListCards].
type CardMatch func(s cardindex.Slot, row []byte, exact bool, err error)

// ListCards returns a page of live cards: first those that match the first of q.Tiers, then those of the second, and so
// on. The index offers candidates in order, and ListCards reads the row of each one. read must call match with the row
// of each slot (the number of a card) in order; for a slot without a row, it may pass nil or not call match. exact reports
// that the row has the terms that the index had for the slot, so only its expiry is checked. match keeps no reference to
// the row. It logs and skips a damaged row.
func ListCards(index *cardindex.Index, q store.CardQuery, damage *DamageLog, read func(slots []cardindex.Slot, match CardMatch) error) (store.CardPage, error) {
	if err := checkQuery(q); err != nil {
		return store.CardPage{}, err
	}
	tiers := q.Tiers
	if len(tiers) == 0 {
		tiers = []store.Tier{{}}
	}
	want := q.Limit + 1 // one more than the limit shows that there is a next page
	var page store.CardPage
	block := maxShared
	if q.Reuse != nil {
		page.Cards, page.Memory = q.Reuse.Cards[:0], q.Reuse.Memory[:0]
		block = max(block, 2*cap(page.Memory))
	}
	page.Cards = slices.Grow(page.Cards, min(want, 128))
	slots := make([]cardindex.Slot, 0, min(want, 128))
	var head CardHead
	var last store.Position // of the last card of a full page
	for tier := max(q.After.Tier, 0); tier < len(tiers) && len(page.Cards) < want; tier++ {
		match := func(s cardindex.Slot, row []byte, exact bool, err error) {
			if err == nil && !IsCardLive(row, q.Now) {
				return
			}
			if err == nil && !exact {
				err = head.Decode(uint64(s), row)
				if err == nil && tierOf(head.Terms, q, tiers) != tier {
					return
				}
			}
			var card store.Card
			if err == nil && len(page.Cards) < q.Limit { // the card after the limit only shows that there is a next page
				card, err = decodeCardForList(&page.Memory, q.Limit-len(page.Cards)-1, block, uint64(s), row)
			}
			if err != nil {
				damage.Note("left out of a list", err)
				return
			}
			if page.Cards = append(page.Cards, card); len(page.Cards) == q.Limit {
				last = store.Position{Tier: tier, Seq: card.Seq}
			}
		}
		from := uint64(1)
		if tier == q.After.Tier {
			from = min(q.After.Seq, math.MaxUint32) + 1
		}
		for more := true; more && from <= math.MaxUint32; {
			need := want - len(page.Cards)
			slots = index.Candidates(slots[:0], q, tiers[:tier+1], Nanos(q.Now), cardindex.Slot(from), need)
			if err := read(slots, match); err != nil {
				return store.CardPage{}, err
			}
			if more = len(slots) == need && len(page.Cards) < want; more {
				from = uint64(slots[len(slots)-1]) + 1
			}
		}
	}
	if len(page.Cards) == want {
		page.Cards, page.Next = page.Cards[:q.Limit], &last
	}
	return page, nil
}

// ListTerms returns at most limit terms of live cards that begin with prefix. after is the last term of the previous
// page, or "".
func ListTerms(index *cardindex.Index, prefix, after string, limit int, now time.Time) ([]store.TermCount, error) {
	if limit < 1 {
		return nil, ErrLimit
	}
	var counts []store.TermCount
	for term := range index.TermsAfter(prefix, after) {
		if n := index.CountLive(term, Nanos(now)); n > 0 {
			counts = append(counts, store.TermCount{Term: term, Count: n})
		}
		if len(counts) == limit {
			break
		}
	}
	return counts, nil
}

// CountCards returns the number of cards that are live at now.
func CountCards(index *cardindex.Index, now time.Time) int {
	n, at := 0, Nanos(now)
	for _, expires := range index.Ends {
		if at < expires {
			n++
		}
	}
	return n
}
