package bolt

import (
	"context"
	"fmt"
	"runtime"

	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// applyIndex changes the index after t was committed.
func (s *Store) applyIndex(t *txn) {
	for _, change := range t.indexChanges {
		change(s.index.Load())
	}
	if t.lastChange > 0 {
		s.through.Store(t.lastChange)
	}
}

// buildIndex fills the index from the cards, in several goroutines.
func (s *Store) buildIndex(ctx context.Context) error {
	var through, last uint64
	if err := s.db.View(func(tx *bbolt.Tx) error {
		through, last = bucketChanges.in(tx).raw.Sequence(), bucketCards.in(tx).raw.Sequence()
		return nil
	}); err != nil {
		return fmt.Errorf("build card index: %w", err)
	}
	const maxParts = 4 // each is filled by a goroutine
	parts := make([]cardindex.Part, min(runtime.GOMAXPROCS(0), maxParts))
	span := last/uint64(len(parts)) + 1
	var group errgroup.Group
	for i := range parts {
		group.Go(func() error {
			return catchDamage(func() error { return s.gather(ctx, &parts[i], uint64(i)*span, uint64(i+1)*span) })
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("build card index: %w", err)
	}
	s.index.Store(cardindex.Join(parts))
	s.through.Store(through)
	return nil
}

// gather adds the cards with a sequence number in [first, end) to part, except damaged ones.
func (s *Store) gather(ctx context.Context, part *cardindex.Part, first, end uint64) error {
	p := newProgress(s.log, "build the card index", "percent", 100)
	var head engine.CardHead
	return s.db.View(func(tx *bbolt.Tx) error {
		for row, err := range bucketCards.in(tx).from(u64(first), nil) {
			seq := number(row.key)
			if err == nil {
				if seq >= end {
					break
				}
				err = head.Decode(seq, row.value)
			}
			if err != nil {
				s.damage.Note("left out of the card index", err)
				continue
			}
			if head.Withdrawn {
				continue
			}
			if part.Len()%4096 == 0 {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if first == 0 { // the parts are equally large, so the first one stands for all
					p.note(int64(100 * seq / end))
				}
			}
			part.Add(cardindex.Slot(seq), head.Expires, head.Terms)
		}
		return nil
	})
}
