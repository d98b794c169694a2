package bolt

import (
	"context"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

func (c cards) List(ctx context.Context, q store.CardQuery) (store.CardPage, error) {
	key := make([]byte, 0, 8)
	through := c.s.through.Load()
	return engine.ListCards(c.s.index.Load(), q, c.s.damage, func(slots []cardindex.Slot, match engine.CardMatch) error {
		return c.s.view(ctx, func(tx *bbolt.Tx) error {
			// The index never runs ahead of a transaction that begins later, and every change of terms is in the feed. So
			// if no change is committed beyond those that it had at first, the rows have the terms by which it found them.
			exact := bucketChanges.in(tx).raw.Sequence() == through
			rows := bucketCards.in(tx)
			cursor := rows.raw.Cursor() // one cursor for all rows, because get would create one per row
			for _, s := range slots {
				key = engine.AppendU64(key[:0], uint64(s))
				row, err := rows.at(cursor, key)
				match(s, row, exact, err)
			}
			return nil
		})
	})
}

// Terms and Count read only the index. They call view only to fail if ctx has ended or the file is closed.

func (c cards) Terms(ctx context.Context, prefix, after string, limit int, now time.Time) ([]store.TermCount, error) {
	if err := c.s.view(ctx, func(*bbolt.Tx) error { return nil }); err != nil {
		return nil, err
	}
	return engine.ListTerms(c.s.index.Load(), prefix, after, limit, now)
}

func (c cards) Count(ctx context.Context, now time.Time) (int, error) {
	if err := c.s.view(ctx, func(*bbolt.Tx) error { return nil }); err != nil {
		return 0, err
	}
	return engine.CountCards(c.s.index.Load(), now), nil
}
