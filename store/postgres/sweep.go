package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

const (
	// sweepChunk bounds the number of rows that Sweep handles in one write, so that other writes wait only a few
	// milliseconds.
	sweepChunk = 256
	// replayAgain is the time after which Sweep looks again at a replay record (the record of an accepted message) of
	// an open conversation.
	replayAgain = 4 * 24 * time.Hour
)

// swept lists the kinds of rows that can expire.
var swept = []engine.Kind{engine.KindRecord, engine.KindReplay, engine.KindConv, engine.KindCard, engine.KindChange}

// Sweep implements [store.Store].
func (s *Store) Sweep(ctx context.Context, now time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, engine.ErrLimit
	}
	at, done := engine.Nanos(now), 0
	for _, kind := range swept {
		for done < limit {
			chunk, n := min(sweepChunk, limit-done), 0
			var keys [][]byte
			var key, value []byte
			var needs engine.Needs
			err := s.query(ctx, tableOf[kind].due(), []any{at, chunk}, []any{&key, &value}, func() error {
				keys = append(keys, key)
				needs.Add(kind, key)
				if kind == engine.KindReplay {
					if rec, err := engine.DecodeReplay(value); err == nil {
						needs.Add(engine.KindConv, engine.ConvKey(rec.Conv))
					}
				}
				return nil
			})
			if err == nil && len(keys) > 0 {
				err = s.sweepRows(ctx, kind, keys, needs, now, &n)
			}
			if err != nil {
				return done, fmt.Errorf("sweep: %w", err)
			}
			if done += n; n < chunk {
				break
			}
		}
	}
	if done < limit {
		s.forgetLanes(ctx) // rows of processes that have ended
	}
	return done, nil
}

// sweepRows sweeps each row that has one of these keys and is still due. It sets *n to their number. Damaged rows stay
// in place.
func (s *Store) sweepRows(ctx context.Context, kind engine.Kind, keys [][]byte, needs engine.Needs, now time.Time, n *int) error {
	tb := tableOf[kind]
	add := func(n *engine.Needs) { *n = needs }
	return driver{s}.Do(ctx, engine.Call{Needs: add, Check: func(tx engine.Tx) (func(store.Rev) error, error) {
		t := tx.(*txn)
		*n = 0
		return func(store.Rev) error {
			for _, key := range keys {
				r, err := t.get(tb, key)
				if err != nil {
					return err
				}
				if r == nil || r.due > engine.Nanos(now) {
					continue
				}
				*n++
				again := *r
				again.due, err = sweepRow(t, engine.Row{Kind: kind, Num: uint64(r.num), Key: key, Value: r.value}, now)
				if errors.Is(err, store.ErrDamaged) {
					s.damage.Note("left in place by a sweep", err)
					again.due, err = engine.Nanos(now.Add(engine.DamagedAgain)), nil
				}
				if err != nil {
					return err
				}
				if again.due != engine.Never {
					t.put(tb, key, again)
				}
			}
			return nil
		}, nil
	}})
}

// sweepRow sweeps a row and returns the time at which to look at it again, or Never if it is gone.
func sweepRow(t *txn, r engine.Row, now time.Time) (due int64, err error) {
	switch r.Kind {
	case engine.KindChange:
		t.drop(changes, r.Key)
		return engine.Never, nil
	case engine.KindReplay:
		rec, err := engine.DecodeReplay(r.Value)
		if err != nil {
			return 0, err
		}
		live, err := engine.IsReplayLive(t, rec, now)
		if err == nil && !live {
			t.drop(replays, r.Key)
			return engine.Never, nil
		}
		return engine.Nanos(now.Add(replayAgain)), err
	}
	_, due, err = engine.SweepRow(t, r, now, math.MaxInt)
	return due, err
}
