package bolt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
)

// maxLeaseName is the largest size of the name of a lease, in bytes.
const maxLeaseName = 64

// leaseTable holds the leases. They need not survive the process, because the lock of the file keeps other processes
// out: all handles of the file are in this process.
type leaseTable struct {
	ttl time.Duration // 0: a lease ends with its handle

	mu   sync.Mutex
	held map[string]leaseRow // by name
	last uint64              // the newest fence
}

type leaseRow struct {
	fence  uint64
	holder *holder
	until  time.Time // zero: it ends with its handle
}

func (r leaseRow) isLive(now time.Time) bool { return r.holder != nil && isLive(r.until, now) }

// holder identifies a handle.
type holder struct{ name string }

// check returns ErrLeaseLost unless somebody holds the lease now under its fence. A nil lease passes.
func (l *leaseTable) check(lease *store.Lease, now time.Time) error {
	if lease == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if row := l.held[lease.Name]; row.fence != lease.Fence || !row.isLive(now) {
		return fmt.Errorf("%w: %s", store.ErrLeaseLost, lease.Name)
	}
	return nil
}

// take gives a lease to a holder, or extends the one that it has. It returns ErrLeaseTaken if another holder has it, and
// errEnded if another holder had it and did not release it. With force, it takes such a lease. floor is less than the
// fence of a new holder.
func (l *leaseTable) take(name string, h *holder, floor uint64, force bool) (store.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	row := l.held[name]
	switch {
	case row.isLive(now) && row.holder == h:
		return store.Lease{Name: name, Fence: row.fence}, nil
	case row.isLive(now):
		return store.Lease{}, store.ErrLeaseTaken
	case row.holder != nil && !force:
		return store.Lease{}, errEnded
	}
	l.last = max(l.last, floor) + 1
	if l.held == nil {
		l.held = make(map[string]leaseRow)
	}
	l.held[name] = leaseRow{fence: l.last, holder: h, until: l.end(now)}
	return store.Lease{Name: name, Fence: l.last}, nil
}

// errEnded: the lease has ended, but a unit of its last holder may be in the commit that runs now.
var errEnded = errors.New("the lease has ended")

func (l *leaseTable) end(now time.Time) time.Time {
	if l.ttl == 0 {
		return time.Time{}
	}
	return now.Add(l.ttl)
}

// dropAll releases the leases of a handle that closes.
func (l *leaseTable) dropAll(h *holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, row := range l.held {
		if row.holder == h {
			delete(l.held, name)
		}
	}
}

// Handle is a further handle on a database that is open in this process. It has leases of its own, as another process
// would on an engine that serves several. Tests use it.
type Handle struct {
	*Store
	holder *holder
}

// Handle returns a handle. name is what [store.LeaseState] calls it.
func (s *Store) Handle(name string) *Handle { return &Handle{s, &holder{name}} }

// Leases implements [store.Store].
func (h *Handle) Leases() store.Leases { return leases{h.Store, h.holder} }

// Close releases the leases of the handle. The database stays open.
func (h *Handle) Close() error {
	h.leases.dropAll(h.holder)
	return nil
}

// leases implements [store.Leases] for one handle.
type leases struct {
	s      *Store
	holder *holder
}

// Leases implements [store.Store].
func (s *Store) Leases() store.Leases { return leases{s, &s.self} }

// TTL implements [store.Leases].
func (l leases) TTL() time.Duration { return l.s.leases.ttl }

// Acquire implements [store.Leases].
func (l leases) Acquire(ctx context.Context, name string) (store.Lease, error) {
	if name == "" || len(name) > maxLeaseName {
		return store.Lease{}, fmt.Errorf("acquire lease: its name has %d bytes, not 1 to %d", len(name), maxLeaseName)
	}
	var floor uint64
	err := l.s.view(ctx, func(tx *bbolt.Tx) error {
		// Each unit that is stored raises the sequence. So a fence under which something was stored is less than every
		// fence after a restart, as long as there are fewer than a million holders between two units.
		floor = bucketMeta.in(tx).b.Sequence() << 20
		return nil
	})
	if err != nil {
		return store.Lease{}, err
	}
	lease, err := l.s.leases.take(name, l.holder, floor, false)
	if !errors.Is(err, errEnded) {
		return lease, err
	}
	err = l.s.writer.do(ctx, func(*txn) (write func() error, err error) { // after the commit that runs now
		lease, err = l.s.leases.take(name, l.holder, floor, true)
		return nil, err
	})
	return lease, err
}

// Renew implements [store.Leases].
func (l leases) Renew(ctx context.Context, held []store.Lease) (lost []store.Lease, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	table := &l.s.leases
	table.mu.Lock()
	defer table.mu.Unlock()
	now := time.Now()
	for _, lease := range held {
		row := table.held[lease.Name]
		if row.holder != l.holder || row.fence != lease.Fence || !row.isLive(now) {
			lost = append(lost, lease)
			continue
		}
		row.until = table.end(now)
		table.held[lease.Name] = row
	}
	return lost, nil
}

// Release implements [store.Leases].
func (l leases) Release(ctx context.Context, held []store.Lease) error {
	table := &l.s.leases
	table.mu.Lock()
	defer table.mu.Unlock()
	for _, lease := range held {
		if row := table.held[lease.Name]; row.holder == l.holder && row.fence == lease.Fence {
			delete(table.held, lease.Name)
		}
	}
	return ctx.Err()
}

// List implements [store.Leases].
func (l leases) List(ctx context.Context) ([]store.LeaseState, error) {
	table := &l.s.leases
	table.mu.Lock()
	defer table.mu.Unlock()
	now := time.Now()
	var list []store.LeaseState
	for name, row := range table.held {
		if row.isLive(now) {
			state := store.LeaseState{Lease: store.Lease{Name: name, Fence: row.fence}, Holder: row.holder.name, Until: row.until.UTC()}
			list = append(list, state)
		}
	}
	slices.SortFunc(list, func(a, b store.LeaseState) int { return strings.Compare(a.Name, b.Name) })
	return list, ctx.Err()
}
