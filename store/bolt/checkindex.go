package bolt

import (
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
)

// CheckIndex returns nil if the index contains every committed change of cards, and store.ErrUnavailable otherwise.
func (s *Store) CheckIndex(ctx context.Context) error {
	resume, err := s.writer.queue.Pause(ctx) // because the index lags behind during a commit
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	defer resume()
	return s.view(ctx, func(tx *bbolt.Tx) error {
		if indexed, committed := s.through.Load(), bucketChanges.in(tx).raw.Sequence(); indexed != committed {
			return fmt.Errorf("%w: the card index has %d of %d changes", store.ErrUnavailable, indexed, committed)
		}
		return nil
	})
}
