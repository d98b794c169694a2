package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Records has the methods of [store.Records] that only need single rows.
type Records struct{ Driver Driver }

// Get implements [store.Records].
func (r Records) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	return view(ctx, r.Driver, func(r Reader) (*store.Record, error) { return FindRecord(r, ns, key) }, func(rec *store.Record) bool { return IsLive(rec.Expires, now) })
}

// Apply implements [store.Records].
func (r Records) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if len(changes) == 0 {
		return ctx.Err()
	}
	nothingElse := func(Tx) (func(store.Rev) error, error) { return func(store.Rev) error { return nil }, nil }
	return r.Driver.Do(ctx, Call{Check: nothingElse, Records: changes, Now: now})
}

// recordWrite is a change that has passed the checks, with the row that it replaces, or nil.
type recordWrite struct {
	change store.Change
	old    *store.Record
}

// writeRecords makes the planned changes of records under one revision.
func writeRecords(tx Tx, writes []recordWrite, rev store.Rev) error {
	for _, w := range writes {
		rec := w.change.Record
		tx.Note(rec.NS, rec.Key)
		if w.change.Delete {
			rec = store.Record{}
		}
		rec.Rev = rev
		if err := replaceRecord(tx, w.old, rec); err != nil {
			return err
		}
	}
	return nil
}

// replaceRecord stores rec in place of old, which may be nil. If rec has no key, nothing takes the place of old.
func replaceRecord(tx Tx, old *store.Record, rec store.Record) error {
	var was store.Record
	var before Row
	if old != nil {
		was, before = *old, recordRow(*old, nil)
	}
	switch {
	case rec.Key != "":
		tx.Put(recordRow(rec, EncodeRecord(rec)), before)
	case old != nil:
		tx.Drop(before)
	}
	return moveDue(tx, was, rec)
}

// planRecords checks the changes of a unit and returns what the unit must write under one revision.
func planRecords(tx Tx, changes []store.Change, now time.Time) ([]recordWrite, error) {
	writes := make([]recordWrite, 0, len(changes))
	growth := make(map[RecordSet]int) // how many records the earlier changes of the unit add to each set
	seen := make(map[[2]string]bool, len(changes))
	joined := make(map[[2]string]string) // the keys that the unit added last to lanes
	for _, change := range changes {
		if err := tx.CheckLease(change.Held); err != nil {
			return nil, err
		}
		if change.Held != nil && !change.HasRecord() { // the change only checks the lease
			continue
		}
		if err := checkChange(change); err != nil {
			return nil, err
		}
		rec := change.Record
		name := [2]string{rec.NS, rec.Key}
		if seen[name] {
			return nil, errors.New("a unit must not change the same record twice")
		}
		seen[name] = true
		stored, err := FindRecord(tx, rec.NS, rec.Key)
		if err != nil {
			return nil, err
		}
		var old store.Record
		if stored != nil {
			old = *stored
		}
		live := stored != nil && IsLive(old.Expires, now)
		if !revFits(change.IfRev, live, old.Rev) {
			return nil, fmt.Errorf("record of %s: %w", rec.NS, store.ErrConflict)
		}
		if change.Max > 0 && !change.Delete && !live { // the change adds a record
			set := LimitedSet(change)
			n, err := tx.CountRecords(set, Nanos(now))
			if err != nil {
				return nil, err
			}
			if n+growth[set] >= change.Max {
				return nil, fmt.Errorf("%w: %d records of %s", store.ErrQuota, change.Max, rec.NS)
			}
		}
		if !change.Delete && InLane(rec) && !sameLane(old, rec) {
			lane := [2]string{rec.NS, rec.Lane}
			last, err := tx.LastInLane(rec.NS, rec.Lane)
			if err != nil {
				return nil, err
			}
			if rec.Key <= max(last, joined[lane]) {
				return nil, fmt.Errorf("record of %s: its key is not larger than those in its lane", rec.NS)
			}
			joined[lane] = rec.Key
		}
		if live {
			for set := range setsOf(old.NS, old.Terms) {
				growth[set]--
			}
		}
		if !change.Delete {
			for set := range setsOf(rec.NS, rec.Terms) {
				growth[set]++
			}
		}
		writes = append(writes, recordWrite{change, stored})
	}
	return writes, nil
}

// RecordSet is the set of the records of a namespace that carry Term, or of all its records if Term is empty.
type RecordSet struct{ NS, Term string }

// LimitedSet returns the set whose size the Max of a change limits.
func LimitedSet(c store.Change) RecordSet {
	if len(c.Record.Terms) > 0 {
		return RecordSet{c.Record.NS, c.Record.Terms[0]}
	}
	return RecordSet{NS: c.Record.NS}
}

// Prefix returns the key prefix of the rows that list the records of the set: rows of the Term or, without a Term, the
// records themselves.
func (s RecordSet) Prefix() []byte {
	if s.Term != "" {
		return TermKey(s.NS, s.Term, "")
	}
	return RecordKey(s.NS, "")
}

// Sets yields the sets that contain the record of a row.
func (r Row) Sets() iter.Seq[RecordSet] { return setsOf(string(r.Key[1:1+int(r.Key[0])]), r.Terms) } // see RecordKey

func setsOf(ns string, terms []string) iter.Seq[RecordSet] {
	return func(yield func(RecordSet) bool) {
		if !yield(RecordSet{NS: ns}) {
			return
		}
		for i, term := range terms {
			if !slices.Contains(terms[:i], term) && !yield(RecordSet{ns, term}) {
				return
			}
		}
	}
}
