package postgres

import (
	"context"
	"errors"
	"fmt"
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
	// damagedAgain is the time after which Sweep looks again at a damaged row, which it leaves in place.
	damagedAgain = 24 * time.Hour
)

// sweeps lists the tables whose rows can expire, each with a function that sweeps one row that is due.
var sweeps = []struct {
	table *table
	sweep func(t *txn, key []byte, r row, now time.Time) error
}{
	{records, sweepRecord},
	{replays, sweepReplay},
	{convs, sweepConv},
	{cards, sweepCard},
	{changes, func(t *txn, key []byte, _ row, _ time.Time) error { t.drop(changes, key); return nil }},
}

// Sweep implements [store.Store].
func (s *Store) Sweep(ctx context.Context, now time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, engine.ErrLimit
	}
	at, done := engine.Nanos(now), 0
	for _, kind := range sweeps {
		for done < limit {
			chunk, n := min(sweepChunk, limit-done), 0
			var keys [][]byte
			var key, value []byte
			var need needs
			err := s.query(ctx, kind.table.due(), []any{at, chunk}, []any{&key, &value}, func() error {
				keys = append(keys, key)
				need.addDue(kind.table, key, value)
				return nil
			})
			if err == nil && len(keys) > 0 {
				err = s.sweepRows(ctx, kind.table, keys, need, now, &n, kind.sweep)
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

// addDue adds the rows that a sweep of one row reads or writes: of a damaged row, only the row itself.
func (n *needs) addDue(tb *table, key, value []byte) {
	n.addRow(tb, key)
	switch tb {
	case cards:
		n.addCard(string(key))
	case replays:
		if rec, err := engine.DecodeReplay(value); err == nil {
			n.addRow(convs, engine.ConvKey(rec.Conv))
		}
	}
}

// sweepRows calls sweepRow with each row that has one of these keys and is still due. It sets *n to the number of calls.
// Damaged rows stay in place.
func (s *Store) sweepRows(ctx context.Context, tb *table, keys [][]byte, need needs, now time.Time, n *int, sweepRow func(*txn, []byte, row, time.Time) error) error {
	return s.writer.do(ctx, need, func(t *txn) (func() error, error) {
		*n = 0
		return func() error {
			for _, key := range keys {
				r, err := t.get(tb, key)
				if err != nil {
					return err
				}
				if r == nil || r.due > engine.Nanos(now) {
					continue
				}
				*n++
				if err = sweepRow(t, key, *r, now); errors.Is(err, store.ErrDamaged) {
					s.damage.Note("left in place by a sweep", err)
					postponed := *r
					postponed.due, err = engine.Nanos(now.Add(damagedAgain)), nil
					t.put(tb, key, postponed)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}, nil
	})
}

func sweepRecord(t *txn, key []byte, r row, _ time.Time) error {
	ns, name, ok := engine.SplitRecordKey(key)
	if !ok {
		return fmt.Errorf("%w: the record key %x is malformed", store.ErrDamaged, key)
	}
	rec, err := engine.DecodeRecord(ns, name, r.value)
	if err == nil {
		t.dropRecord(rec)
	}
	return err
}

func sweepReplay(t *txn, key []byte, r row, now time.Time) error {
	rec, err := engine.DecodeReplay(r.value)
	if err != nil {
		return err
	}
	var conv *store.Conversation
	if rec.ConvSeq != 0 {
		if conv, err = t.Conv(rec.Conv); err != nil {
			return err
		}
	}
	if !isReplayLive(rec, conv, now) {
		t.drop(replays, key)
		return nil
	}
	r.due = engine.Nanos(now.Add(replayAgain))
	t.put(replays, key, r)
	return nil
}

func sweepConv(t *txn, _ []byte, r row, _ time.Time) error {
	conv, err := engine.DecodeConv(uint64(r.num), r.value)
	if err == nil {
		t.dropConv(conv)
	}
	return err
}

// sweepCard removes a card whose id is free again. If the id is still reserved, a sweep looks at the card again when
// the reservation ends.
func sweepCard(t *txn, key []byte, r row, now time.Time) error {
	card, err := engine.DecodeCard(uint64(r.num), r.value)
	if err != nil {
		return err
	}
	if !card.Held(now) {
		return t.purgeCard(&card, now)
	}
	r.due = engine.Nanos(card.ReservedUntil)
	t.put(cards, key, r)
	return nil
}
