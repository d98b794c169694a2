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

// convSeq returns the key of a conversation's row, live or not; nil where there is none.
func convSeq(tx *bbolt.Tx, key store.ConvKey) []byte {
	return tx.Bucket(bucketConvKeys).Get(convKey(key))
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
	seq := convSeq(tx, key)
	if seq == nil {
		return store.Conversation{}, false, nil
	}
	return convBySeq(tx, seq)
}

func convBySeq(tx *bbolt.Tx, seq []byte) (conv store.Conversation, ok bool, err error) {
	row := tx.Bucket(bucketConvs).Get(convRowKey(seq, convRow, nil))
	if row == nil {
		return store.Conversation{}, false, nil
	}
	conv, err = decodeConv(number(seq), row)
	return conv, err == nil, err
}

// writeConv stores a row in the place of old (zero for a new one) with the entries of its step.
func writeConv(t *txn, conv, old store.Conversation, step store.Step) error {
	rows := t.Bucket(bucketConvs)
	armed := deadline(old.Expires)
	if old.Seq == 0 {
		seq, err := rows.NextSequence()
		if err != nil {
			return err
		}
		conv.Seq, armed = seq, noTime
		if err := t.Bucket(bucketConvKeys).Put(convKey(conv.Key), u64(seq)); err != nil {
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
		if err := rows.Put(convRowKey(seq, convEntry, u64(conv.Entries)), encodeEntry(row)); err != nil {
			return err
		}
	}
	for gone, term := range differing(old.Terms, conv.Terms) {
		key := convTermKey(term, conv.Seq)
		var err error
		if gone {
			err = t.Bucket(bucketConvTerms).Delete(key)
		} else {
			err = t.Bucket(bucketConvTerms).Put(key, nil)
		}
		if err != nil {
			return err
		}
	}
	if err := rows.Put(convRowKey(seq, convRow, nil), encodeConv(conv)); err != nil {
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
		if err := t.Bucket(bucketConvTerms).Delete(convTermKey(term, conv.Seq)); err != nil {
			return err
		}
	}
	if err := t.Bucket(bucketConvKeys).Delete(convKey(conv.Key)); err != nil {
		return err
	}
	return t.Bucket(bucketConvs).Delete(convRowKey(u64(conv.Seq), convRow, nil))
}

// deleteEntries removes up to limit keys of a conversation, its row aside, and says how many there were.
func deleteEntries(t *txn, seq uint64, limit int) (int, error) {
	b, prefix := t.Bucket(bucketConvs), u64(seq)
	var keys [][]byte
	for k := range keysFrom(b, prefix, prefix) {
		if len(keys) == limit || k[8] == convRow {
			break
		}
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
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
		for seq := range convSeqs(tx, term, before) {
			conv, ok, err := convBySeq(tx, seq)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("%w: conversation %x is listed and missing", ErrDamaged, seq)
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

// convSeqs lists the conversations that carry term, all where it is empty, newest first from below before.
func convSeqs(tx *bbolt.Tx, term string, before uint64) iter.Seq[[]byte] {
	b, prefix := tx.Bucket(bucketConvs), []byte(nil)
	if term != "" {
		b, prefix = tx.Bucket(bucketConvTerms), key2(nil, term)
	}
	return func(yield func([]byte) bool) {
		c := b.Cursor()
		for from := u64(before); ; {
			k, _ := c.Seek(append(bytes.Clone(prefix), from...))
			if k == nil {
				k, _ = c.Last()
			} else {
				k, _ = c.Prev()
			}
			if k == nil || !bytes.HasPrefix(k, prefix) {
				return
			}
			from = k[len(prefix):][:8] // of bucket convs this leaves the kind, the last of its conversation
			if !yield(from) {
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
		seq := convSeq(tx, key)
		if seq == nil || after == math.MaxUint64 {
			return nil
		}
		for k, v := range keysFrom(tx.Bucket(bucketConvs), convRowKey(seq, convEntry, u64(after+1)), convRowKey(seq, convEntry, nil)) {
			e, err := decodeEntry(number(k[9:]), v)
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
