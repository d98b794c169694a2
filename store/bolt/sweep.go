package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// The kinds of rows that bucket expiries names.
const (
	kindCard byte = iota + 1
	kindTombstone
	kindConv
	kindRecord
)

// tombstoneLife is how long a reader of the change feed may stay away without missing that an id is gone.
const tombstoneLife = 365 * 24 * time.Hour

// damagedAgain is when Sweep looks again at a damaged row, which it leaves as it is.
const damagedAgain = 24 * time.Hour

// sweepChunk bounds a unit of sweeping, so that other units wait for milliseconds.
const sweepChunk = 128

// expiryKey sorts by time; times before 1970 sort first as well.
func expiryKey(at int64, kind byte, key []byte) []byte {
	b := make([]byte, 0, 9+len(key))
	b = appendU64(b, uint64(at)^1<<63)
	return append(append(b, kind), key...)
}

// arm makes Sweep look at a row when due comes. armed is when it would have looked anyway, noTime for a new row.
func arm(tx *bbolt.Tx, kind byte, key []byte, armed, due int64) error {
	if due == never || armed != noTime && armed <= due {
		return nil
	}
	rows := bucketExpiries.in(tx)
	rows.b.FillPercent = 0.9 // most ends are as far away as the last one was
	return rows.put(expiryKey(due, kind, key), nil)
}

// Sweep implements [store.Store].
func (s *Store) Sweep(ctx context.Context, now time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, errLimit
	}
	s.dropOlder(now)
	done := 0
	for done < limit {
		chunk, n := min(sweepChunk, limit-done), 0
		err := s.writer.do(ctx, func(t *txn) (func() error, error) {
			if !dueBy(t.Tx, now) {
				return nil, nil
			}
			return func() (err error) {
				n, err = sweepExpiries(t, now, chunk)
				if err != nil || n == chunk {
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

// dueBy says whether there is anything to sweep, so that an idle store commits nothing.
func dueBy(tx *bbolt.Tx, now time.Time) bool {
	k := firstKey(bucketExpiries.in(tx))
	if k != nil && bytes.Compare(k[:8], expiryKey(nanos(now), 0, nil)[:8]) <= 0 {
		return true
	}
	k = firstKey(bucketReplays.in(tx))
	return k != nil && bytes.Compare(k[:4], replayKey(part(now), nil)) < 0
}

// firstKey returns the key of the first row that is not damaged.
func firstKey(r rows) []byte {
	for row, err := range r.from(nil, nil) {
		if err == nil {
			return row.key
		}
	}
	return nil
}

// sweepExpiries looks at up to limit entries that are due by now.
func sweepExpiries(t *txn, now time.Time, limit int) (int, error) {
	expiries := bucketExpiries.in(t.Tx)
	var due [][]byte
	for row, err := range expiries.from(nil, nil) {
		if err != nil {
			t.damage.note("left in place by a sweep", err)
			continue
		}
		if len(due) == limit || bytes.Compare(row.key[:8], expiryKey(nanos(now), 0, nil)[:8]) > 0 {
			break
		}
		due = append(due, bytes.Clone(row.key))
	}
	n := 0
	for _, k := range due {
		if n >= limit {
			break // a long transcript used up the limit
		}
		n++
		extra, err := sweepRow(t, k[8], k[9:], now, max(limit-n, 16))
		if errors.Is(err, ErrDamaged) {
			t.damage.note("left in place by a sweep", err)
			extra, err = swept{due: nanos(now.Add(damagedAgain))}, nil
		}
		if err != nil {
			return 0, err
		}
		n += extra.rows
		if extra.more {
			continue // its entry stays
		}
		if err := expiries.delete(k); err != nil {
			return 0, err
		}
		if extra.due != never {
			if err := arm(t.Tx, k[8], k[9:], noTime, extra.due); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

// swept is what became of a row: how many others went with it, whether there is more to do at once, and when to
// look again.
type swept struct {
	rows int
	more bool
	due  int64
}

func sweepRow(t *txn, kind byte, key []byte, now time.Time, limit int) (swept, error) {
	switch kind {
	case kindCard:
		return sweepCard(t, key, now)
	case kindTombstone:
		return swept{due: never}, dropTombstone(t, key)
	case kindConv:
		return sweepConv(t, key, now, limit)
	case kindRecord:
		return sweepRecord(t, key, now)
	}
	return swept{}, fmt.Errorf("%w: expiry entry of kind %d", ErrDamaged, kind)
}

// sweepCard takes a card that has expired out of the index, and one that is held no more out of the database.
func sweepCard(t *txn, key []byte, now time.Time) (swept, error) {
	row, err := bucketCards.in(t.Tx).get(key)
	if row == nil || err != nil {
		return swept{due: never}, err
	}
	card, err := decodeCard(number(key), row)
	if err != nil {
		return swept{}, err
	}
	if card.Live(now) {
		return swept{due: deadline(card.Expires)}, nil
	}
	if card.Held(now) {
		s, terms := slot(card.Seq), card.Terms
		t.after = append(t.after, func(ix *index) { ix.drop(s, terms) })
		return swept{due: nanos(card.ReservedUntil)}, nil
	}
	return swept{due: never}, purgeCard(t, card, now)
}

// dropTombstone ends the trace of a card. An index snapshot older than that cannot be caught up.
func dropTombstone(t *txn, change []byte) error {
	changes, meta, ids := bucketChanges.in(t.Tx), bucketMeta.in(t.Tx), bucketIDs.in(t.Tx)
	row, err := changes.get(change)
	if row == nil || err != nil {
		return err
	}
	c, err := decodeChange(number(change), row)
	if err != nil {
		return err
	}
	floor, err := meta.get(keyFloor)
	if err != nil {
		return err
	}
	seq, err := ids.get([]byte(c.ID))
	if err != nil {
		return err
	}
	if err := changes.delete(change); err != nil {
		return err
	}
	if c.Change > number(floor) {
		if err := meta.put(keyFloor, u64(c.Change)); err != nil {
			return err
		}
	}
	if number(seq) != c.seq {
		return nil
	}
	return ids.delete([]byte(c.ID))
}

func sweepConv(t *txn, key []byte, now time.Time, limit int) (swept, error) {
	conv, ok, err := convBySeq(t.Tx, key)
	if err != nil || !ok {
		return swept{due: never}, err
	}
	if live(conv.Expires, now) {
		return swept{due: deadline(conv.Expires)}, nil
	}
	n, err := deleteEntries(t, conv.Seq, limit)
	if err != nil {
		return swept{}, err
	}
	if n == limit {
		return swept{rows: n, more: true}, nil
	}
	return swept{rows: n, due: never}, deleteConvRow(t, conv)
}

func sweepRecord(t *txn, key []byte, now time.Time) (swept, error) {
	row, err := bucketRecords.in(t.Tx).get(key)
	if row == nil || err != nil {
		return swept{due: never}, err
	}
	ns, name, ok := splitRecordKey(key)
	if !ok {
		return swept{}, fmt.Errorf("%w: record key %x", ErrDamaged, key)
	}
	rec, err := decodeRecord(ns, name, row)
	if err != nil {
		return swept{}, err
	}
	if live(rec.Expires, now) {
		return swept{due: deadline(rec.Expires)}, nil
	}
	return swept{due: never}, deleteRecord(t, rec)
}

// splitRecordKey takes a key of bucket records apart.
func splitRecordKey(key []byte) (ns, name string, ok bool) {
	if len(key) == 0 || len(key) < 1+int(key[0]) {
		return "", "", false
	}
	n := 1 + int(key[0])
	return string(key[1:n]), string(key[n:]), true
}
