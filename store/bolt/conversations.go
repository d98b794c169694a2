package bolt

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
)

// convSeq returns the seq of a conversation, live or not; nil if there is none.
func convSeq(tx *bbolt.Tx, key store.ConvKey) ([]byte, error) {
	return bucketConvKeys.in(tx).get(convKey(key))
}

func convKey(key store.ConvKey) []byte { return append(key2(nil, key.Peer), key.ID...) }

// What stands in bucket convs for one conversation, in the order of the keys.
const (
	convReplay byte = iota
	convEntry
	convRow
)

func convRowKey(seq []byte, kind byte, rest []byte) []byte {
	return append(append(append(make([]byte, 0, 9+len(rest)), seq...), kind), rest...)
}

// convByKey returns a row, live or not; ok is false where there is none.
func convByKey(tx *bbolt.Tx, key store.ConvKey) (conv store.Conversation, ok bool, err error) {
	seq, err := convSeq(tx, key)
	if seq == nil || err != nil {
		return store.Conversation{}, false, err
	}
	return convBySeq(tx, seq)
}

func convBySeq(tx *bbolt.Tx, seq []byte) (conv store.Conversation, ok bool, err error) {
	row, err := bucketConvs.in(tx).get(convRowKey(seq, convRow, nil))
	if row == nil || err != nil {
		return store.Conversation{}, false, err
	}
	conv, err = decodeConv(number(seq), row)
	return conv, err == nil, err
}

// writeConv stores a row in the place of old (zero for a new one) with the entries of its step.
func writeConv(t *txn, conv, old store.Conversation, step store.Step) error {
	rows := bucketConvs.in(t.Tx)
	armed := deadline(old.Expires)
	if old.Seq == 0 {
		seq, err := rows.b.NextSequence()
		if err != nil {
			return err
		}
		conv.Seq, armed = seq, noTime
		if err := bucketConvKeys.in(t.Tx).put(convKey(conv.Key), u64(seq)); err != nil {
			return err
		}
	}
	seq := u64(conv.Seq)
	for i, e := range step.Append {
		row := entryRow{Entry: e}
		if i == 0 && notes(step) {
			row.replay = replayHash(step.Replay.Sender, step.Replay.MessageID)
		}
		conv.Entries++
		if err := rows.put(convRowKey(seq, convEntry, u64(conv.Entries)), encodeEntry(row)); err != nil {
			return err
		}
	}
	for gone, term := range differing(old.Terms, conv.Terms) {
		key := convTermKey(term, conv.Seq)
		var err error
		if gone {
			err = bucketConvTerms.in(t.Tx).delete(key)
		} else {
			err = bucketConvTerms.in(t.Tx).put(key, nil)
		}
		if err != nil {
			return err
		}
	}
	if err := rows.put(convRowKey(seq, convRow, nil), encodeConv(conv)); err != nil {
		return err
	}
	return arm(t.Tx, kindConv, seq, armed, deadline(conv.Expires))
}

func convTermKey(term string, seq uint64) []byte { return append(key2(nil, term), u64(seq)...) }

// deleteConv removes a row, its names and its transcript. Its replay records stay until they expire.
func deleteConv(t *txn, conv store.Conversation) error {
	if _, err := deleteEntries(t, conv.Seq, math.MaxInt); err != nil {
		return err
	}
	return deleteConvRow(t, conv)
}

func deleteConvRow(t *txn, conv store.Conversation) error {
	for _, term := range conv.Terms {
		if err := bucketConvTerms.in(t.Tx).delete(convTermKey(term, conv.Seq)); err != nil {
			return err
		}
	}
	if err := bucketConvKeys.in(t.Tx).delete(convKey(conv.Key)); err != nil {
		return err
	}
	return bucketConvs.in(t.Tx).delete(convRowKey(u64(conv.Seq), convRow, nil))
}

// deleteEntries removes up to limit keys of a conversation, its row aside, and says how many there were.
func deleteEntries(t *txn, seq uint64, limit int) (int, error) {
	rows, prefix := bucketConvs.in(t.Tx), u64(seq)
	var keys [][]byte
	for row, err := range rows.from(prefix, prefix) {
		if err != nil && !bytes.HasPrefix(row.key, prefix) { // a damaged one of this conversation goes with it
			return 0, err
		}
		if len(keys) == limit || row.key[8] == convRow {
			break
		}
		keys = append(keys, bytes.Clone(row.key))
	}
	for _, k := range keys {
		if err := rows.delete(k); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}

// Conversation implements [store.Steps].
func (s steps) Conversation(ctx context.Context, key store.ConvKey, now time.Time) (conv store.Conversation, err error) {
	err = s.s.view(ctx, func(tx *bbolt.Tx) error {
		row, ok, err := convByKey(tx, key)
		if err != nil {
			return err
		}
		if !ok || !live(row.Expires, now) {
			return store.ErrNotFound
		}
		conv = row
		return nil
	})
	return conv, err
}

// Conversations implements [store.Steps].
func (s steps) Conversations(ctx context.Context, term string, before uint64, limit int, now time.Time) (store.ConvPage, error) {
	if limit < 1 {
		return store.ConvPage{}, errLimit
	}
	if before == 0 {
		before = math.MaxUint64
	}
	var page store.ConvPage
	err := s.s.view(ctx, func(tx *bbolt.Tx) error {
		for seq, err := range convSeqs(tx, term, before) {
			var conv store.Conversation
			ok := true
			if err == nil {
				conv, ok, err = convBySeq(tx, seq)
			}
			if !ok && err == nil {
				err = fmt.Errorf("%w: conversation %x is listed and missing", ErrDamaged, seq)
			}
			if err != nil {
				s.s.damage.note("left out of a list", err)
				continue
			}
			if !live(conv.Expires, now) {
				continue
			}
			if len(page.Conversations) == limit {
				page.Next = page.Conversations[limit-1].Seq
				break
			}
			page.Conversations = append(page.Conversations, conv)
		}
		return nil
	})
	if err != nil {
		return store.ConvPage{}, err
	}
	return page, nil
}

// convSeqs lists the conversations that carry term, all where it is empty, newest first from below before. Damaged rows
// come as errors.
func convSeqs(tx *bbolt.Tx, term string, before uint64) iter.Seq2[[]byte, error] {
	rows, prefix := bucketConvs.in(tx), []byte(nil)
	if term != "" {
		rows, prefix = bucketConvTerms.in(tx), key2(nil, term)
	}
	return func(yield func([]byte, error) bool) {
		c := rows.b.Cursor()
		for from := u64(before); ; {
			start := append(bytes.Clone(prefix), from...)
			next, stored := c.Seek(start)
			k, stored, err := rows.before(c, start, prefix, next, stored, false)
			if err != nil && !yield(nil, err) {
				return
			}
			if k == nil {
				return
			}
			written, _, err := rows.read(k, stored)
			if !bytes.HasPrefix(k, prefix) && !bytes.HasPrefix(written, prefix) {
				return
			}
			last := from
			from = k[len(prefix):][:8] // of bucket convs this leaves the kind, the last of its conversation
			if bytes.Compare(from, last) >= 0 {
				return // only keys out of order lead here, and that is told
			}
			if err == nil && !yield(from, nil) {
				return
			}
		}
	}
}

// Transcript implements [store.Steps].
func (s steps) Transcript(ctx context.Context, key store.ConvKey, after uint64, limit int) ([]store.Entry, error) {
	if limit < 1 {
		return nil, errLimit
	}
	var entries []store.Entry
	err := s.s.view(ctx, func(tx *bbolt.Tx) error {
		seq, err := convSeq(tx, key)
		if seq == nil || err != nil || after == math.MaxUint64 {
			return err
		}
		for row, err := range bucketConvs.in(tx).from(convRowKey(seq, convEntry, u64(after+1)), convRowKey(seq, convEntry, nil)) {
			if err != nil {
				return err
			}
			e, err := decodeEntry(number(row.key[9:]), row.value)
			if err != nil {
				return err
			}
			if entries = append(entries, e.Entry); len(entries) == limit {
				break
			}
		}
		return nil
	})
	return entries, err
}
