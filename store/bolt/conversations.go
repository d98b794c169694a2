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
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// steps implements [store.Steps].
type steps struct {
	engine.Steps
	s *Store
}

// Steps implements [store.Store].
func (s *Store) Steps() store.Steps { return s.stepsOf(s.self) }

func (s *Store) stepsOf(by *local.Handle) store.Steps {
	return steps{engine.Steps{Driver: driver{s, by}}, s}
}

// The kinds of rows of a conversation in bucket convs, in the order of their keys.
const (
	convReplay byte = iota // names the replay record of a message that the conversation accepted
	convEntry              // an entry of the transcript
	convRow                // the conversation itself
)

// convRowKey returns a key in bucket convs: seq (8 bytes), kind (1 byte) and rest, such as the number of an entry.
func convRowKey(seq []byte, kind byte, rest []byte) []byte {
	return append(append(append(make([]byte, 0, 9+len(rest)), seq...), kind), rest...)
}

// convBySeq returns a conversation, live or not, or nil if it does not exist.
func convBySeq(tx *bbolt.Tx, seq []byte) (*store.Conversation, error) {
	row, err := bucketConvs.in(tx).get(convRowKey(seq, convRow, nil))
	if row == nil || err != nil {
		return nil, err
	}
	conv, err := engine.DecodeConv(number(seq), row)
	return &conv, err
}

// NextConv implements [engine.Tx].
func (t *txn) NextConv(store.Rev) uint64 { return bucketConvs.in(t).next() }

// convTermKey returns the function that makes the keys of a conversation in bucketConvTerms.
func convTermKey(seq uint64) func(term string) []byte {
	return func(term string) []byte { return engine.AppendU64(engine.HashKey(term), seq) }
}

// DropEntries implements [engine.Tx].
func (t *txn) DropEntries(seq uint64, limit int) (removed int, err error) {
	rows, prefix := bucketConvs.in(t), u64(seq)
	var keys [][]byte
	for row, err := range rows.from(prefix, prefix) {
		if err != nil && !bytes.HasPrefix(row.key, prefix) { // an error elsewhere; damaged rows of this conversation are removed like the others
			return 0, err
		}
		if len(keys) == limit || row.key[8] == convRow {
			break
		}
		keys = append(keys, bytes.Clone(row.key))
	}
	for _, k := range keys {
		rows.delete(k)
	}
	return len(keys), nil
}

func (s steps) Conversations(ctx context.Context, term string, before uint64, limit int, now time.Time) (store.ConvPage, error) {
	if limit < 1 {
		return store.ConvPage{}, engine.ErrLimit
	}
	if before == 0 {
		before = math.MaxUint64
	}
	var page store.ConvPage
	err := s.s.view(ctx, func(tx *bbolt.Tx) error {
		for seq, err := range convSeqs(tx, term, before) {
			var conv *store.Conversation
			if err == nil {
				conv, err = convBySeq(tx, seq)
			}
			if conv == nil && err == nil {
				err = fmt.Errorf("%w: conversation %x is listed but has no row", ErrDamaged, seq)
			}
			if err != nil {
				s.s.damage.Note("left out of a list", err)
				continue
			}
			if !engine.IsLive(conv.Expires, now) {
				continue
			}
			if len(page.Conversations) == limit {
				page.Next = page.Conversations[limit-1].Seq
				break
			}
			page.Conversations = append(page.Conversations, *conv)
		}
		return nil
	})
	if err != nil {
		return store.ConvPage{}, err
	}
	return page, nil
}

// convSeqs yields the seqs of the conversations that carry term (all if term is empty) and whose seq is below end, newest
// first. For damaged rows it yields errors.
func convSeqs(tx *bbolt.Tx, term string, end uint64) iter.Seq2[[]byte, error] {
	rows, prefix := bucketConvs.in(tx), []byte(nil)
	if term != "" {
		rows, prefix = bucketConvTerms.in(tx), engine.HashKey(term)
	}
	return func(yield func([]byte, error) bool) {
		c := rows.raw.Cursor()
		for from := u64(end); ; {
			start := append(bytes.Clone(prefix), from...)
			next, stored := c.Seek(start)
			k, stored, err := rows.before(c, start, prefix, next, stored, false)
			if err != nil && !yield(nil, err) {
				return
			}
			if k == nil {
				return
			}
			original, _, err := rows.read(k, stored)
			if !bytes.HasPrefix(k, prefix) && !bytes.HasPrefix(original, prefix) {
				return
			}
			previous := from
			from = k[len(prefix):][:8] // in bucket convs, this skips the other rows of the conversation
			if bytes.Compare(from, previous) >= 0 {
				return // happens only if keys are out of order, and then the error was yielded already
			}
			if err == nil && !yield(from, nil) {
				return
			}
		}
	}
}

func (s steps) Transcript(ctx context.Context, key store.ConvKey, after uint64, limit int) ([]store.Entry, error) {
	if limit < 1 {
		return nil, engine.ErrLimit
	}
	var entries []store.Entry
	err := s.s.view(ctx, func(tx *bbolt.Tx) error {
		seq, err := bucketConvKeys.in(tx).get(engine.ConvKey(key))
		if seq == nil || err != nil || after == math.MaxUint64 {
			return err
		}
		for row, err := range bucketConvs.in(tx).from(convRowKey(seq, convEntry, u64(after+1)), convRowKey(seq, convEntry, nil)) {
			if err != nil {
				return err
			}
			e, err := engine.DecodeEntry(number(row.key[9:]), row.value)
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
