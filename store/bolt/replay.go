package bolt

import (
	"bytes"
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

// findReplay searches every part for the record of a message, live or not, and returns the key and the value of its row.
// hash is [engine.ReplayHash] of the message. The value is nil if the record does not exist.
func findReplay(tx *bbolt.Tx, hash []byte) (key, value []byte, err error) {
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
				return k, nil, err
			}
		}
		if k == nil {
			return nil, nil, nil
		}
		p := binary.BigEndian.Uint32(k)
		if p < minPart {
			return k, nil, replays.damageError(k, "the rows next to it are out of order")
		}
		want := replayKey(p, hash)
		row, err := replays.at(c, want)
		if row != nil || err != nil {
			return want, row, err
		}
		if p == math.MaxUint32 {
			return nil, nil, nil
		}
		minPart = p + 1
		k, stored = c.Seek(binary.BigEndian.AppendUint32(nil, minPart))
	}
}

// ReplaysOf implements [engine.Tx].
func (t *txn) ReplaysOf(conv store.Conversation) (recs []engine.StoredReplay, err error) {
	prefix := u64(conv.Seq)
	for row, err := range bucketConvs.in(t).from(prefix, prefix) {
		if err != nil {
			return nil, err
		}
		kind, rest := row.key[8], row.key[9:]
		if kind == convRow {
			break
		}
		hash := rest // for kind convReplay
		if kind == convEntry {
			e, err := engine.DecodeEntry(number(rest), row.value)
			if err != nil {
				return nil, err
			}
			if hash = e.Replay; hash == nil {
				continue
			}
		}
		key, value, err := findReplay(t.Tx, hash)
		if err != nil {
			return nil, err
		}
		if value == nil {
			continue
		}
		rec, err := engine.DecodeReplay(value)
		if err != nil {
			return nil, err
		}
		// The record may belong to another conversation, which accepted the message again after the first record
		// expired.
		if rec.ConvSeq == conv.Seq {
			recs = append(recs, engine.StoredReplay{ReplayRow: rec, RowKey: key})
		}
	}
	return recs, nil
}

// PutReplay implements [engine.Tx]. If no entry of the transcript names the record, PutReplay adds a row of kind convReplay
// that names it.
func (t *txn) PutReplay(rec engine.ReplayRow, old *engine.StoredReplay, named bool) {
	replays, hash := bucketReplays.in(t), engine.ReplayHash(rec.Sender, rec.MessageID)
	key := replayKey(replayPart(rec.Expires), hash)
	if old != nil {
		if old.Expires.Equal(rec.Expires) { // the record stays in its part, into which a sweep may have moved it
			key = old.RowKey
		} else {
			replays.delete(old.RowKey)
		}
	}
	replays.put(key, engine.EncodeReplay(rec))
	if seq := u64(rec.ConvSeq); !named && rowExists(t.Tx, bucketConvs, convRowKey(seq, convRow, nil)) {
		bucketConvs.in(t).put(convRowKey(seq, convReplay, hash), nil)
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
			stillLive, err = engine.IsReplayLive(t, rec, now)
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
