package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// cardStore implements [store.Cards].
type cardStore struct {
	engine.Cards
	s *Store
}

// Cards implements [store.Store].
func (s *Store) Cards() store.Cards { return cardStore{engine.Cards{Driver: driver{s}}, s} }

// feedLine is a line of the feed, the table named changes. It has the newest change of an id, and what other processes
// must remove from their indexes because of this change and earlier ones.
type feedLine struct {
	At        time.Time `json:"at"`
	Gone      bool      `json:"gone,omitempty"`
	Withdrawn bool      `json:"withdrawn,omitempty"`
	Seq       uint64    `json:"seq"`
	Older     []uint64  `json:"older,omitempty"` // earlier sequence numbers of the id
	Terms     [][]byte  `json:"terms,omitempty"` // terms that the card had and does not have now
}

// The limits for Older and Terms of a feedLine. Beyond them, an index may list a card by a term that the card no longer
// has. A search is still right, because it checks the row of the card.
const (
	maxOlder    = 8
	maxOldTerms = 2 * store.MaxTerms
)

// CountCards implements [engine.Tx].
func (t *txn) CountCards(key string, _ int, now time.Time) (int, error) {
	return t.count(cardCounts, engine.HashKey(key), engine.Nanos(now))
}

// NextCard implements [engine.Tx].
func (t *txn) NextCard() (uint64, error) { return t.next(counterCards) }

// NextChange implements [engine.Tx].
func (t *txn) NextChange() (uint64, error) { return t.next(counterChanges) }

// PutChange implements [engine.Tx].
func (t *txn) PutChange(change engine.ChangeRow, card, old *engine.CardRow) error {
	key := []byte(change.ID)
	line, err := t.feedLine(key)
	if err != nil {
		return err
	}
	if line.Seq != 0 && line.Seq != change.Seq && !slices.Contains(line.Older, line.Seq) { // the id was registered again
		line.Older = append(line.Older, line.Seq)
		line.Older = line.Older[max(len(line.Older)-maxOlder, 0):]
	}
	line.At, line.Gone, line.Withdrawn, line.Seq = change.At.UTC(), change.Gone, change.Withdrawn, change.Seq
	if old != nil {
		for _, term := range old.Terms {
			line.Terms = append(line.Terms, []byte(term))
		}
	}
	slices.SortFunc(line.Terms, slices.Compare)
	line.Terms = slices.CompactFunc(line.Terms, slices.Equal)
	if !line.Gone {
		line.Terms = slices.DeleteFunc(line.Terms, func(term []byte) bool { return slices.Contains(card.Terms, string(term)) })
	}
	line.Terms = line.Terms[:min(len(line.Terms), maxOldTerms)]
	t.put(changes, key, row{num: int64(change.Change), due: engine.Never, value: wire.MustMarshal(line)})
	return nil
}

// feedLine returns the line of an id, or an empty one.
func (t *txn) feedLine(id []byte) (line feedLine, err error) {
	stored, err := t.get(changes, id)
	if stored == nil || err != nil {
		return line, err
	}
	return decodeLine(id, stored.value)
}

func decodeLine(id, value []byte) (line feedLine, err error) {
	if err := json.Unmarshal(value, &line); err != nil {
		return line, fmt.Errorf("%w: change of %q: %w", store.ErrDamaged, id, err)
	}
	return line, nil
}

// UnlistCard implements [engine.Tx]. The index lists no card that has expired.
func (t *txn) UnlistCard(engine.CardRow) {}

// EndChange implements [engine.Tx].
func (t *txn) EndChange(card engine.CardRow, due int64) error {
	stored, err := t.get(changes, []byte(card.ID))
	if stored == nil || err != nil {
		return err
	}
	tombstone := *stored
	tombstone.due = due
	t.put(changes, []byte(card.ID), tombstone)
	return nil
}

func (c cardStore) HasCount(ctx context.Context, key string, now time.Time) (found bool, err error) {
	prefix := engine.HashKey(key)
	err = c.s.query(ctx, "select exists (select from card_counts where key >= $1 and key < $2 and due > $3)",
		[]any{prefix, prefixEnd(prefix), engine.Nanos(now)}, []any{&found}, func() error { return nil })
	return found, err
}

func (c cardStore) Changes(ctx context.Context, after uint64, limit int) ([]store.CardChange, error) {
	return c.listChanges(ctx, after, "asc", limit)
}

func (c cardStore) LatestChanges(ctx context.Context, limit int) ([]store.CardChange, error) {
	return c.listChanges(ctx, 0, "desc", limit)
}

// listChanges lists the feed after a position in an order, asc or desc.
func (c cardStore) listChanges(ctx context.Context, after uint64, order string, limit int) ([]store.CardChange, error) {
	if limit < 1 {
		return nil, engine.ErrLimit
	}
	var list []store.CardChange
	var key, value []byte
	var num int64
	err := c.s.query(ctx, "select key, num, value from changes where num > $1 order by num "+order+" limit $2",
		[]any{int64(min(after, math.MaxInt64)), limit}, []any{&key, &num, &value}, func() error {
			line, err := decodeLine(key, value)
			list = append(list, store.CardChange{Change: uint64(num), ID: string(key), Gone: line.Gone, Withdrawn: line.Withdrawn, At: line.At})
			return err
		})
	return list, err
}

func (c cardStore) List(ctx context.Context, q store.CardQuery) (store.CardPage, error) {
	index, err := c.s.index.refresh(ctx)
	if err != nil {
		return store.CardPage{}, err
	}
	return engine.ListCards(index, q, c.s.damage, func(slots []cardindex.Slot, match engine.CardMatch) error {
		if len(slots) == 0 {
			return nil
		}
		seqs := make([]int64, len(slots))
		for i, s := range slots {
			seqs[i] = int64(s)
		}
		var num int64
		var value []byte
		return c.s.query(ctx, "select num, value from cards where num = any($1) order by num", []any{seqs}, []any{&num, &value}, func() error {
			match(cardindex.Slot(num), value, false, nil)
			return nil
		})
	})
}

func (c cardStore) Terms(ctx context.Context, prefix, after string, limit int, now time.Time) ([]store.TermCount, error) {
	index, err := c.s.index.refresh(ctx)
	if err != nil {
		return nil, err
	}
	return engine.ListTerms(index, prefix, after, limit, now)
}

func (c cardStore) Count(ctx context.Context, now time.Time) (int, error) {
	index, err := c.s.index.refresh(ctx)
	if err != nil {
		return 0, err
	}
	return engine.CountCards(index, now), nil
}
