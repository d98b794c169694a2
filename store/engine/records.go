package engine

import (
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// RecordTx is the transaction of a unit that changes records. It reads what the earlier units of the group left.
type RecordTx interface {
	// CheckLease returns ErrLeaseLost if the lease is lost. A nil lease passes.
	CheckLease(held *store.Lease) error
	// Record returns a record, even if it has expired. ok is false if it has no row.
	Record(ns, key string) (rec store.Record, ok bool, err error)
	// CountRecords returns the number of records under key that are live at now.
	CountRecords(key CountOf, now int64) (int, error)
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
	growth := make(map[CountOf]int) // by how much the earlier changes of the unit change the counts
	seen := make(map[[2]string]bool, len(changes))
	for _, change := range changes {
		if err := tx.CheckLease(change.Held); err != nil {
			return nil, err
		}
		if change.Held != nil && !change.HasRecord() {
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
		if !RevFits(change.IfRev, live, old.Rev) {
			return nil, fmt.Errorf("record of %s: %w", rec.NS, store.ErrConflict)
		}
		if change.Max > 0 && !change.Delete && !live {
			key := MaxOf(change)
			n, err := tx.CountRecords(key, Nanos(now))
			if err != nil {
				return nil, err
			}
			if n+growth[key] >= change.Max {
				return nil, fmt.Errorf("%w: %d records of %s", store.ErrQuota, change.Max, rec.NS)
			}
		}
		if live {
			for key := range CountsOf(old) {
				growth[key]--
			}
		}
		if !change.Delete {
			for key := range CountsOf(rec) {
				growth[key]++
			}
		}
		writes = append(writes, RecordWrite{change, old, exists})
	}
	return writes, nil
}

// CountOf is the key of a count: of the records of a namespace that carry Term, or of all if Term is empty.
type CountOf struct{ NS, Term string }

// MaxOf returns the key of the count that the Max of a change bounds.
func MaxOf(c store.Change) CountOf {
	if len(c.Record.Terms) > 0 {
		return CountOf{c.Record.NS, c.Record.Terms[0]}
	}
	return CountOf{NS: c.Record.NS}
}

// Prefix returns the key prefix of the counted rows: rows of the Term or, without a Term, of records.
func (c CountOf) Prefix() []byte {
	if c.Term != "" {
		return TermKey(c.NS, c.Term, "")
	}
	return RecordKey(c.NS, "")
}

// CountsOf yields the keys of the counts that include a record.
func CountsOf(rec store.Record) iter.Seq[CountOf] {
	return func(yield func(CountOf) bool) {
		if !yield(CountOf{NS: rec.NS}) {
			return
		}
		for i, term := range rec.Terms {
			repeated := false
			for _, before := range rec.Terms[:i] {
				repeated = repeated || before == term
			}
			if !repeated && !yield(CountOf{rec.NS, term}) {
				return
			}
		}
	}
}
