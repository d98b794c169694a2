package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// The kinds of rows in bucketExpiries.
const (
	kindCard byte = iota + 1
	kindTombstone
	kindConv
	kindRecord
)

// sweepChunk is about the number of rows that Sweep handles in one write, so that other writes wait only milliseconds.
const sweepChunk = 128

// expiryKey returns a key in bucketExpiries: time (8 bytes), kind (1 byte) and key of a row. Such keys sort by time, even
// before 1970.
func expiryKey(at int64, kind byte, key []byte) []byte {
	b := make([]byte, 0, 9+len(key))
	return append(append(engine.AppendOrdered(b, at), kind), key...)
}

// scheduleSweep makes Sweep look at a row at the time due, unless due is engine.Never. scheduled is when Sweep will
// look at the row anyway, or engine.NoTime if that is not certain.
func scheduleSweep(t *txn, kind byte, key []byte, scheduled, due int64) {
	if due != engine.Never && (scheduled == engine.NoTime || scheduled > due) {
		bucketExpiries.in(t).put(expiryKey(due, kind, key), nil)
	}
}

// Sweep implements [store.Store].
func (s *Store) Sweep(ctx context.Context, now time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, engine.ErrLimit
	}
	done := 0
	for done < limit {
		chunk, n := min(sweepChunk, limit-done), 0
		err := s.writer.do(ctx, func(t *txn) (func(store.Rev) error, error) {
			if !hasDue(t.Tx, now) {
				return nil, nil
			}
			return func(store.Rev) (err error) {
				n, err = sweepExpiries(t, now, chunk)
				if err != nil || n >= chunk {
					return err
				}
				swept, err := sweepReplays(t, now, chunk-n)
				n += swept
				return err
			}, nil
		})
		if err != nil {
			return done, fmt.Errorf("sweep: %w", err)
		}
		if done += n; n < chunk {
			break
		}
	}
	return done, nil
}

// hasDue reports whether there is anything to sweep. If not, Sweep commits nothing.
func hasDue(tx *bbolt.Tx, now time.Time) bool {
	k := firstKey(bucketExpiries.in(tx))
	if k != nil && bytes.Compare(k[:8], expiryKey(engine.Nanos(now), 0, nil)[:8]) <= 0 {
		return true
	}
	k = firstKey(bucketReplays.in(tx)) // begins with the number of a part, see replayKey
	return k != nil && bytes.Compare(k[:4], replayKey(replayPart(now), nil)) < 0
}

// firstKey returns the key of the first row that is not damaged, or nil.
func firstKey(r rows) []byte {
	for row, err := range r.from(nil, nil) {
		if err == nil {
			return row.key
		}
	}
	return nil
}

// sweepExpiries looks at rows whose entries in bucketExpiries are due at now, until it has looked at or removed limit
// rows. It returns their number.
func sweepExpiries(t *txn, now time.Time, limit int) (int, error) {
	expiries := bucketExpiries.in(t)
	var due [][]byte
	for row, err := range expiries.from(nil, nil) {
		if err != nil {
			t.damage.Note("left in place by a sweep", err)
			continue
		}
		if len(due) == limit || bytes.Compare(row.key[:8], expiryKey(engine.Nanos(now), 0, nil)[:8]) > 0 {
			break
		}
		due = append(due, bytes.Clone(row.key))
	}
	n := 0
	for _, k := range due {
		if n >= limit {
			break // deleting a long transcript has used up the limit
		}
		n++
		kind, key := k[8], k[9:]                                           // see expiryKey
		removed, due, err := sweepRow(t, kind, key, now, max(limit-n, 16)) // at least 16, so that every call makes progress
		if errors.Is(err, ErrDamaged) {
			t.damage.Note("left in place by a sweep", err)
			due, err = engine.Nanos(now.Add(engine.DamagedAgain)), nil
		}
		if err != nil {
			return 0, err
		}
		n += removed
		expiries.delete(k)
		scheduleSweep(t, kind, key, engine.NoTime, due)
	}
	return n, nil
}

// sweepRow looks at one row, see [engine.SweepRow].
func sweepRow(t *txn, kind byte, key []byte, now time.Time, limit int) (removed int, due int64, err error) {
	r := engine.Row{Num: number(key), Key: key}
	switch kind {
	case kindCard:
		r.Kind = engine.KindCard
		r.Value, err = bucketCards.in(t).get(key)
	case kindTombstone:
		return 0, engine.Never, dropTombstone(t, key)
	case kindConv:
		r.Kind = engine.KindConv
		r.Value, err = bucketConvs.in(t).get(convRowKey(key, convRow, nil))
	case kindRecord:
		r.Kind = engine.KindRecord
		r.Value, err = bucketRecords.in(t).get(key)
	default:
		return 0, 0, fmt.Errorf("%w: an expiry entry has the unknown kind %d", ErrDamaged, kind)
	}
	if r.Value == nil || err != nil {
		return 0, engine.Never, err
	}
	return engine.SweepRow(t, r, now, limit)
}

// dropTombstone removes the tombstone of a card: the change in the feed that tells that the card is gone.
func dropTombstone(t *txn, change []byte) error {
	changes, ids := bucketChanges.in(t), bucketIDs.in(t)
	row, err := changes.get(change)
	if row == nil || err != nil {
		return err
	}
	c, err := engine.DecodeChange(number(change), row)
	if err != nil {
		return err
	}
	seq, err := ids.get([]byte(c.ID))
	if err != nil {
		return err
	}
	changes.delete(change)
	if number(seq) == c.Seq { // the id was not registered again
		ids.delete([]byte(c.ID))
	}
	return nil
}
