package store

import (
	"context"
	"errors"
	"time"
)

// The errors of leases. Check for them with [errors.Is].
var (
	// ErrLeaseTaken means that another handle holds the lease.
	ErrLeaseTaken = errors.New("store: another process holds the lease")
	// ErrLeaseLost means that the lease of a change has ended or has another holder. Nothing was applied.
	ErrLeaseLost = errors.New("store: the lease is lost")
)

// Lease is the right to do a duty, such as delivering the outbox. At most one handle, which is an open [Store], has
// the lease at a time.
type Lease struct {
	Name string
	// Fence grows whenever the lease gets another holder. After a restart it is larger than every fence with which
	// something was stored.
	Fence uint64
}

// LeaseState is a lease that a handle holds.
type LeaseState struct {
	Lease
	Holder string    // name of the handle
	Until  time.Time // end of the lease if it is not renewed; zero: it ends with its handle
}

// Leases gives a named duty to one handle at a time. All times are by the clock of the engine, because the clocks of
// processes differ. The methods are safe for concurrent use.
type Leases interface {
	// TTL returns how long a lease lasts if it is not renewed. 0 means that a lease lasts until its handle releases it
	// or closes; then there is nothing to renew.
	TTL() time.Duration
	// Acquire takes the lease with this name (1 to 64 bytes). If this handle holds it already, Acquire extends it
	// until a TTL from now, and returns it. If another handle holds it, the error is ErrLeaseTaken.
	Acquire(ctx context.Context, name string) (Lease, error)
	// Renew extends leases of this handle until a TTL from now, and returns those that the handle has lost.
	Renew(ctx context.Context, held []Lease) (lost []Lease, err error)
	// Release gives leases back. A lease that is lost already is ignored.
	Release(ctx context.Context, held []Lease) error
	// List returns the leases that any handle holds, sorted by name.
	List(ctx context.Context) ([]LeaseState, error)
}

// Hint reports that a record, card or conversation may have changed. Key is the key of a record, the id of a card, or
// "PEER/ID" for a conversation.
type Hint struct{ NS, Key string }

// leaseKey is the key of the lease in a context; see [LeaseOf].
type leaseKey struct{}

// WithLease returns a context for the work of a duty. If the lease is lost, [Observed] stores nothing with this context.
func WithLease(ctx context.Context, lease Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, &lease)
}

// LeaseOf returns the lease of the duty to which the context belongs, or nil.
func LeaseOf(ctx context.Context) *Lease {
	lease, _ := ctx.Value(leaseKey{}).(*Lease)
	return lease
}

// The namespaces of [Hint] that are not namespaces of records.
const (
	WatchCards         = "cards"
	WatchConversations = "conversations"
)

// Watcher reports the commits of other handles. A process knows its own commits; see [Observed].
type Watcher interface {
	// Watch returns a channel with a hint for each change that another handle commits in the namespaces, until ctx
	// ends; then the channel is closed. Hints may repeat and may come in a different order from the commits. If hints
	// were lost, the zero hint takes their place: then anything may have changed. So a reader must read the store
	// itself.
	Watch(ctx context.Context, namespaces ...string) <-chan Hint
}
