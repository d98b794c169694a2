package bolt

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// cards implements [store.Cards].
type cards struct {
	s  *Store
	by *local.Handle // the handle of the caller
}

// Cards implements [store.Store].
func (s *Store) Cards() store.Cards { return cards{s, s.self} }

// cardByID returns the card of id, even if it has expired or was withdrawn. If id has no card, ok is false. A row is
// found by its seq, a number that the card keeps until it is removed.
func cardByID(tx *bbolt.Tx, id string) (card engine.CardRow, ok bool, err error) {
	seq, err := bucketIDs.in(tx).get([]byte(id))
	if seq == nil || err != nil {
		return engine.CardRow{}, false, err
	}
	row, err := bucketCards.in(tx).get(seq)
	if row == nil || err != nil {
		return engine.CardRow{}, false, err
	}
	card, err = engine.DecodeCard(number(seq), row)
	return card, err == nil, err
}

// Get returns the card of id if it is live: not expired and not withdrawn.
func (c cards) Get(ctx context.Context, id string, now time.Time) (store.Card, error) {
	card, err := readRow(ctx, c.s, id, cardByID, func(card engine.CardRow) bool { return card.Live(now) })
	return card.Card, err
}

// Held returns the card of id if it is live, or if its id is still reserved for its owner.
func (c cards) Held(ctx context.Context, id string, now time.Time) (store.Card, error) {
	card, err := readRow(ctx, c.s, id, cardByID, func(card engine.CardRow) bool { return card.Held(now) })
	return card.Card, err
}

func (c cards) Put(ctx context.Context, put store.PutCard) (store.Card, error) {
	card, err := engine.NormalizeCard(put.Card)
	if err != nil {
		return store.Card{}, err
	}
	var stored store.Card
	err = c.s.writer.doFor(ctx, c.by, func(t *txn) (func() error, error) {
		old, exists, err := cardByID(t.Tx, card.ID)
		if err != nil {
			return nil, err
		}
		held := exists && old.Held(put.Now)
		if err := checkQuotas(t.Tx, put.Quotas, old.Seq, put.Now); err != nil {
			return nil, err
		}
		if err := engine.CheckPut(old.Card, held, put); err != nil {
			return nil, err
		}
		records, err := engine.PlanRecords(t, put.Records, put.Now)
		if err != nil {
			return nil, err
		}
		return func() error { // called if all checks passed
			if exists && !held {
				purgeCard(t, old, put.Now)
				old = engine.CardRow{}
			}
			row := engine.CardRow{Card: card}
			if held {
				row.Seq, row.Registered, row.Change = old.Seq, old.Registered, old.Change
			}
			row.Rev = t.nextRev()
			if err := writeCard(t, &row, old.Card, put.Now); err != nil {
				return err
			}
			stored = row.Card
			t.writeRecords(records, row.Rev)
			return nil
		}, nil
	})
	if err != nil {
		return store.Card{}, err
	}
	stored.Body, stored.Meta = slices.Clone(stored.Body), slices.Clone(stored.Meta)
	return stored, nil
}

// liveCardsByCount yields the seqs of the live cards that count toward the quotas of key, and of damaged cards, which may
// be live.
func liveCardsByCount(tx *bbolt.Tx, key string, now time.Time) iter.Seq2[uint64, error] {
	return func(yield func(uint64, error) bool) {
		prefix, cards := engine.CountKey(key), bucketCards.in(tx)
		for row, err := range bucketCounts.in(tx).from(prefix, prefix) {
			if err != nil {
				yield(0, err)
				return
			}
			seq := row.key[16:] // see countKey
			card, err := cards.get(seq)
			if (err != nil || engine.IsCardLive(card, now)) && !yield(number(seq), nil) {
				return
			}
		}
	}
}

func (c cards) HasCount(ctx context.Context, key string, now time.Time) (found bool, err error) {
	err = c.s.view(ctx, func(tx *bbolt.Tx) error {
		for _, err := range liveCardsByCount(tx, key, now) {
			found = err == nil
			return err
		}
		return nil
	})
	return found, err
}

// checkQuotas returns ErrQuota if one of the quotas is used up by live cards other than the card with ownSeq.
func checkQuotas(tx *bbolt.Tx, quotas []store.Quota, ownSeq uint64, now time.Time) error {
	for _, q := range quotas {
		if q.Max <= 0 {
			continue
		}
		n := 0
		for seq, err := range liveCardsByCount(tx, q.Key, now) {
			if err != nil {
				return err
			}
			if seq == ownSeq {
				continue
			}
			if n++; n >= q.Max {
				return fmt.Errorf("%w: %d cards", store.ErrQuota, q.Max)
			}
		}
	}
	return nil
}

// writeCard stores row in place of old (zero for a new card, which gets its seq), and adds a line to the feed of
// changes.
func writeCard(t *txn, row *engine.CardRow, old store.Card, now time.Time) error {
	cards := bucketCards.in(t)
	if row.Seq == 0 {
		seq := cards.next()
		if seq > math.MaxUint32 {
			return fmt.Errorf("%w: all %d places for cards are used up", store.ErrUnavailable, uint32(math.MaxUint32))
		}
		row.Seq = seq
		bucketIDs.in(t).put([]byte(row.ID), u64(seq))
	}
	logChange(t, row, false, now)
	bucketCounts.in(t).replace(old.Counts, row.Counts, countKey(row.Seq))
	cards.put(u64(row.Seq), engine.EncodeCard(*row))
	// scheduled is when Sweep will look at the card anyway, or NoTime if that is not certain because old has ended.
	scheduled := int64(engine.NoTime)
	if old.Seq != 0 && old.Live(now) {
		scheduled = engine.CardDue(old)
	}
	scheduleSweep(t, kindCard, u64(row.Seq), scheduled, engine.CardDue(row.Card))
	s, terms, expires := cardindex.Slot(row.Seq), row.Terms, engine.Deadline(row.Expires)
	if row.Withdrawn {
		t.indexChanges = append(t.indexChanges, func(ix *cardindex.Index) { ix.Drop(s, terms) })
	} else {
		t.indexChanges = append(t.indexChanges, func(ix *cardindex.Index) { ix.Put(s, old.Terms, terms, expires) })
	}
	return nil
}

// logChange appends a change of row to the feed, in place of its last one. ended reports whether the reservation of the
// id has ended.
func logChange(t *txn, row *engine.CardRow, ended bool, now time.Time) {
	changes := bucketChanges.in(t)
	if row.Change != 0 {
		changes.delete(u64(row.Change))
	}
	n := changes.next()
	row.Change, t.lastChange = n, n
	t.note(store.WatchCards, row.ID)
	change := store.CardChange{ID: row.ID, Gone: row.Withdrawn || ended, Withdrawn: row.Withdrawn, At: now}
	changes.put(u64(n), engine.EncodeChange(engine.ChangeRow{CardChange: change, Seq: row.Seq}))
}

// countKey returns the function that makes the keys of a card in bucketCounts.
func countKey(seq uint64) func(text string) []byte {
	return func(text string) []byte { return binary.BigEndian.AppendUint64(engine.CountKey(text), seq) }
}

// purgeCard removes the row of a card whose id is free again. Its row in bucketIDs stays, and so does its last change
// in the feed, the tombstone.
func purgeCard(t *txn, row engine.CardRow, now time.Time) {
	if !row.Withdrawn {
		logChange(t, &row, true, now)
		s, terms := cardindex.Slot(row.Seq), row.Terms
		t.indexChanges = append(t.indexChanges, func(ix *cardindex.Index) { ix.Drop(s, terms) })
	}
	bucketCounts.in(t).replace(row.Counts, nil, countKey(row.Seq))
	bucketCards.in(t).delete(u64(row.Seq))
	scheduleSweep(t, kindTombstone, u64(row.Change), engine.NoTime, engine.Nanos(now.Add(engine.TombstoneLife)))
}

func (c cards) Withdraw(ctx context.Context, id string, ifRev store.Rev, reservedUntil time.Time, changes []store.Change, now time.Time) error {
	return c.s.writer.doFor(ctx, c.by, func(t *txn) (func() error, error) {
		old, exists, err := cardByID(t.Tx, id)
		if err != nil {
			return nil, err
		}
		if !exists || !old.Live(now) {
			return nil, store.ErrNotFound
		}
		if ifRev != store.Any && ifRev != old.Rev {
			return nil, store.ErrConflict
		}
		records, err := engine.PlanRecords(t, changes, now)
		if err != nil {
			return nil, err
		}
		return func() error {
			row := old
			row.Withdrawn, row.ReservedUntil, row.Rev = true, reservedUntil, t.nextRev()
			if err := writeCard(t, &row, old.Card, now); err != nil {
				return err
			}
			t.writeRecords(records, row.Rev)
			return nil
		}, nil
	})
}

func (c cards) Changes(ctx context.Context, after uint64, limit int) ([]store.CardChange, error) {
	if limit < 1 {
		return nil, engine.ErrLimit
	}
	var changes []store.CardChange
	err := c.s.view(ctx, func(tx *bbolt.Tx) error {
		if after == math.MaxUint64 {
			return nil
		}
		ids := bucketIDs.in(tx)
		for row, err := range bucketChanges.in(tx).from(u64(after+1), nil) {
			if err != nil {
				return err
			}
			change, err := engine.DecodeChange(number(row.key), row.value)
			if err != nil {
				return err
			}
			seq, err := ids.get([]byte(change.ID))
			if err != nil {
				return err
			}
			// Skip the tombstone of an earlier registration of the id. It is not part of the feed, but index snapshots
			// may need it.
			if number(seq) != change.Seq {
				continue
			}
			if changes = append(changes, change.CardChange); len(changes) == limit {
				break
			}
		}
		return nil
	})
	return changes, err
}
