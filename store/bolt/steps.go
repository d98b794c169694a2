package bolt

import (
	"context"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// steps implements [store.Steps].
type steps struct {
	s  *Store
	by *local.Handle // the handle that calls
}

// Steps implements [store.Store].
func (s *Store) Steps() store.Steps { return steps{s, s.self} }

func (s steps) Apply(ctx context.Context, step store.Step) (store.Applied, error) {
	if err := engine.CheckStep(step); err != nil {
		return store.Applied{}, err
	}
	var applied store.Applied
	err := s.s.writer.doFor(ctx, s.by, func(t *txn) (func() error, error) {
		applied = store.Applied{}
		if err := t.CheckLease(step.Held); err != nil {
			return nil, err
		}
		var old []byte // the key of a record of the same message that no longer counts
		if step.Replay != nil {
			key, before, live, err := liveReplay(t.Tx, step.Replay.Sender, step.Replay.MessageID, step.Now)
			switch {
			case err != nil:
				return nil, err
			case live && before.Digest != step.Replay.Digest:
				return nil, store.ErrMismatch
			case live:
				rec, err := withAnswer(t.Tx, before, step.Now)
				applied = store.Applied{Dup: true, Replay: &rec}
				return nil, err
			}
			old = key
		}
		answer, err := planAnswer(t, step)
		if err != nil {
			return nil, err
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
			if step.Conv != nil {
				applied.Rev = rev
				t.noteConv(step.Conv.Key)
			}
			written, err := conv(rev)
			if err != nil {
				return err
			}
			if step.Replay != nil {
				if err := putReplay(t.Tx, step, old, written); err != nil {
					return err
				}
			}
			answer(written)
			records(rev)
			return nil
		}, nil
	})
	if err != nil {
		return store.Applied{}, err
	}
	return applied, nil
}

// hasReplayEntry reports whether the first entry of a step names its replay record.
func hasReplayEntry(step store.Step) bool {
	return len(step.Append) > 0 && step.Replay != nil && step.Replay.Conv == step.Conv.Key
}

// planAnswer returns a function that replaces the answer of an existing replay record. The function takes the
// conversation that the step wrote, or nil.
func planAnswer(t *txn, step store.Step) (func(*store.Conversation), error) {
	nothing := func(*store.Conversation) {}
	if step.Answer == nil {
		return nothing, nil
	}
	key, rec, live, err := liveReplay(t.Tx, step.Answer.Sender, step.Answer.MessageID, step.Now)
	if err != nil || !live {
		return nothing, err
	}
	if rec.Digest != step.Answer.Digest {
		return nil, store.ErrMismatch
	}
	return func(conv *store.Conversation) {
		rec.SetAnswer(step.Answer.Status, step.Answer.Answer, step, conv)
		bucketReplays.in(t.Tx).put(key, engine.EncodeReplay(rec))
	}, nil
}

// planConv checks the revision of a step's conversation and returns a function that writes the row and the entries. The
// function returns the row, or nil if the step changes no conversation.
func planConv(t *txn, step store.Step) (func(store.Rev) (*store.Conversation, error), error) {
	if step.Conv == nil {
		return func(store.Rev) (*store.Conversation, error) { return nil, nil }, nil
	}
	conv := *step.Conv
	conv.Terms = engine.SortedSet(conv.Terms)
	old, exists, err := convByKey(t.Tx, conv.Key)
	if err != nil {
		return nil, err
	}
	live := exists && engine.IsLive(old.Expires, step.Now)
	if !engine.RevFits(conv.Rev, live, old.Rev) {
		return nil, fmt.Errorf("conversation: %w", store.ErrConflict)
	}
	return func(rev store.Rev) (*store.Conversation, error) {
		if exists && !live {
			if err := deleteConv(t, old); err != nil {
				return nil, err
			}
		}
		if live {
			conv.Seq, conv.Entries = old.Seq, old.Entries
		} else {
			old = store.Conversation{}
			conv.Entries = 0
		}
		conv.Rev = rev
		writeConv(t, &conv, old, step)
		return &conv, nil
	}, nil
}

func (s steps) Forget(ctx context.Context, key store.ConvKey, ifRev store.Rev, changes []store.Change, now time.Time) error {
	return s.s.writer.doFor(ctx, s.by, func(t *txn) (func() error, error) {
		conv, exists, err := convByKey(t.Tx, key)
		if err != nil {
			return nil, err
		}
		if !exists || !engine.IsLive(conv.Expires, now) {
			return nil, store.ErrNotFound
		}
		if !engine.RevFits(ifRev, true, conv.Rev) {
			return nil, fmt.Errorf("conversation: %w", store.ErrConflict)
		}
		records, err := planRecords(t, changes, now)
		if err != nil {
			return nil, err
		}
		return func() error {
			t.noteConv(key)
			if err := forgetAnswers(t, conv.Seq); err != nil {
				return err
			}
			if err := deleteConv(t, conv); err != nil {
				return err
			}
			records(t.nextRev())
			return nil
		}, nil
	})
}

// forgetAnswers removes the answers from the replay records of a conversation. The records stay until they expire, so
// that no message of a removed conversation is accepted again.
func forgetAnswers(t *txn, seq uint64) error {
	prefix := u64(seq)
	answers := make(map[string]engine.ReplayRow)
	for row, err := range bucketConvs.in(t.Tx).from(prefix, prefix) {
		if err != nil {
			return err
		}
		kind, hash := row.key[8], row.key[9:]
		if kind == convRow {
			break
		}
		if kind == convEntry {
			e, err := engine.DecodeEntry(number(hash), row.value)
			if err != nil {
				return err
			}
			if hash = e.Replay; hash == nil {
				continue
			}
		}
		key, rec, err := findReplay(t.Tx, hash)
		if err != nil {
			return err
		}
		// Skip a record of another conversation. If the record of this conversation expired, another conversation may
		// have accepted the message again.
		if key != nil && rec.ConvSeq == seq {
			rec.Forget()
			answers[string(key)] = rec
		}
	}
	for key, rec := range answers {
		bucketReplays.in(t.Tx).put([]byte(key), engine.EncodeReplay(rec))
	}
	return nil
}
