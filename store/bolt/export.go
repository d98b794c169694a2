package bolt

import (
	"context"
	"encoding/binary"
	"errors"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store/engine"
)

// Export reads the whole database, passes its rows to put, and returns the last numbers that the database assigned. The
// caller makes sure that nobody writes meanwhile. If pages or rows are damaged, Export passes no row, and the error names up to
// a hundred of them.
func (s *Store) Export(ctx context.Context, put func(engine.Row) error) (n engine.Numbers, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		n, err = exportRows(ctx, tx, put)
		return err
	})
	return n, err
}

// exportRows checks the whole database, and then passes its rows to put.
func exportRows(ctx context.Context, tx *bbolt.Tx, put func(engine.Row) error) (n engine.Numbers, err error) {
	found := &findings{ctx: ctx}
	if err := found.checkPages(tx); err != nil {
		return n, err
	}
	if found.checkRows(tx); len(found.errs) > 0 || ctx.Err() != nil {
		return n, errors.Join(append(found.errs, ctx.Err())...)
	}
	for _, export := range []func(*bbolt.Tx, func(engine.Row) error) error{exportCards, exportChanges, exportConvs, exportReplays, exportRecords} {
		if err := export(tx, put); err != nil {
			return n, err
		}
	}
	n.Rev, n.Card = bucketMeta.in(tx).raw.Sequence(), bucketCards.in(tx).raw.Sequence()
	n.Change, n.Conv = bucketChanges.in(tx).raw.Sequence(), bucketConvs.in(tx).raw.Sequence()
	n.Fence = readFenceFloor(tx)
	return n, nil
}

func forEachRow(tx *bbolt.Tx, b bucket, fn func(k, v []byte) error) error {
	for row, err := range b.in(tx).from(nil, nil) {
		if err == nil {
			err = fn(row.key, row.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func exportCards(tx *bbolt.Tx, put func(engine.Row) error) error {
	return forEachRow(tx, bucketCards, func(k, v []byte) error {
		return put(engine.Row{Kind: engine.KindCard, Num: number(k), Value: v})
	})
}

// exportChanges exports the feed of card changes. A tombstone is the last change of a card that is gone. The export
// leaves out the tombstones of ids that were registered again: only an older index snapshot needs them, and a new
// database has no snapshot.
func exportChanges(tx *bbolt.Tx, put func(engine.Row) error) error {
	tombstones := make(map[uint64]int64) // from the number of a change to the time at which Sweep removes it
	if err := forEachRow(tx, bucketExpiries, func(k, _ []byte) error {
		if k[8] == kindTombstone { // see expiryKey
			tombstones[number(k[9:])] = int64(binary.BigEndian.Uint64(k) ^ 1<<63)
		}
		return nil
	}); err != nil {
		return err
	}
	ids := bucketIDs.in(tx)
	return forEachRow(tx, bucketChanges, func(k, v []byte) error {
		change, err := engine.DecodeChange(number(k), v)
		if err != nil {
			return err
		}
		seq, err := ids.get([]byte(change.ID))
		if err != nil || number(seq) != change.Seq {
			return err
		}
		due, gone := tombstones[change.Change]
		if !gone {
			due = engine.Never
		}
		return put(engine.Row{Kind: engine.KindChange, Num: change.Change, Due: due, Value: v})
	})
}

func exportConvs(tx *bbolt.Tx, put func(engine.Row) error) error {
	return forEachRow(tx, bucketConvs, func(k, v []byte) error {
		switch k[8] {
		case convEntry:
			return put(engine.Row{Kind: engine.KindEntry, Num: number(k[:8]), N: number(k[9:]), Value: v})
		case convRow:
			return put(engine.Row{Kind: engine.KindConv, Num: number(k[:8]), Value: v})
		}
		return nil
	})
}

func exportReplays(tx *bbolt.Tx, put func(engine.Row) error) error {
	return forEachRow(tx, bucketReplays, func(_, v []byte) error { return put(engine.Row{Kind: engine.KindReplay, Value: v}) })
}

func exportRecords(tx *bbolt.Tx, put func(engine.Row) error) error {
	return forEachRow(tx, bucketRecords, func(k, v []byte) error { return put(engine.Row{Kind: engine.KindRecord, Key: k, Value: v}) })
}
