// Package local implements leases, and hints about the commits of other handles, in memory, for the handles of one
// process. An engine needs nothing else if no other process can open its data.
package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const maxName = 64 // bytes of the name of a lease

// Leases holds the leases of all handles.
type Leases struct {
	// TTL is the time for which a lease lasts without renewal. 0 means that it lasts until its handle is closed.
	TTL time.Duration
	// Floor returns the number above which fences start. Each new holder of a lease gets a fence, a number larger than all
	// before. The floor grows by 2^20 with each stored write, and there are fewer new holders between two writes. So every
	// fence after a restart is larger than any fence under which something was stored.
	Floor func(context.Context) (uint64, error)
	// Barrier calls fn after the running commit and before the next one.
	Barrier func(ctx context.Context, fn func() error) error

	mu   sync.Mutex
	held map[string]row // by name
	last uint64         // the newest fence
}

// row is a lease with its holder, or the zero row if nobody has taken the lease.
type row struct {
	fence  uint64
	holder *Handle
	until  time.Time // zero: the lease ends with its handle
}

func (r row) isLive(now time.Time) bool {
	return r.holder != nil && (r.until.IsZero() || now.Before(r.until))
}

// Check returns ErrLeaseLost unless a handle holds the lease now, with the same fence. A nil lease passes.
func (l *Leases) Check(lease *store.Lease, now time.Time) error {
	if lease == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if current := l.held[lease.Name]; current.fence != lease.Fence || !current.isLive(now) {
		return fmt.Errorf("%w: %s", store.ErrLeaseLost, lease.Name)
	}
	return nil
}

// take gives a lease to h. If h holds the lease already, take renews it. If another handle holds it, the error is
// ErrLeaseTaken. If the lease has ended but was not released, the error is errEnded, unless force is set. The
// fence of a new holder is larger than floor.
func (l *Leases) take(name string, h *Handle, floor uint64, force bool) (store.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	current := l.held[name]
	switch {
	case current.isLive(now) && current.holder == h: // renewed below
	case current.isLive(now):
		return store.Lease{}, store.ErrLeaseTaken
	case current.holder != nil && !force:
		return store.Lease{}, errEnded
	default:
		l.last = max(l.last, floor) + 1
		current.fence = l.last
	}
	if l.held == nil {
		l.held = make(map[string]row)
	}
	l.held[name] = row{fence: current.fence, holder: h, until: l.end(now)}
	return store.Lease{Name: name, Fence: current.fence}, nil
}

// errEnded means that the lease has ended, but a write of its last holder may still be in the running commit.
var errEnded = errors.New("the lease has ended")

// end returns the time at which a lease that is taken or renewed at now will end.
func (l *Leases) end(now time.Time) time.Time {
	if l.TTL == 0 {
		return time.Time{}
	}
	return now.Add(l.TTL)
}

// Handle is one handle on the data. It implements [store.Leases].
type Handle struct {
	leases *Leases
	name   string
}

// Handle returns a new handle. name is the Holder in [store.LeaseState].
func (l *Leases) Handle(name string) *Handle { return &Handle{l, name} }

// Close releases the leases of the handle.
func (h *Handle) Close() {
	l := h.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, current := range l.held {
		if current.holder == h {
			delete(l.held, name)
		}
	}
}

// TTL implements [store.Leases].
func (h *Handle) TTL() time.Duration { return h.leases.TTL }

// Acquire implements [store.Leases].
func (h *Handle) Acquire(ctx context.Context, name string) (store.Lease, error) {
	if name == "" || len(name) > maxName {
		return store.Lease{}, fmt.Errorf("acquire lease: the name has %d bytes, not 1 to %d", len(name), maxName)
	}
	floor, err := h.leases.Floor(ctx)
	if err != nil {
		return store.Lease{}, err
	}
	lease, err := h.leases.take(name, h, floor, false)
	if !errors.Is(err, errEnded) {
		return lease, err
	}
	err = h.leases.Barrier(ctx, func() error {
		lease, err = h.leases.take(name, h, floor, true) // force: no write of the last holder is in a running commit now
		return err
	})
	return lease, err
}

// owns reports whether the handle holds this lease now. The caller holds the lock.
func (h *Handle) owns(lease store.Lease, now time.Time) bool {
	current := h.leases.held[lease.Name]
	return current.holder == h && current.fence == lease.Fence && current.isLive(now)
}

// Renew implements [store.Leases].
func (h *Handle) Renew(ctx context.Context, held []store.Lease) (lost []store.Lease, err error) {
	l, now := h.leases, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range held {
		if !h.owns(lease, now) {
			lost = append(lost, lease)
			continue
		}
		l.held[lease.Name] = row{lease.Fence, h, l.end(now)}
	}
	return lost, ctx.Err()
}

// Release implements [store.Leases].
func (h *Handle) Release(ctx context.Context, held []store.Lease) error {
	l, now := h.leases, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range held {
		if h.owns(lease, now) {
			delete(l.held, lease.Name)
		}
	}
	return ctx.Err()
}

// List implements [store.Leases].
func (h *Handle) List(ctx context.Context) ([]store.LeaseState, error) {
	l, now := h.leases, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []store.LeaseState
	for name, current := range l.held {
		if current.isLive(now) {
			list = append(list, store.LeaseState{
				Lease: store.Lease{Name: name, Fence: current.fence}, Holder: current.holder.name, Until: current.until.UTC(),
			})
		}
	}
	slices.SortFunc(list, func(a, b store.LeaseState) int { return strings.Compare(a.Name, b.Name) })
	return list, ctx.Err()
}
