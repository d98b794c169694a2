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
	by *local.Handle // the handle of the caller
}

// Steps implements [store.Store].
func (s *Store) Steps() store.Steps { return steps{s, s.self} }

func (s steps) Apply(ctx context.Context, step store.Step) (store.Applied, error) {
	if err := engine.CheckStep(step); err != nil {
		return store.Applied{}, err
	}
	var applied store.Applied
	err := s.s.writer.doFor(ctx, s.by, func(t *txn) (func() error, error) {
		plan, dup, err := engine.PlanStep(t, step)
		applied = store.Applied{Dup: dup != nil, Replay: dup}
		if err != nil || dup != nil {
			return nil, err
		}
		return func() error {
			rev := t.nextRev()
			if plan.Expired != nil {
				if err := deleteConv(t, *plan.Expired); err != nil {
					return err
				}
			}
			if plan.Conv != nil {
				applied.Rev, plan.Conv.Rev = rev, rev
				t.noteConv(plan.Conv.Key)
				writeConv(t, plan.Conv, plan.Old, step)
			}
			plan.Complete() // the answers, which name the entries that were just written
			if plan.Replay != nil {
				putReplay(t, step, plan.Before.RowKey, *plan.Replay)
			}
			if a := plan.Answered; a != nil {
				bucketReplays.in(t).put(a.RowKey, engine.EncodeReplay(a.ReplayRow))
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

// hasReplayEntry reports whether the first entry that a step appends names the replay record (the record of an
// accepted message) of the step.
func hasReplayEntry(step store.Step) bool {
	return len(step.Append) > 0 && step.Replay != nil && step.Replay.Conv == step.Conv.Key
}

func (s steps) Forget(ctx context.Context, key store.ConvKey, ifRev store.Rev, changes []store.Change, now time.Time) error {
	return s.s.writer.doFor(ctx, s.by, func(t *txn) (func() error, error) {
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
		return func() error {
			t.noteConv(key)
			if err := forgetAnswers(t, conv.Seq); err != nil {
				return err
			}
			t.writeRecords(records, t.nextRev())
			return deleteConv(t, *conv)
		}, nil
	})
}

// forgetAnswers removes the answers from the replay records of a conversation. The records stay until they expire, so
// that no message of a removed conversation is accepted again.
func forgetAnswers(t *txn, seq uint64) error {
	prefix := u64(seq)
	answers := make(map[string]engine.ReplayRow)
	for row, err := range bucketConvs.in(t).from(prefix, prefix) {
		if err != nil {
			return err
		}
		kind, rest := row.key[8], row.key[9:]
		if kind == convRow {
			break
		}
		hash := rest // for kind convReplay
		if kind == convEntry {
			e, err := engine.DecodeEntry(number(rest), row.value)
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
		// The record may belong to another conversation, which accepted the message again after the first record
		// expired.
		if key != nil && rec.ConvSeq == seq {
			rec.Forget()
			answers[string(key)] = rec
		}
	}
	for key, rec := range answers {
		bucketReplays.in(t).put([]byte(key), engine.EncodeReplay(rec))
	}
	return nil
}
