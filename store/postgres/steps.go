package postgres

import (
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
	var n needs
	n.lease(step.Held)
	if step.Conv != nil {
		n.row(convs, engine.ConvKey(step.Conv.Key))
	}
	for _, r := range []*store.Replay{step.Replay, step.Answer} {
		if r != nil {
			n.row(replays, engine.ReplayHash(r.Sender, r.MessageID))
			n.row(convs, engine.ConvKey(r.Conv))
		}
	}
	n.addRecords(step.Records)
	var applied store.Applied
	err := s.s.writer.do(ctx, n, func(t *txn) (func() error, error) {
		applied = store.Applied{}
		if err := t.CheckLease(step.Held); err != nil {
			return nil, err
		}
		if step.Replay != nil {
			before, err := t.liveReplay(step.Replay.Sender, step.Replay.MessageID, step.Now)
			switch {
			case err != nil:
				return nil, err
			case before != nil && before.Digest != step.Replay.Digest:
				return nil, store.ErrMismatch
			case before != nil:
				rec, err := t.withAnswer(*before, step.Now)
				applied = store.Applied{Dup: true, Replay: &rec}
				return nil, err
			}
		}
		var answered *engine.ReplayRow
		if step.Answer != nil {
			var err error
			answered, err = t.liveReplay(step.Answer.Sender, step.Answer.MessageID, step.Now)
			if err != nil {
				return nil, err
			}
			if answered != nil && answered.Digest != step.Answer.Digest {
				return nil, store.ErrMismatch
			}
		}
		conv, err := planConv(t, step)
		if err != nil {
			return nil, err
		}
		records, err := planRecords(t, step.Records, step.Now)
		if err != nil {
			return nil, err
		}
		return func() error {
			rev := t.nextRev()
			var written *store.Conversation
			if step.Conv != nil {
				applied.Rev = rev
				t.noteConv(step.Conv.Key)
				written = conv(rev)
			}
			if step.Replay != nil {
				if err := t.putReplay(step, written); err != nil {
					return err
				}
			}
			if answered != nil {
				answered.SetAnswer(step.Answer.Status, step.Answer.Answer, step, written)
				t.storeReplay(*answered)
			}
			records(rev)
			return nil
		}, nil
	})
	if err != nil {
		return store.Applied{}, err
	}
	return applied, nil
}

// planConv checks the revision of a step's conversation and returns a function that writes the row and the entries. The
// function returns the row. If the step changes no conversation, the function is nil.
func planConv(t *txn, step store.Step) (func(store.Rev) *store.Conversation, error) {
	if step.Conv == nil {
		return nil, nil
	}
	conv, key := *step.Conv, engine.ConvKey(step.Conv.Key)
	conv.Terms = engine.SortedSet(conv.Terms)
	old, err := t.conv(step.Conv.Key)
	if err != nil {
		return nil, err
	}
	live := old != nil && engine.IsLive(old.Expires, step.Now)
	have := store.Absent
	if old != nil {
		have = old.Rev
	}
	if !engine.RevFits(conv.Rev, live, have) {
		return nil, fmt.Errorf("conversation: %w", store.ErrConflict)
	}
	return func(rev store.Rev) *store.Conversation {
		conv.Rev, conv.Seq, conv.Entries = rev, uint64(rev), 0
		var terms []string // of the row that is replaced
		switch {
		case live:
			conv.Seq, conv.Entries, terms = old.Seq, old.Entries, old.Terms
		case old != nil:
			t.dropConv(*old)
		}
		for _, e := range step.Append {
			conv.Entries++
			t.put(entries, entryKey(conv.Seq, conv.Entries), row{value: engine.EncodeEntry(engine.EntryRow{Entry: e})})
		}
		for removed, term := range cardindex.Diff(terms, conv.Terms) {
			if removed {
				t.drop(convTerms, convTermKey(term, conv.Seq))
			} else {
				t.put(convTerms, convTermKey(term, conv.Seq), row{num: int64(conv.Seq)})
			}
		}
		t.put(convs, key, row{num: int64(conv.Seq), due: engine.Deadline(conv.Expires), value: engine.EncodeConv(conv)})
		return &conv
	}, nil
}

func convTermKey(term string, seq uint64) []byte {
	return engine.AppendU64(engine.Key2(nil, term), seq)
}

// entryKey returns the key of an entry of the transcript of the conversation with this seq.
func entryKey(seq, n uint64) []byte { return engine.AppendU64(engine.AppendU64(nil, seq), n) }

func splitEntryKey(key []byte) (seq, n uint64, ok bool) {
	if len(key) != 16 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(key), binary.BigEndian.Uint64(key[8:]), true
}

// conv returns a conversation, live or not, or nil.
func (t *txn) conv(key store.ConvKey) (*store.Conversation, error) {
	stored, err := t.get(convs, engine.ConvKey(key))
	if stored == nil || err != nil {
		return nil, err
	}
	conv, err := engine.DecodeConv(uint64(stored.num), stored.value)
	return &conv, err
}

// dropConv removes a conversation with its terms and its transcript. Its replay records stay until they expire.
func (t *txn) dropConv(conv store.Conversation) {
	t.dropEntries(engine.AppendU64(nil, conv.Seq))
	for _, term := range conv.Terms {
		t.drop(convTerms, convTermKey(term, conv.Seq))
	}
	t.drop(convs, engine.ConvKey(conv.Key))
}

// liveReplay returns the record of a message if it counts at now, or nil.
func (t *txn) liveReplay(sender, messageID string, now time.Time) (*engine.ReplayRow, error) {
	stored, err := t.get(replays, engine.ReplayHash(sender, messageID))
	if stored == nil || err != nil {
		return nil, err
	}
	rec, err := engine.DecodeReplay(stored.value)
	if err != nil {
		return nil, err
	}
	var conv *store.Conversation
	if rec.ConvSeq != 0 && !engine.IsLive(rec.Expires, now) {
		if conv, err = t.conv(rec.Conv); err != nil {
			return nil, err
		}
	}
	if !isReplayLive(rec, conv, now) {
		return nil, nil
	}
	return &rec, nil
}

// isReplayLive reports whether a record counts at now: it has not expired, or its conversation is open. conv is the
// conversation that has its key now, or nil.
func isReplayLive(rec engine.ReplayRow, conv *store.Conversation, now time.Time) bool {
	return engine.IsLive(rec.Expires, now) ||
		conv != nil && conv.Seq == rec.ConvSeq && conv.Open && engine.IsLive(conv.Expires, now)
}

func (t *txn) withAnswer(rec engine.ReplayRow, now time.Time) (store.Replay, error) {
	conv, err := t.conv(rec.Conv)
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

// putReplay stores the record of a step, in place of one that no longer counts. written is the conversation that the
// step wrote, or nil.
func (t *txn) putReplay(step store.Step, written *store.Conversation) error {
	r := engine.ReplayRow{Replay: *step.Replay}
	switch {
	case written != nil && r.Conv == step.Conv.Key:
		r.ConvSeq = written.Seq
	case r.Conv != (store.ConvKey{}):
		conv, err := t.conv(r.Conv)
		if err != nil {
			return err
		}
		if conv != nil && engine.IsLive(conv.Expires, step.Now) {
			r.ConvSeq = conv.Seq
		}
	}
	r.SetAnswer(r.Status, r.Answer, step, written)
	t.storeReplay(r)
	return nil
}

func (t *txn) storeReplay(r engine.ReplayRow) {
	t.put(replays, engine.ReplayHash(r.Sender, r.MessageID), row{num: int64(r.ConvSeq), due: engine.Deadline(r.Expires), value: engine.EncodeReplay(r)})
}

func (s stepStore) Forget(ctx context.Context, key store.ConvKey, ifRev store.Rev, changes []store.Change, now time.Time) error {
	var n needs
	n.row(convs, engine.ConvKey(key))
	n.addRecords(changes)
	return s.s.writer.do(ctx, n, func(t *txn) (func() error, error) {
		conv, err := t.conv(key)
		switch {
		case err != nil:
			return nil, err
		case conv == nil || !engine.IsLive(conv.Expires, now):
			return nil, store.ErrNotFound
		case !engine.RevFits(ifRev, true, conv.Rev):
			return nil, fmt.Errorf("conversation: %w", store.ErrConflict)
		}
		records, err := planRecords(t, changes, now)
		if err != nil {
			return nil, err
		}
		if err := t.lockRows(replays, "select key, num, due, value from replays where num = $1 and num > 0 order by key for update", int64(conv.Seq)); err != nil {
			return nil, err
		}
		return func() error {
			t.noteConv(key)
			for _, c := range t.cells[replays] {
				if c.now == nil || c.now.num != int64(conv.Seq) {
					continue
				}
				rec, err := engine.DecodeReplay(c.now.value)
				if err != nil {
					return err
				}
				rec.Forget()
				t.storeReplay(rec)
			}
			t.dropConv(*conv)
			records(t.nextRev())
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
		if isRefusal(err) {
			return nil, nil
		}
		return stored.value, err
	})
}

func (s stepStore) Conversation(ctx context.Context, key store.ConvKey, now time.Time) (store.Conversation, error) {
	stored, err := s.s.get(ctx, convs, engine.ConvKey(key))
	if err != nil {
		return store.Conversation{}, err
	}
	conv, err := engine.DecodeConv(uint64(stored.num), stored.value)
	if err == nil && !engine.IsLive(conv.Expires, now) {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Conversation{}, err
	}
	return conv, nil
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
	if isRefusal(err) || after == math.MaxUint64 {
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
		[]any{entryKey(uint64(stored.num), after), end(prefix), limit}, []any{&value}, func() error {
			n++
			e, err := engine.DecodeEntry(n, value)
			list = append(list, e.Entry)
			return err
		})
	return list, err
}
