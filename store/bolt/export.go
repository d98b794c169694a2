package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// Export reads the whole database, passes its rows to put, and returns the last numbers that the database
// assigned. The caller
// makes sure that nobody writes meanwhile. If pages or rows are damaged, Export passes no row, and the error names up to
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
	n.Fence, err = readFenceFloor(tx)
	return n, err
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
// leaves out the tombstones of ids that were registered again, which are not part of the feed.
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

// ImportPath returns the path of the file that an import into a new database at path writes, and renames to path at the
// end. While the file exists, the database cannot be opened.
func ImportPath(path string) string { return path + ".import" }

// checkImport returns engine.ErrUnfinished if an import of the database at path was interrupted.
func checkImport(path string) error {
	_, err := os.Lstat(ImportPath(path))
	switch {
	case err == nil:
		return engine.ErrUnfinished
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// Import makes the database at path from the rows that fill passes to it. It reads the new file back, compares it with
// these rows, and only then renames it to path. Until then, even after a crash, Open returns engine.ErrUnfinished, and
// another Import starts from the beginning. If there is a database already, the error is engine.ErrNotEmpty. The caller
// makes sure that only one process imports into a database.
func Import(ctx context.Context, path string, fill engine.Fill) (engine.Tally, error) {
	tally, err := importFile(ctx, path, fill)
	if err != nil {
		err = fmt.Errorf("import into %s: %w", path, err)
	}
	return tally, err
}

func importFile(ctx context.Context, path string, fill engine.Fill) (tally engine.Tally, err error) {
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		return tally, engine.ErrNotEmpty
	}
	unfinished := ImportPath(path)
	err = os.Truncate(unfinished, 0)
	interrupted := err == nil // an earlier import left its file
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return tally, err
	}
	// NoSync is safe, because nothing uses the file before the Sync in finish.
	to, err := openBolt(unfinished, &bbolt.Options{NoSync: true})
	if err != nil {
		return tally, err
	}
	c := &copier{ctx: ctx, db: to, heads: make(engine.LaneHeads)}
	defer func() {
		err = errors.Join(err, c.rollback(), to.Close())
		if err != nil && tally == (engine.Tally{}) && !interrupted { // no row was imported
			err = errors.Join(err, os.Remove(unfinished))
		}
	}()
	if err := to.Update(createBuckets); err != nil {
		return tally, err
	}
	n, err := fill(func(r engine.Row) error {
		tally.Add(r)
		return importRow(c, r)
	})
	if err != nil {
		return tally, err
	}
	if err := importNumbers(c, n); err != nil {
		return tally, err
	}
	if err := c.finish(); err != nil {
		return tally, err
	}
	var copied engine.Tally
	if err := catchDamage(func() error {
		return to.View(func(tx *bbolt.Tx) error {
			_, err := exportRows(ctx, tx, func(r engine.Row) error { copied.Add(r); return nil })
			return err
		})
	}); err != nil {
		return tally, err
	}
	if err := tally.Compare(copied); err != nil {
		return tally, err
	}
	if runtime.GOOS == "windows" { // Windows cannot rename an open file
		if err := to.Close(); err != nil {
			return tally, err
		}
	}
	if err := os.Rename(unfinished, path); err != nil {
		return tally, err
	}
	atomicfile.SyncDir(filepath.Dir(path))
	return tally, nil
}

// importRow stores a row, and the rows of indexes and expiries that are derived from it.
func importRow(c *copier, r engine.Row) error {
	r, decoded, err := r.Decode()
	if err != nil {
		return err
	}
	r.Value = slices.Clip(r.Value) // put appends a checksum
	return c.do(len(r.Key)+len(r.Value), func(t *txn) error {
		switch v := decoded.(type) {
		case engine.ChangeRow:
			bucketIDs.in(t).put([]byte(v.ID), u64(v.Seq))
			bucketChanges.in(t).put(u64(r.Num), r.Value)
			scheduleSweep(t, kindTombstone, u64(r.Num), engine.NoTime, r.Due)
			return nil
		case engine.ReplayRow:
			// The entries of another engine may not name their replay records, so this row of the conversation does.
			t.PutReplay(v, nil, false)
			return nil
		case store.Record:
			if engine.InLane(v) {
				t.PutInLane(v)
			}
			if c.heads.Is(v) {
				t.PutHead(v)
			}
		}
		t.Put(r, engine.Row{})
		return nil
	})
}

// importNumbers stores the numbers from which the new database counts on.
func importNumbers(c *copier, n engine.Numbers) error {
	if n.Rev > math.MaxUint64>>20 { // see readFenceFloor
		return fmt.Errorf("revision %d is too large for fences", n.Rev)
	}
	return c.do(0, func(t *txn) error {
		for b, last := range map[*bucket]uint64{&bucketMeta: n.Rev, &bucketCards: n.Card, &bucketChanges: n.Change, &bucketConvs: n.Conv} {
			if err := b.in(t).raw.SetSequence(last); err != nil {
				return err
			}
		}
		bucketMeta.in(t).put(keyFences, u64(n.FenceOffset(n.Rev<<20)))
		return nil
	})
}
