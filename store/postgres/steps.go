package postgres

import (
	"context"
	"encoding/binary"
	"maps"
	"math"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// stepStore implements [store.Steps].
type stepStore struct {
	engine.Steps
	s *Store
}

// Steps implements [store.Store].
func (s *Store) Steps() store.Steps { return stepStore{engine.Steps{Driver: driver{s}}, s} }

// NextConv implements [engine.Tx]. The number of a conversation is its first revision.
func (t *txn) NextConv(rev store.Rev) uint64 { return uint64(rev) }

func convTermKey(term string, seq uint64) []byte {
	return engine.AppendU64(engine.HashKey(term), seq)
}

func splitEntryKey(key []byte) (seq, n uint64, ok bool) {
	if len(key) != 16 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(key), binary.BigEndian.Uint64(key[8:]), true
}

// DropEntries implements [engine.Tx]. It removes the whole transcript at once.
func (t *txn) DropEntries(seq uint64, _ int) (removed int, err error) {
	prefix := engine.AppendU64(nil, seq)
	maps.DeleteFunc(t.cells[entries], func(key string, _ *cell) bool { return strings.HasPrefix(key, string(prefix)) })
	t.cut = append(t.cut, prefix)
	return 0, nil
}

// PutReplay implements [engine.Tx].
func (t *txn) PutReplay(r engine.ReplayRow, _ *engine.StoredReplay, _ bool) {
	t.Put(engine.ReplayToRow(r, engine.EncodeReplay(r)), engine.Row{})
}

// ReplaysOf implements [engine.Tx].
func (t *txn) ReplaysOf(conv store.Conversation) (recs []engine.StoredReplay, err error) {
	// num > 0 repeats the condition of the partial index.
	err = t.lockRows(replays, "select key, num, due, value from replays where num = $1 and num > 0 order by key for update", int64(conv.Seq))
	if err != nil {
		return nil, err
	}
	for _, c := range t.cells[replays] { // the rows that were locked above, and perhaps others
		if c.after == nil || c.after.num != int64(conv.Seq) {
			continue
		}
		rec, err := engine.DecodeReplay(c.after.value)
		if err != nil {
			return nil, err
		}
		recs = append(recs, engine.StoredReplay{ReplayRow: rec})
	}
	return recs, nil
}

func (s stepStore) Conversations(ctx context.Context, term string, before uint64, limit int, now time.Time) (store.ConvPage, error) {
	if limit < 1 {
		return store.ConvPage{}, engine.ErrLimit
	}
	if before == 0 || before > math.MaxInt64 {
		before = math.MaxInt64
	}
	sql := "select num, value from convs where num < $1 and due > $2 order by num desc limit $3"
	args := []any{int64(before), engine.Nanos(now), limit + 1}
	if term != "" {
		sql = `select c.num, c.value from conv_terms t join convs c on c.num = t.num
			where t.key < $1 and t.key > $4 and c.due > $2 order by t.key desc limit $3`
		args = []any{convTermKey(term, before), engine.Nanos(now), limit + 1, convTermKey(term, 0)}
	}
	var page store.ConvPage
	var rows int
	var num, last int64
	var value []byte
	err := s.s.query(ctx, sql, args, []any{&num, &value}, func() error {
		if rows++; rows > limit {
			page.Next = uint64(last)
			return nil
		}
		last = num
		conv, err := engine.DecodeConv(uint64(num), value)
		if err != nil {
			s.s.damage.Note("left out of a list", err)
			return nil
		}
		page.Conversations = append(page.Conversations, conv)
		return nil
	})
	if err != nil {
		return store.ConvPage{}, err
	}
	return page, nil
}

func (s stepStore) Transcript(ctx context.Context, key store.ConvKey, after uint64, limit int) ([]store.Entry, error) {
	if limit < 1 {
		return nil, engine.ErrLimit
	}
	stored, err := s.s.get(ctx, convs, engine.ConvKey(key))
	if isRowError(err) || after == math.MaxUint64 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	prefix := engine.AppendU64(nil, uint64(stored.num))
	var list []store.Entry
	var value []byte
	n := after
	err = s.s.query(ctx, "select value from entries where key > $1 and key < $2 order by key limit $3",
		[]any{engine.EntryKey(uint64(stored.num), after), prefixEnd(prefix), limit}, []any{&value}, func() error {
			n++
			e, err := engine.DecodeEntry(n, value)
			list = append(list, e.Entry)
			return err
		})
	return list, err
}
