package bolt

import (
	"context"
	"encoding/binary"
	"iter"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// cards implements [store.Cards].
type cards struct {
	engine.Cards
	s *Store
}

// Cards implements [store.Store].
func (s *Store) Cards() store.Cards { return s.cardsOf(s.self) }

func (s *Store) cardsOf(by *local.Handle) store.Cards {
	return cards{engine.Cards{Driver: driver{s, by}}, s}
}

// liveCardsByCount yields the seqs of the live cards that count toward the quotas of key, and of damaged cards, which may
// be live.
func liveCardsByCount(tx *bbolt.Tx, key string, now time.Time) iter.Seq2[uint64, error] {
	return func(yield func(uint64, error) bool) {
		prefix, cards := engine.HashKey(key), bucketCards.in(tx)
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

// CountCards implements [engine.Tx].
func (t *txn) CountCards(key string, limit int, now time.Time) (n int, err error) {
	for _, err := range liveCardsByCount(t.Tx, key, now) {
		if err != nil {
			return 0, err
		}
		if n++; n >= limit {
			break
		}
	}
	return n, nil
}

// NextCard implements [engine.Tx].
func (t *txn) NextCard() (uint64, error) { return bucketCards.in(t).next(), nil }

// NextChange implements [engine.Tx].
func (t *txn) NextChange() (uint64, error) { return bucketChanges.in(t).next(), nil }

// PutChange implements [engine.Tx].
func (t *txn) PutChange(change engine.ChangeRow, card, old *engine.CardRow) error {
	changes := bucketChanges.in(t)
	var oldTerms []string
	if old != nil {
		changes.delete(u64(old.Change))
		oldTerms = old.Terms
	}
	changes.put(u64(change.Change), engine.EncodeChange(change))
	t.lastChange = change.Change
	s, terms, expires := cardindex.Slot(card.Seq), card.Terms, engine.Deadline(card.Expires)
	t.indexChanges = append(t.indexChanges, func(ix *cardindex.Index) {
		if change.Gone {
			ix.Drop(s, terms)
		} else {
			ix.Put(s, oldTerms, terms, expires)
		}
	})
	return nil
}

// UnlistCard implements [engine.Tx].
func (t *txn) UnlistCard(card engine.CardRow) {
	s, terms := cardindex.Slot(card.Seq), card.Terms
	t.indexChanges = append(t.indexChanges, func(ix *cardindex.Index) { ix.Drop(s, terms) })
}

// EndChange implements [engine.Tx]. The row in bucketIDs stays with the change.
func (t *txn) EndChange(card engine.CardRow, due int64) error {
	scheduleSweep(t, kindTombstone, u64(card.Change), engine.NoTime, due)
	return nil
}

// countKey returns the function that makes the keys of a card in bucketCounts.
func countKey(seq uint64) func(text string) []byte {
	return func(text string) []byte { return binary.BigEndian.AppendUint64(engine.HashKey(text), seq) }
}

func (c cards) Changes(ctx context.Context, after uint64, limit int) ([]store.CardChange, error) {
	next := append(u64(after), 0) // the first key after u64(after), which has no number if after is the largest
	return c.changes(ctx, limit, func(feed rows) iter.Seq2[row, error] { return feed.from(next, nil) })
}

func (c cards) LatestChanges(ctx context.Context, limit int) ([]store.CardChange, error) {
	return c.changes(ctx, limit, func(feed rows) iter.Seq2[row, error] { return feed.backward(endOf(nil), nil) })
}

// changes returns the first lines of the feed in the given order, at most limit.
func (c cards) changes(ctx context.Context, limit int, order func(feed rows) iter.Seq2[row, error]) ([]store.CardChange, error) {
	if limit < 1 {
		return nil, engine.ErrLimit
	}
	var changes []store.CardChange
	err := c.s.view(ctx, func(tx *bbolt.Tx) error {
		ids := bucketIDs.in(tx)
		for row, err := range order(bucketChanges.in(tx)) {
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
			// Skip the tombstone of an earlier registration of the id: the feed has one line for each id.
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
