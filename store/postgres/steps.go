package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// stepStore implements [store.Steps].
type stepStore struct{ s *Store }

// Steps implements [store.Store].
func (s *Store) Steps() store.Steps { return stepStore{s} }

func (s stepStore) Apply(ctx context.Context, step store.Step) (store.Applied, error) {
	if err := engine.CheckStep(step); err != nil {
		return store.Applied{}, err
	}
	var n needs // the rows to lock and read first
	n.addLease(step.Held)
	if step.Conv != nil {
		n.addRow(convs, engine.ConvKey(step.Conv.Key))
	}
	for _, r := range []*store.Replay{step.Replay, step.Answer} {
		if r != nil {
			n.addRow(replays, engine.ReplayHash(r.Sender, r.MessageID))
			n.addRow(convs, engine.ConvKey(r.Conv))
		}
	}
	n.addRecords(step.Records)
	var applied store.Applied
	err := s.s.writer.do(ctx, n, func(t *txn) (func() error, error) {
		plan, dup, err := engine.PlanStep(t, step)
		applied = store.Applied{Dup: dup != nil, Replay: dup}
		if err != nil || dup != nil {
			return nil, err
		}
		return func() error {
			rev := t.nextRev()
			if plan.Expired != nil {
				t.dropConv(*plan.Expired)
			}
			if plan.Conv != nil {
				applied.Rev, plan.Conv.Rev = rev, rev
				t.noteConv(plan.Conv.Key)
				t.putConv(plan.Conv, plan.Old.Terms, step.Append)
			}
			plan.Complete() // the answers, which name the entries that were just written
			if plan.Replay != nil {
				t.putReplay(*plan.Replay)
			}
			if plan.Answered != nil {
				t.putReplay(plan.Answered.ReplayRow)
			}
			t.writeRecords(plan.Records, rev)
			return nil
		}, nil
	})
	if err != nil {
		return store.Applied{}, err
	}
	return applied, nil
}

// putConv stores a conversation with its new entries. A new conversation gets its revision as its Seq. oldTerms are the
// terms of the row that is replaced.
func (t *txn) putConv(conv *store.Conversation, oldTerms []string, added []store.Entry) {
	conv.Seq = cmp.Or(conv.Seq, uint64(conv.Rev))
	for _, e := range added {
		conv.Entries++
		t.put(entries, entryKey(conv.Seq, conv.Entries), row{value: engine.EncodeEntry(engine.EntryRow{Entry: e})})
	}
	for removed, term := range cardindex.Diff(oldTerms, conv.Terms) {
		if removed {
			t.drop(convTerms, convTermKey(term, conv.Seq))
		} else {
			t.put(convTerms, convTermKey(term, conv.Seq), row{num: int64(conv.Seq)})
		}
	}
	t.put(convs, engine.ConvKey(conv.Key), row{num: int64(conv.Seq), due: engine.Deadline(conv.Expires), value: engine.EncodeConv(*conv)})
}

func convTermKey(term string, seq uint64) []byte {
	return engine.AppendU64(engine.AppendSized(nil, term), seq)
}

// entryKey returns the key of an entry of the transcript of the conversation with this seq.
func entryKey(seq, n uint64) []byte { return engine.AppendU64(engine.AppendU64(nil, seq), n) }

func splitEntryKey(key []byte) (seq, n uint64, ok bool) {
	if len(key) != 16 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(key), binary.BigEndian.Uint64(key[8:]), true
}

// Conv implements [engine.StepTx].
func (t *txn) Conv(key store.ConvKey) (*store.Conversation, error) {
	stored, err := t.get(convs, engine.ConvKey(key))
	if stored == nil || err != nil {
		return nil, err
	}
	conv, err := engine.DecodeConv(uint64(stored.num), stored.value)
	return &conv, err
}

// dropConv removes a conversation with its terms and its transcript. Its replay records, of accepted messages, stay
// until they expire.
func (t *txn) dropConv(conv store.Conversation) {
	t.dropEntries(engine.AppendU64(nil, conv.Seq))
	for _, term := range conv.Terms {
		t.drop(convTerms, convTermKey(term, conv.Seq))
	}
	t.drop(convs, engine.ConvKey(conv.Key))
}

// Replay implements [engine.StepTx].
func (t *txn) Replay(sender, messageID string, now time.Time) (rec engine.StoredReplay, live bool, err error) {
	stored, err := t.get(replays, engine.ReplayHash(sender, messageID))
	if stored == nil || err != nil {
		return rec, false, err
	}
	if rec.ReplayRow, err = engine.DecodeReplay(stored.value); err != nil {
		return rec, false, err
	}
	var conv *store.Conversation
	if rec.ConvSeq != 0 && !engine.IsLive(rec.Expires, now) {
		conv, err = t.Conv(rec.Conv)
	}
	return rec, isReplayLive(rec.ReplayRow, conv, now), err
}

// isReplayLive reports whether a record counts at now: it has not expired, or its conversation is open. conv is the
// conversation that now has the key in the record, or nil.
func isReplayLive(rec engine.ReplayRow, conv *store.Conversation, now time.Time) bool {
	return engine.IsLive(rec.Expires, now) ||
		conv != nil && conv.Seq == rec.ConvSeq && conv.Open && engine.IsLive(conv.Expires, now)
}

// WithAnswer implements [engine.StepTx].
func (t *txn) WithAnswer(rec engine.ReplayRow, now time.Time) (store.Replay, error) {
	conv, err := t.Conv(rec.Conv)
	if err != nil {
		return store.Replay{}, err
	}
	if conv != nil && conv.Seq != rec.ConvSeq {
		conv = nil
	}
	return rec.WithAnswer(conv, now, func(n uint64) ([]byte, error) {
		stored, err := t.get(entries, entryKey(rec.ConvSeq, n))
		if stored == nil || err != nil {
			return nil, err
		}
		return stored.value, nil
	})
}

func (t *txn) putReplay(r engine.ReplayRow) {
	t.put(replays, engine.ReplayHash(r.Sender, r.MessageID), row{num: int64(r.ConvSeq), due: engine.Deadline(r.Expires), value: engine.EncodeReplay(r)})
}

func (s stepStore) Forget(ctx context.Context, key store.ConvKey, ifRev store.Rev, changes []store.Change, now time.Time) error {
	var n needs
	n.addRow(convs, engine.ConvKey(key))
	n.addRecords(changes)
	return s.s.writer.do(ctx, n, func(t *txn) (func() error, error) {
		conv, err := t.Conv(key)
		switch {
		case err != nil:
			return nil, err
		case conv == nil || !engine.IsLive(conv.Expires, now):
			return nil, store.ErrNotFound
		case !engine.RevFits(ifRev, true, conv.Rev):
			return nil, fmt.Errorf("conversation: %w", store.ErrConflict)
		}
		records, err := engine.PlanRecords(t, changes, now)
		if err != nil {
			return nil, err
		}
		// num > 0 repeats the condition of the partial index.
		if err := t.lockRows(replays, "select key, num, due, value from replays where num = $1 and num > 0 order by key for update", int64(conv.Seq)); err != nil {
			return nil, err
		}
		return func() error {
			t.noteConv(key)
			for _, c := range t.cells[replays] { // the replay records that were locked above, and perhaps others
				if c.after == nil || c.after.num != int64(conv.Seq) {
					continue
				}
				rec, err := engine.DecodeReplay(c.after.value)
				if err != nil {
					return err
				}
				rec.Forget()
				t.putReplay(rec)
			}
			t.dropConv(*conv)
			t.writeRecords(records, t.nextRev())
			return nil
		}, nil
	})
}

func (s stepStore) FindReplay(ctx context.Context, sender, messageID string, now time.Time) (store.Replay, error) {
	stored, err := s.s.get(ctx, replays, engine.ReplayHash(sender, messageID))
	if err != nil {
		return store.Replay{}, err
	}
	rec, err := engine.DecodeReplay(stored.value)
	if err != nil {
		return store.Replay{}, err
	}
	var conv *store.Conversation
	if rec.ConvSeq != 0 {
		if found, err := s.Conversation(ctx, rec.Conv, now); err == nil && found.Seq == rec.ConvSeq {
			conv = &found
		} else if err != nil && !errors.Is(err, store.ErrNotFound) { // a damaged conversation is not a missing one
			return store.Replay{}, err
		}
	}
	if !isReplayLive(rec, conv, now) {
		return store.Replay{}, store.ErrNotFound
	}
	return rec.WithAnswer(conv, now, func(n uint64) ([]byte, error) {
		stored, err := s.s.get(ctx, entries, entryKey(rec.ConvSeq, n))
		if isRowError(err) {
			return nil, nil
		}
		return stored.value, err
	})
}

func (s stepStore) Conversation(ctx context.Context, key store.ConvKey, now time.Time) (store.Conversation, error) {
	decode := func(r row) (store.Conversation, error) { return engine.DecodeConv(uint64(r.num), r.value) }
	return readRow(ctx, s.s, convs, engine.ConvKey(key), decode, func(conv store.Conversation) bool { return engine.IsLive(conv.Expires, now) })
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
		[]any{entryKey(uint64(stored.num), after), prefixEnd(prefix), limit}, []any{&value}, func() error {
			n++
			e, err := engine.DecodeEntry(n, value)
			list = append(list, e.Entry)
			return err
		})
	return list, err
}
