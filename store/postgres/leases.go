package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const maxLease = 64 // bytes of a name

// leaseStore implements [store.Leases] by rows of the table leases and the clock of the database.
type leaseStore struct{ s *Store }

// Leases implements [store.Store].
func (s *Store) Leases() store.Leases { return leaseStore{s} }

func (l leaseStore) TTL() time.Duration { return l.s.cfg.LeaseTTL }

// untilSQL is the SQL expression for the end of a lease that begins now. Its argument is the TTL in microseconds.
const untilSQL = "clock_timestamp() + $1 * interval '1 microsecond'"

// micros returns the argument of untilSQL.
func (l leaseStore) micros() int64 { return l.s.cfg.LeaseTTL.Microseconds() }

func (l leaseStore) Acquire(ctx context.Context, name string) (store.Lease, error) {
	if name == "" || len(name) > maxLease {
		return store.Lease{}, fmt.Errorf("acquire lease: the name has %d bytes, not 1 to %d", len(name), maxLease)
	}
	// next is a new revision plus an offset that an import set, so that fences only grow.
	const next = "nextval('revisions') + coalesce((select num from counters where key = 'fences'), 0)"
	const mine = "leases.holder = excluded.holder and leases.until > clock_timestamp()"
	var fence int64
	// The update sets the key column. So it conflicts with the key-share locks of transactions that need the lease, and
	// waits for their commits; see txn.begin.
	err := ask(ctx, func(ctx context.Context) error {
		return l.s.leasePool.QueryRow(ctx, `insert into leases (until, name, holder, holder_name, fence) values (`+untilSQL+`, $2, $3, $4, `+next+`)
			on conflict (name) do update set name = excluded.name, until = `+untilSQL+`, holder = excluded.holder, holder_name = excluded.holder_name,
				fence = case when `+mine+` then leases.fence else excluded.fence end
			where leases.holder = excluded.holder or leases.until <= clock_timestamp()
			returning fence`, l.micros(), name, l.s.id, l.s.cfg.Name).Scan(&fence)
	})
	if errors.Is(err, store.ErrNotFound) {
		return store.Lease{}, store.ErrLeaseTaken
	}
	if err != nil {
		return store.Lease{}, err
	}
	return store.Lease{Name: name, Fence: uint64(fence)}, nil
}

// split returns leases as two columns for a statement.
func split(held []store.Lease) (names []string, fences []int64) {
	for _, lease := range held {
		names, fences = append(names, lease.Name), append(fences, int64(lease.Fence))
	}
	return names, fences
}

func (l leaseStore) Renew(ctx context.Context, held []store.Lease) (lost []store.Lease, err error) {
	names, fences := split(held)
	var name string
	var fence int64
	var renewed []store.Lease
	err = ask(ctx, func(ctx context.Context) error {
		return forEachRow(ctx, l.s.leasePool, `update leases l set until = `+untilSQL+` from unnest($2::text[], $3::bigint[]) h (name, fence)
			where l.name = h.name and l.fence = h.fence and l.holder = $4 and l.until > clock_timestamp() returning l.name, l.fence`,
			[]any{l.micros(), names, fences, l.s.id}, []any{&name, &fence}, func() error {
				renewed = append(renewed, store.Lease{Name: name, Fence: uint64(fence)})
				return nil
			})
	})
	if err != nil {
		return nil, err
	}
	for _, lease := range held {
		if !slices.Contains(renewed, lease) {
			lost = append(lost, lease)
		}
	}
	return lost, nil
}

func (l leaseStore) Release(ctx context.Context, held []store.Lease) error {
	names, fences := split(held)
	return ask(ctx, func(ctx context.Context) error {
		_, err := l.s.leasePool.Exec(ctx, `delete from leases l using unnest($1::text[], $2::bigint[]) h (name, fence)
			where l.name = h.name and l.fence = h.fence and l.holder = $3`, names, fences, l.s.id)
		return err
	})
}

func (l leaseStore) List(ctx context.Context) ([]store.LeaseState, error) {
	var list []store.LeaseState
	var state store.LeaseState
	var fence int64
	err := l.s.query(ctx, `select name, fence, holder_name, until from leases where until > clock_timestamp() order by name collate "C"`,
		nil, []any{&state.Name, &fence, &state.Holder, &state.Until}, func() error {
			state.Fence, state.Until = uint64(fence), state.Until.UTC()
			list = append(list, state)
			return nil
		})
	return list, err
}
