package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Cards has the methods of [store.Cards] that only need single rows.
type Cards struct{ Driver Driver }

// Get implements [store.Cards].
func (c Cards) Get(ctx context.Context, id string, now time.Time) (store.Card, error) {
	return c.find(ctx, id, func(card store.Card) bool { return card.Live(now) })
}

// Held implements [store.Cards].
func (c Cards) Held(ctx context.Context, id string, now time.Time) (store.Card, error) {
	return c.find(ctx, id, func(card store.Card) bool { return card.Held(now) })
}

// HeldAll implements [store.Cards].
func (c Cards) HeldAll(ctx context.Context, ids []string, now time.Time) ([]store.Card, error) {
	cards := make([]store.Card, len(ids))
	err := c.Driver.View(ctx, func(r Reader) error {
		var buf []byte
		for i, id := range ids {
			row, err := r.Row(KindCard, []byte(id))
			var card store.Card
			if err == nil && row.Value != nil {
				card, err = decodeCardForList(&buf, len(ids)-i-1, maxShared, row.Num, row.Value)
			}
			if err != nil {
				return err
			}
			if card.ID != "" && card.Held(now) {
				cards[i] = card
			}
		}
		return nil
	})
	return cards, err
}

func (c Cards) find(ctx context.Context, id string, accept func(store.Card) bool) (store.Card, error) {
	card, err := view(ctx, c.Driver, func(r Reader) (*CardRow, error) { return findCard(r, id) }, func(card *CardRow) bool { return accept(card.Card) })
	return card.Card, err
}

// view returns the row that find returns. If there is none, or accept returns false, the error is ErrNotFound.
func view[T any](ctx context.Context, d Driver, find func(Reader) (*T, error), accept func(*T) bool) (found T, err error) {
	err = d.View(ctx, func(r Reader) error {
		row, err := find(r)
		if err != nil {
			return err
		}
		if row == nil || !accept(row) {
			return store.ErrNotFound
		}
		found = *row
		return nil
	})
	return found, err
}

// Put implements [store.Cards].
func (c Cards) Put(ctx context.Context, put store.PutCard) (store.Card, error) {
	card, err := NormalizeCard(put.Card)
	if err != nil {
		return store.Card{}, err
	}
	row := CardRow{Card: card}
	err = c.Driver.Do(ctx, Call{
		Needs: func(n *Needs) {
			n.Add(KindCard, []byte(card.ID))
			for _, q := range put.Quotas {
				n.Counts = append(n.Counts, HashKey(q.Key))
			}
		},
		Check: func(tx Tx) (func(store.Rev) error, error) {
			old, err := findCard(tx, card.ID)
			if err != nil {
				return nil, err
			}
			if err := checkQuotas(tx, put.Quotas, old, put.Now); err != nil {
				return nil, err
			}
			held := old != nil && old.Held(put.Now) // old is live, or its id is still reserved
			if err := checkPut(old, held, put); err != nil {
				return nil, err
			}
			return func(rev store.Rev) (err error) {
				row = CardRow{Card: card}
				row.Rev = rev
				if held {
					row.Seq, row.Registered = old.Seq, old.Registered
					return putCard(tx, &row, old, put.Now)
				}
				if old != nil {
					if err := purgeCard(tx, *old, put.Now); err != nil {
						return err
					}
				}
				if row.Seq, err = tx.NextCard(); err != nil {
					return err
				}
				if row.Seq > math.MaxUint32 {
					return fmt.Errorf("%w: all %d places for cards are used up", store.ErrUnavailable, uint32(math.MaxUint32))
				}
				return putCard(tx, &row, nil, put.Now)
			}, nil
		},
		Records: put.Records, Now: put.Now,
	})
	if err != nil {
		return store.Card{}, err
	}
	row.Body, row.Meta = slices.Clone(row.Body), slices.Clone(row.Meta)
	return row.Card, nil
}

// checkPut checks the precondition of a put. held reports whether old, the last card with the id, still holds the id.
func checkPut(old *CardRow, held bool, put store.PutCard) error {
	switch {
	case put.IfRev == store.Any, put.IfRev == store.Absent && !held:
		return nil
	case put.IfRev != store.Absent:
		if !held || old.Rev != put.IfRev {
			return store.ErrConflict
		}
		return nil
	case old.Live(put.Now):
		return store.ErrConflict
	case old.Owner != put.Card.Owner:
		return store.ErrReserved
	}
	return nil
}

// checkQuotas returns ErrQuota if one of the quotas is used up by live cards other than old, which may be nil.
func checkQuotas(tx Tx, quotas []store.Quota, old *CardRow, now time.Time) error {
	for _, q := range quotas {
		if q.Max <= 0 {
			continue
		}
		limit := q.Max
		if old != nil && old.Live(now) && slices.Contains(old.Counts, q.Key) {
			limit++
		}
		n, err := tx.CountCards(q.Key, limit, now)
		if err != nil {
			return err
		}
		if n >= limit {
			return fmt.Errorf("%w: %d cards", store.ErrQuota, q.Max)
		}
	}
	return nil
}

// putCard stores a card in place of old (nil for a new card), and adds the change to the feed.
func putCard(tx Tx, card, old *CardRow, now time.Time) error {
	if err := logChange(tx, card, old, card.Withdrawn, now); err != nil {
		return err
	}
	var before Row
	if old != nil {
		before = cardRow(*old, nil)
		if !old.Live(now) {
			before.Due = NoTime
		}
	}
	tx.Put(cardRow(*card, EncodeCard(*card)), before)
	return nil
}

// purgeCard removes a card whose id is free again. Its last change stays in the feed for TombstoneLife.
func purgeCard(tx Tx, old CardRow, now time.Time) error {
	card := old
	if !card.Withdrawn {
		if err := logChange(tx, &card, &old, true, now); err != nil {
			return err
		}
	}
	tx.Drop(cardRow(card, nil))
	return tx.EndChange(card, Nanos(now.Add(tombstoneLife)))
}

// logChange moves the change of an id to the end of the feed, and sets card.Change. card is the current card of the id,
// and old is the previous one, or nil. gone reports whether card is withdrawn, or its reservation has ended.
func logChange(tx Tx, card, old *CardRow, gone bool, now time.Time) (err error) {
	if card.Change, err = tx.NextChange(); err != nil {
		return err
	}
	tx.Note(store.WatchCards, card.ID)
	change := store.CardChange{Change: card.Change, ID: card.ID, Gone: gone, Withdrawn: card.Withdrawn, At: now}
	return tx.PutChange(ChangeRow{CardChange: change, Seq: card.Seq}, card, old)
}

// tombstoneLife is how long the change feed keeps a tombstone, which tells that a card was removed. A reader of the feed
// that is away longer may miss the removal.
const tombstoneLife = 365 * 24 * time.Hour

// Withdraw implements [store.Cards].
func (c Cards) Withdraw(ctx context.Context, id string, ifRev store.Rev, reservedUntil time.Time, changes []store.Change, now time.Time) error {
	return c.Driver.Do(ctx, Call{
		Needs: func(n *Needs) { n.Add(KindCard, []byte(id)) },
		Check: func(tx Tx) (func(store.Rev) error, error) {
			old, err := findCard(tx, id)
			switch {
			case err != nil:
				return nil, err
			case old == nil || !old.Live(now):
				return nil, store.ErrNotFound
			case !revFits(ifRev, true, old.Rev):
				return nil, store.ErrConflict
			}
			return func(rev store.Rev) error {
				row := *old
				row.Withdrawn, row.ReservedUntil, row.Rev = true, reservedUntil, rev
				return putCard(tx, &row, old, now)
			}, nil
		},
		Records: changes, Now: now,
	})
}
