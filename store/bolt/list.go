package bolt

import (
	"context"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// List implements [store.Cards]. The index offers candidates in order, and List checks the row of each candidate.
func (c cards) List(ctx context.Context, q store.CardQuery) (store.CardPage, error) {
	if err := engine.CheckQuery(q); err != nil {
		return store.CardPage{}, err
	}
	tiers := q.Tiers
	if len(tiers) == 0 {
		tiers = []store.Tier{{}}
	}
	want := q.Limit + 1 // one more than the limit shows that there is a next page
	page := store.CardPage{Cards: make([]store.Card, 0, min(want, 128))}
	positions := make([]store.Position, 0, min(want, 128))
	slots := make([]cardindex.Slot, 0, min(want, 128))
	for tier := max(q.After.Tier, 0); tier < len(tiers) && len(page.Cards) < want; tier++ {
		from := uint64(1)
		if tier == q.After.Tier {
			from = min(q.After.Seq, math.MaxUint32) + 1
		}
		for more := true; more && from <= math.MaxUint32; {
			need := want - len(page.Cards)
			slots = c.s.index.Candidates(slots[:0], q, tiers[:tier+1], engine.Nanos(q.Now), cardindex.Slot(from), need)
			if err := c.appendMatches(ctx, slots, q, tiers, tier, &page, &positions); err != nil {
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

// appendMatches reads the rows of slots. It appends the cards that are live and belong to tier to page, and their
// positions to positions. It matches a row without copying it, and copies only the cards of the page.
func (c cards) appendMatches(ctx context.Context, slots []cardindex.Slot, q store.CardQuery, tiers []store.Tier, tier int, page *store.CardPage, positions *[]store.Position) error {
	if len(slots) == 0 {
		return nil
	}
	return c.s.view(ctx, func(tx *bbolt.Tx) error {
		rows := bucketCards.in(tx)
		cursor := rows.b.Cursor() // one cursor for all rows, because get would create one per row
		key, terms := make([]byte, 0, 8), make([][]byte, 0, 64)
		for _, s := range slots {
			key = engine.AppendU64(key[:0], uint64(s))
			row, err := rows.at(cursor, key)
			if err == nil && !engine.IsCardLive(row, q.Now) {
				continue
			}
			if err == nil {
				terms, err = engine.CardTerms(terms[:0], uint64(s), row)
			}
			if err == nil && engine.TierOf(terms, q, tiers) != tier {
				continue
			}
			card := store.Card{Seq: uint64(s)}
			if err == nil && len(page.Cards) < q.Limit { // the card after the limit only shows that there is a next page
				card, err = engine.DecodeCardForList(uint64(s), row)
			}
			if err != nil {
				c.s.damage.Note("left out of a list", err)
				continue
			}
			page.Cards = append(page.Cards, card)
			*positions = append(*positions, store.Position{Tier: tier, Seq: card.Seq})
		}
		return nil
	})
}

// Terms implements [store.Cards].
func (c cards) Terms(ctx context.Context, prefix, after string, limit int, now time.Time) ([]store.TermCount, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if limit < 1 {
		return nil, engine.ErrLimit
	}
	var counts []store.TermCount
	for term := range c.s.index.TermsAfter(prefix, after) {
		if n := c.s.index.CountLive(term, engine.Nanos(now)); n > 0 {
			counts = append(counts, store.TermCount{Term: term, Count: n})
		}
		if len(counts) == limit {
			break
		}
	}
	return counts, nil
}

// Count implements [store.Cards].
func (c cards) Count(ctx context.Context, now time.Time) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, at := 0, engine.Nanos(now)
	for _, expires := range c.s.index.Ends {
		if at < expires {
			n++
		}
	}
	return n, nil
}
