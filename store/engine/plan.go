package engine

import (
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// RecordTx is the transaction in which a unit changes records. A unit is what one caller changes, all or nothing. If
// several units share the transaction, a unit sees the writes of the earlier ones.
type RecordTx interface {
	// CheckLease returns ErrLeaseLost if the lease is lost. A nil lease passes.
	CheckLease(held *store.Lease) error
	// Record returns a record, even if it has expired. ok is false if it has no row.
	Record(ns, key string) (rec store.Record, ok bool, err error)
	// CountRecords returns the number of records in set that are live at now.
	CountRecords(set RecordSet, now int64) (int, error)
}

// RecordWrite is a change that has passed the checks, with the row that it replaces.
type RecordWrite struct {
	Change store.Change
	Old    store.Record
	Exists bool
}

// PlanRecords checks the changes of a unit and returns what the unit must write under one revision.
func PlanRecords(tx RecordTx, changes []store.Change, now time.Time) ([]RecordWrite, error) {
	writes := make([]RecordWrite, 0, len(changes))
	growth := make(map[RecordSet]int) // how many records the earlier changes of the unit add to each set
	seen := make(map[[2]string]bool, len(changes))
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
		old, exists, err := tx.Record(rec.NS, rec.Key)
		if err != nil {
			return nil, err
		}
		live := exists && IsLive(old.Expires, now)
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
		if live {
			for set := range SetsOf(old) {
				growth[set]--
			}
		}
		if !change.Delete {
			for set := range SetsOf(rec) {
				growth[set]++
			}
		}
		writes = append(writes, RecordWrite{change, old, exists})
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

// SetsOf yields the sets that contain a record.
func SetsOf(rec store.Record) iter.Seq[RecordSet] {
	return func(yield func(RecordSet) bool) {
		if !yield(RecordSet{NS: rec.NS}) {
			return
		}
		for i, term := range rec.Terms {
			repeated := false
			for _, before := range rec.Terms[:i] {
				repeated = repeated || before == term
			}
			if !repeated && !yield(RecordSet{rec.NS, term}) {
				return
			}
		}
	}
}
