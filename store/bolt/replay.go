package bolt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
)

// partLength is the expiry time that shares a part of the replays. With records that live eight days a look-up
// asks three or four parts, which costs less than the second key that a part of its own for each day would save.
const partLength = 4 * 24 * time.Hour

// part is the number of the part in which something that expires at t is kept.
func part(t time.Time) uint32 {
	if t.IsZero() {
		return math.MaxUint32
	}
	return uint32(min(max(t.Unix()/int64(partLength/time.Second), 0), math.MaxUint32-1))
}

// replayHash names a message of a sender.
func replayHash(sender, messageID string) []byte {
	sum := sha256.Sum256(append(key2(nil, sender), messageID...))
	return sum[:16:16]
}

func replayKey(part uint32, hash []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 20), part), hash...)
}

// findReplay returns the key and the record of a message, live or not; the key is nil where there is none.
func findReplay(tx *bbolt.Tx, hash []byte) ([]byte, replayRow, error) {
	c := tx.Bucket(bucketReplays).Cursor()
	k, _ := c.First()
	for k != nil {
		p := binary.BigEndian.Uint32(k)
		want := replayKey(p, hash)
		found, row := c.Seek(want)
		if bytes.Equal(found, want) {
			rec, err := decodeReplay(row)
			return want, rec, err
		}
		if found != nil && binary.BigEndian.Uint32(found) != p {
			k = found
		} else if p == math.MaxUint32 {
			k = nil
		} else {
			k, _ = c.Seek(binary.BigEndian.AppendUint32(nil, p+1))
		}
	}
	return nil, replayRow{}, nil
}

// replayLives says whether a record counts at now: it is live, or its conversation is open.
func replayLives(tx *bbolt.Tx, rec replayRow, now time.Time) (bool, error) {
	if live(rec.Expires, now) {
		return true, nil
	}
	conv, ok, err := convBySeq(tx, u64(rec.convSeq))
	return ok && conv.Open && live(conv.Expires, now), err
}

// liveReplay returns a record that counts at now; the key is nil where there is none.
func liveReplay(tx *bbolt.Tx, sender, messageID string, now time.Time) ([]byte, replayRow, error) {
	key, rec, err := findReplay(tx, replayHash(sender, messageID))
	if err != nil || key == nil {
		return nil, rec, err
	}
	if ok, err := replayLives(tx, rec, now); err != nil || !ok {
		return nil, rec, err
	}
	return key, rec, nil
}

// Replayed implements [store.Steps].
func (s steps) Replayed(ctx context.Context, sender, messageID string, now time.Time) (rec store.Replay, err error) {
	err = s.s.view(ctx, func(tx *bbolt.Tx) error {
		key, found, err := liveReplay(tx, sender, messageID, now)
		if err != nil {
			return err
		}
		if key == nil {
			return store.ErrNotFound
		}
		rec = found.Replay
		return nil
	})
	return rec, err
}

// putReplay stores a new record, in place of one that no longer counts. Unless an entry notes it, its conversation
// does.
func putReplay(tx *bbolt.Tx, rec store.Replay, noted bool) error {
	b := tx.Bucket(bucketReplays)
	hash, seq := replayHash(rec.Sender, rec.MessageID), convSeq(tx, rec.Conv)
	old, _, err := findReplay(tx, hash)
	if err != nil {
		return err
	}
	if old != nil {
		if err := b.Delete(old); err != nil {
			return err
		}
	}
	row := replayRow{Replay: rec, convSeq: number(seq)}
	if err := b.Put(replayKey(part(rec.Expires), hash), encodeReplay(row)); err != nil {
		return err
	}
	if noted || seq == nil {
		return nil
	}
	return tx.Bucket(bucketConvs).Put(convRowKey(seq, convReplay, hash), nil)
}

// sweepReplays removes up to limit records of parts that have ended. One whose conversation is open moves to the
// part that ends next.
func sweepReplays(t *txn, now time.Time, limit int) (int, error) {
	b := t.Bucket(bucketReplays)
	ended := part(now)
	var gone, move [][]byte
	var rows [][]byte
	for k, v := range keysFrom(b, nil, nil) {
		if binary.BigEndian.Uint32(k) >= ended || len(gone)+len(move) == limit {
			break
		}
		rec, err := decodeReplay(v)
		if err != nil {
			return 0, err
		}
		lives, err := replayLives(t.Tx, rec, now)
		if err != nil {
			return 0, err
		}
		if lives {
			move = append(move, bytes.Clone(k))
			rows = append(rows, bytes.Clone(v))
		} else {
			gone = append(gone, bytes.Clone(k))
		}
	}
	for i, k := range move {
		if err := b.Put(replayKey(ended, k[4:]), rows[i]); err != nil {
			return 0, err
		}
	}
	for _, k := range append(gone, move...) {
		if err := b.Delete(k); err != nil {
			return 0, err
		}
	}
	return len(gone) + len(move), nil
}
