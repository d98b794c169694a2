package store

import (
	"context"
	"time"
)

// Observed is a Store that reports every committed change of records, with its body, to observers in this process. It
// does not report changes that another process commits, or that a caller makes through the wrapped store.
type Observed struct {
	Store
	observers []func([]Change)
}

// Observe wraps s in a store that reports its commits. If s is already an *Observed, Observe returns s itself.
func Observe(s Store) *Observed {
	if o, ok := s.(*Observed); ok {
		return o
	}
	return &Observed{Store: s}
}

// OnCommit adds an observer, which is called with the changes of each committed unit. Call OnCommit during set-up,
// before the first commit. The observer runs before the committing call returns. Concurrent commits call it
// concurrently, so the order of the calls is not the order of the commits. The observer must not block, and must not
// keep or change the slice. After ErrUnavailable the unit may be stored, but observers are not called. Treat the calls
// as hints, and read from the store whatever must not be missed.
func (o *Observed) OnCommit(observe func([]Change)) { o.observers = append(o.observers, observe) }

// report calls the observers with changes unless the commit failed, and returns err.
func (o *Observed) report(changes []Change, err error) error {
	if err == nil && len(changes) > 0 {
		for _, observe := range o.observers {
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
	card, err := c.Cards.Put(ctx, put)
	return card, c.o.report(put.Records, err)
}

func (c observedCards) Withdraw(ctx context.Context, id string, ifRev Rev, reservedUntil time.Time, records []Change, now time.Time) error {
	return c.o.report(records, c.Cards.Withdraw(ctx, id, ifRev, reservedUntil, records, now))
}

type observedSteps struct {
	Steps
	o *Observed
}

func (s observedSteps) Apply(ctx context.Context, step Step) (Applied, error) {
	applied, err := s.Steps.Apply(ctx, step)
	if applied.Dup {
		return applied, err // nothing was applied
	}
	return applied, s.o.report(step.Records, err)
}

func (s observedSteps) Forget(ctx context.Context, key ConvKey, ifRev Rev, records []Change, now time.Time) error {
	return s.o.report(records, s.Steps.Forget(ctx, key, ifRev, records, now))
}

type observedRecords struct {
	Records
	o *Observed
}

func (r observedRecords) Apply(ctx context.Context, changes []Change, now time.Time) error {
	return r.o.report(changes, r.Records.Apply(ctx, changes, now))
}
