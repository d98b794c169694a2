package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// replayPartLength is the time that one part of bucket replays covers: a replay record (the record of an accepted
// message) is in the part of its expiry. A look-up searches each part, which costs less than another row for each
// record.
const replayPartLength = 4 * 24 * time.Hour

// replayPart returns the number of the part with the records that expire at t.
func replayPart(t time.Time) uint32 {
	if t.IsZero() { // the record never expires
		return math.MaxUint32
	}
	return uint32(min(max(t.Unix()/int64(replayPartLength/time.Second), 0), math.MaxUint32-1))
}

// replayKey returns a key in bucket replays: part (4 bytes) and hash.
func replayKey(part uint32, hash []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 20), part), hash...)
}

// findReplay searches every part for the record of a message, live or not, and returns its key and the record. hash is
// [engine.ReplayHash] of the message. The key is nil if the record does not exist.
func findReplay(tx *bbolt.Tx, hash []byte) ([]byte, engine.ReplayRow, error) {
	replays := bucketReplays.in(tx)
	c := replays.raw.Cursor()
	k, stored := c.First()
	for minPart := uint32(0); ; { // each turn looks into the part of row k
		// Skip damaged rows of other records, because their keys may name parts that do not exist.
		for ; k != nil; k, stored = c.Next() {
			original, _, err := replays.read(k, stored)
			if err == nil {
				break
			}
			if bytes.HasSuffix(original, hash) {
				return k, engine.ReplayRow{}, err
			}
		}
		if k == nil {
			return nil, engine.ReplayRow{}, nil
		}
		p := binary.BigEndian.Uint32(k)
		if p < minPart {
			return k, engine.ReplayRow{}, replays.damageError(k, "the rows next to it are out of order")
		}
		want := replayKey(p, hash)
		row, err := replays.at(c, want)
		if err != nil {
			return want, engine.ReplayRow{}, err
		}
		if row != nil {
			rec, err := engine.DecodeReplay(row)
			return want, rec, err
		}
		if p == math.MaxUint32 {
			return nil, engine.ReplayRow{}, nil
		}
		minPart = p + 1
		k, stored = c.Seek(binary.BigEndian.AppendUint32(nil, minPart))
	}
}

// isReplayLive reports whether a record counts at now: it has not expired, or its conversation is open.
func isReplayLive(tx *bbolt.Tx, rec engine.ReplayRow, now time.Time) (bool, error) {
	if engine.IsLive(rec.Expires, now) {
		return true, nil
	}
	conv, ok, err := convBySeq(tx, u64(rec.ConvSeq))
	return ok && conv.Open && engine.IsLive(conv.Expires, now), err
}

// Replay implements [engine.StepTx].
func (t *txn) Replay(sender, messageID string, now time.Time) (rec engine.StoredReplay, live bool, err error) {
	return replayOf(t.Tx, sender, messageID, now)
}

// WithAnswer implements [engine.StepTx].
func (t *txn) WithAnswer(rec engine.ReplayRow, now time.Time) (store.Replay, error) {
	return withAnswer(t.Tx, rec, now)
}

// replayOf returns the record of a message, live or not, and whether the record counts at now. rec.RowKey is the key of
// the row, or nil if the record does not exist.
func replayOf(tx *bbolt.Tx, sender, messageID string, now time.Time) (rec engine.StoredReplay, live bool, err error) {
	rec.RowKey, rec.ReplayRow, err = findReplay(tx, engine.ReplayHash(sender, messageID))
	if err == nil && rec.RowKey != nil {
		live, err = isReplayLive(tx, rec.ReplayRow, now)
	}
	return rec, live, err
}

func (s steps) FindReplay(ctx context.Context, sender, messageID string, now time.Time) (rec store.Replay, err error) {
	err = s.s.view(ctx, func(tx *bbolt.Tx) error {
		found, live, err := replayOf(tx, sender, messageID, now)
		if err != nil {
			return err
		}
		if !live {
			return store.ErrNotFound
		}
		rec, err = withAnswer(tx, found.ReplayRow, now)
		return err
	})
	return rec, err
}

func withAnswer(tx *bbolt.Tx, rec engine.ReplayRow, now time.Time) (store.Replay, error) {
	seq := u64(rec.ConvSeq)
	var conv *store.Conversation
	if rec.ConvSeq != 0 {
		switch found, ok, err := convBySeq(tx, seq); {
		case err != nil:
			return store.Replay{}, err
		case ok:
			conv = &found
		}
	}
	return rec.WithAnswer(conv, now, func(n uint64) ([]byte, error) {
		return bucketConvs.in(tx).get(convRowKey(seq, convEntry, u64(n)))
	})
}

// putReplay stores the replay record of a step. old is the key of an earlier record of the message that no longer
// counts, or nil. If no entry of the transcript names the record, putReplay adds a row of kind convReplay that names it.
func putReplay(t *txn, step store.Step, old []byte, row engine.ReplayRow) {
	replays, hash := bucketReplays.in(t), engine.ReplayHash(row.Sender, row.MessageID)
	if old != nil {
		replays.delete(old)
	}
	replays.put(replayKey(replayPart(row.Expires), hash), engine.EncodeReplay(row))
	if !hasReplayEntry(step) && row.ConvSeq != 0 {
		bucketConvs.in(t).put(convRowKey(u64(row.ConvSeq), convReplay, hash), nil)
	}
}

// sweepReplays looks at up to limit records in parts that have ended. It removes the records that no longer count, and
// moves those of open conversations to the current part.
func sweepReplays(t *txn, now time.Time, limit int) (int, error) {
	replays := bucketReplays.in(t)
	current := replayPart(now)
	var expired, live [][]byte // keys
	var liveRows [][]byte
	for row, err := range replays.from(nil, nil) {
		stillLive := false
		var rec engine.ReplayRow
		if err == nil {
			if binary.BigEndian.Uint32(row.key) >= current || len(expired)+len(live) == limit {
				break
			}
			rec, err = engine.DecodeReplay(row.value)
		}
		if err == nil {
			stillLive, err = isReplayLive(t.Tx, rec, now)
		}
		switch {
		case errors.Is(err, ErrDamaged): // the record stays, so that its message is not accepted again
			t.damage.Note("left in place by a sweep", err)
		case err != nil:
			return 0, err
		case stillLive:
			live = append(live, bytes.Clone(row.key))
			liveRows = append(liveRows, bytes.Clone(row.value))
		default:
			expired = append(expired, bytes.Clone(row.key))
		}
	}
	for i, k := range live {
		replays.put(replayKey(current, k[4:]), liveRows[i])
	}
	for _, k := range append(expired, live...) {
		replays.delete(k)
	}
	return len(expired) + len(live), nil
}
