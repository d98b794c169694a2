package bolt

import (
	"context"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/local"
)

// Handle is a further handle on a database that is open in this process. As if it belonged to another process, it has
// its own leases, and it can watch what the other handles write. Tests use it.
type Handle struct {
	*Store
	self *local.Handle
}

// Handle returns a new handle. name is the Holder in [store.LeaseState].
func (s *Store) Handle(name string) *Handle {
	s.watchers.Share()
	return &Handle{s, s.leases.Handle(name)}
}

// Cards implements [store.Store].
func (h *Handle) Cards() store.Cards { return h.cardsOf(h.self) }

// Steps implements [store.Store].
func (h *Handle) Steps() store.Steps { return h.stepsOf(h.self) }

// Records implements [store.Store].
func (h *Handle) Records() store.Records { return h.recordsOf(h.self) }

// Leases implements [store.Store].
func (h *Handle) Leases() store.Leases { return h.self }

// Watch implements [store.Watcher].
func (h *Handle) Watch(ctx context.Context, namespaces ...string) <-chan store.Hint {
	return h.watchers.Watch(ctx, h.self, namespaces...)
}

// Close releases the leases of the handle. The database stays open.
func (h *Handle) Close() error {
	h.self.Close()
	return nil
}

// Leases implements [store.Store]. The leases are in memory, because the lock of the file keeps other processes out.
func (s *Store) Leases() store.Leases { return s.self }

// Watch implements [store.Watcher]. The channel is also closed when the database closes. Nothing comes from it unless
// this process opened another [Handle].
func (s *Store) Watch(ctx context.Context, namespaces ...string) <-chan store.Hint {
	return s.watchers.Watch(ctx, s.self, namespaces...)
}

// fenceFloor returns the number above which fences start. A fence is a number that each lease has, and each new holder
// gets a larger one. The floor grows with every write, because a write takes a new revision.
func (s *Store) fenceFloor(ctx context.Context) (floor uint64, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		floor, err = readFenceFloor(tx)
		return err
	})
	return floor, err
}

// readFenceFloor returns the floor of the fences: 2^20 for each revision, and the offset from an import.
func readFenceFloor(tx *bbolt.Tx) (uint64, error) {
	meta := bucketMeta.in(tx)
	offset, err := meta.get(keyFences)
	return meta.raw.Sequence()<<20 + number(offset), err
}

// afterCommit calls fn between two commits.
func (s *Store) afterCommit(ctx context.Context, fn func() error) error {
	return s.writer.do(ctx, func(*txn) (func(store.Rev) error, error) { return nil, fn() })
}
