package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Observed is a Store that reports every committed change of records, with its body, to observers in this process. It
// does not report changes that a caller makes through the wrapped store. If the context of a call names a lease (see
// [WithLease]), Observed stores the changes of the call under this lease.
type Observed struct {
	Store
	*observers
	lease *Lease // the lease of calls whose context names no lease; see [Observed.Under]
}

// observers are shared by an Observed and the copies that [Observed.Under] returns.
type observers struct {
	mu         sync.RWMutex
	onCommit   []func([]Change)
	onRemote   map[string][]func(Change) // observers only of changes by other processes, by namespace
	namespaces []string                  // in which observers want the changes of other processes
	onLoss     []func()                  // called when changes of other processes may have been missed
	followSlot chan struct{}             // full while a call of Follow reports
	reread     chan struct{}             // full if the functions of onLoss must be called again
}

// Observe wraps s in a store that reports its commits. If s is already an *Observed, Observe returns s itself.
func Observe(s Store) *Observed {
	if o, ok := s.(*Observed); ok {
		return o
	}
	return &Observed{Store: s, observers: &observers{
		onRemote: make(map[string][]func(Change)), followSlot: make(chan struct{}, 1), reread: make(chan struct{}, 1),
	}}
}

// Under returns a view of the same store that stores all changes under lease, unless the context of a call names another
// lease. If lease is nil, only contexts name leases.
func (o *Observed) Under(lease *Lease) *Observed {
	under := *o
	under.lease = lease
	return &under
}

// OnCommit adds an observer, which is called with the changes that a call has committed. Call OnCommit during set-up,
// before the first commit. The observer runs before the committing call returns. Concurrent commits call it
// concurrently, so the order of the calls is not the order of the commits. The observer must not block, and must not
// keep or change the slice. After ErrUnavailable the changes may be stored, but observers are not called. Treat the
// calls as hints, and read from the store whatever must not be missed.
//
// While [Observed.Follow] runs, the observer also gets the changes of other processes in every namespace that any
// observer names, here or in [Observed.OnRemote]. Such a change has IfRev Any and the record as it is now, or Delete if
// the record is absent now.
func (o *Observed) OnCommit(observe func([]Change), namespaces ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.onCommit, o.namespaces = append(o.onCommit, observe), append(o.namespaces, namespaces...)
}

// OnRemote adds an observer of the changes of other processes in one namespace; see [Observed.OnCommit].
func (o *Observed) OnRemote(namespace string, observe func(Change)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.onRemote[namespace], o.namespaces = append(o.onRemote[namespace], observe), append(o.namespaces, namespace)
}

// OnLoss adds a function that is called when changes of other processes may have been missed. Call OnLoss during
// set-up. The function must not block.
func (o *Observed) OnLoss(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.onLoss = append(o.onLoss, f)
}

// rereadPause is the time after which the functions of [Observed.OnLoss] are called again.
const rereadPause = time.Second

// RereadLater makes [Observed.Follow] call the functions of [Observed.OnLoss] after a second. Call it if a change of
// another process could not be read.
func (o *Observed) RereadLater() {
	select {
	case o.reread <- struct{}{}:
	default:
	}
}

// Follow reports the changes of other processes to the observers until ctx ends. Every service calls Follow; only one
// call reports at a time, and the others wait. If other processes may use the store, Follow first calls the functions
// of [Observed.OnLoss], because those processes may have changed what this process read before.
func (o *Observed) Follow(ctx context.Context) {
	select {
	case o.followSlot <- struct{}{}:
		defer func() { <-o.followSlot }()
	case <-ctx.Done():
		return
	}
	o.mu.RLock()
	namespaces := slices.Clone(o.namespaces) // those that are named later are not watched
	o.mu.RUnlock()
	hints, rereadTime := o.Watch(ctx, namespaces...), (<-chan time.Time)(nil)
	if o.Leases().TTL() > 0 { // 0: this process is the only one
		o.callOnLoss()
	}
	for {
		var hint Hint
		open := true
		select {
		case hint, open = <-hints:
		case <-o.reread:
			rereadTime = time.After(rereadPause)
			continue
		case <-rereadTime:
			rereadTime = nil // hint is the zero hint, as after a loss
		}
		if !open {
			return
		}
		if hint == (Hint{}) {
			o.callOnLoss()
			continue
		}
		change := Change{Record: Record{NS: hint.NS, Key: hint.Key}, IfRev: Any}
		switch rec, err := o.Store.Records().Get(ctx, hint.NS, hint.Key, time.Now()); {
		case err == nil:
			change.Record = rec
		case errors.Is(err, ErrNotFound):
			change.Delete = true
		default:
			o.callOnLoss()
			continue
		}
		_ = o.report([]Change{change}, nil)
		o.mu.RLock()
		remote := o.onRemote[hint.NS]
		o.mu.RUnlock()
		for _, observe := range remote {
			observe(change)
		}
	}
}

func (o *Observed) callOnLoss() {
	o.mu.RLock()
	lost := o.onLoss
	o.mu.RUnlock()
	for _, f := range lost {
		f()
	}
}

// leaseOf returns the lease under which a call with this context stores its changes, or nil.
func (o *Observed) leaseOf(ctx context.Context) *Lease { return cmp.Or(LeaseOf(ctx), o.lease) }

// addLease returns the changes of a call, and sets the Held of the first change to the lease of the call (see leaseOf)
// unless that change already has one.
func (o *Observed) addLease(ctx context.Context, changes []Change) []Change {
	lease := o.leaseOf(ctx)
	if lease == nil {
		return changes
	}
	if len(changes) == 0 {
		return []Change{{Held: lease}}
	}
	if changes[0].Held != nil {
		return changes
	}
	changes = slices.Clone(changes)
	changes[0].Held = lease
	return changes
}

// report calls the observers with changes unless the commit failed, and returns err.
func (o *Observed) report(changes []Change, err error) error {
	if err == nil && len(changes) > 0 {
		o.mu.RLock()
		observers := o.onCommit // appending leaves these as they are
		o.mu.RUnlock()
		for _, observe := range observers {
			observe(changes)
		}
	}
	return err
}

// Cards implements [Store].
func (o *Observed) Cards() Cards { return observedCards{o.Store.Cards(), o} }

// Steps implements [Store].
func (o *Observed) Steps() Steps { return observedSteps{o.Store.Steps(), o} }

// Records implements [Store].
func (o *Observed) Records() Records { return observedRecords{o.Store.Records(), o} }

type observedCards struct {
	Cards
	o *Observed
}

func (c observedCards) Put(ctx context.Context, put PutCard) (Card, error) {
	records := put.Records
	put.Records = c.o.addLease(ctx, records)
	card, err := c.Cards.Put(ctx, put)
	return card, c.o.report(records, err)
}

func (c observedCards) Withdraw(ctx context.Context, id string, ifRev Rev, reservedUntil time.Time, records []Change, now time.Time) error {
	return c.o.report(records, c.Cards.Withdraw(ctx, id, ifRev, reservedUntil, c.o.addLease(ctx, records), now))
}

type observedSteps struct {
	Steps
	o *Observed
}

func (s observedSteps) Apply(ctx context.Context, step Step) (Applied, error) {
	step.Held = cmp.Or(step.Held, s.o.leaseOf(ctx))
	applied, err := s.Steps.Apply(ctx, step)
	if applied.Dup {
		return applied, err // nothing was applied
	}
	return applied, s.o.report(step.Records, err)
}

func (s observedSteps) Forget(ctx context.Context, key ConvKey, ifRev Rev, records []Change, now time.Time) error {
	return s.o.report(records, s.Steps.Forget(ctx, key, ifRev, s.o.addLease(ctx, records), now))
}

type observedRecords struct {
	Records
	o *Observed
}

func (r observedRecords) Apply(ctx context.Context, changes []Change, now time.Time) error {
	if len(changes) == 0 {
		return nil
	}
	return r.o.report(changes, r.Records.Apply(ctx, r.o.addLease(ctx, changes), now))
}
