package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// records implements [store.Records].
type records struct {
	s  *Store
	by *local.Handle // the handle that calls
}

// Records implements [store.Store].
func (s *Store) Records() store.Records { return records{s, s.self} }

// recordAt returns a record, even if it has expired. ok is false if it has no row.
func recordAt(tx *bbolt.Tx, ns, key string) (rec store.Record, ok bool, err error) {
	row, err := bucketRecords.in(tx).get(engine.RecordKey(ns, key))
	if row == nil || err != nil {
		return store.Record{}, false, err
	}
	rec, err = engine.DecodeRecord(ns, key, row)
	return rec, err == nil, err
}

// Apply implements [store.Records].
func (r records) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	return r.s.writer.doFor(ctx, r.by, func(t *txn) (func() error, error) {
		write, err := planRecords(t, changes, now)
		if err != nil || len(changes) == 0 {
			return nil, err
		}
		return func() error {
			rev, err := t.nextRev()
			if err != nil {
				return err
			}
			return write(rev)
		}, nil
	})
}

// recordWrite is a change that has passed the checks, with the row that it replaces.
type recordWrite struct {
	change store.Change
	old    store.Record
	exists bool
}

// planRecords checks changes and returns a function that writes them under one revision.
func planRecords(t *txn, changes []store.Change, now time.Time) (func(store.Rev) error, error) {
	writes := make([]recordWrite, 0, len(changes))
	growth := make(map[engine.CountOf]int) // by how much the earlier changes of the unit change the counts
	for i, change := range changes {
		if err := t.leases.Check(change.Held, time.Now()); err != nil {
			return nil, err
		}
		if change.Held != nil && !change.HasRecord() {
			continue
		}
		if err := engine.CheckChange(change); err != nil {
			return nil, err
		}
		for _, before := range changes[:i] {
			if before.Record.NS == change.Record.NS && before.Record.Key == change.Record.Key {
				return nil, errors.New("a unit must not change the same record twice")
			}
		}
		old, exists, err := recordAt(t.Tx, change.Record.NS, change.Record.Key)
		if err != nil {
			return nil, err
		}
		live := exists && engine.IsLive(old.Expires, now)
		if !engine.RevFits(change.IfRev, live, old.Rev) {
			return nil, fmt.Errorf("record of %s: %w", change.Record.NS, store.ErrConflict)
		}
		if err := t.checkMax(change, live, now, growth); err != nil {
			return nil, err
		}
		if live {
			for key := range engine.CountsOf(old) {
				growth[key]--
			}
		}
		if !change.Delete {
			for key := range engine.CountsOf(change.Record) {
				growth[key]++
			}
		}
		writes = append(writes, recordWrite{change, old, exists})
	}
	return func(rev store.Rev) error {
		for _, w := range writes {
			if err := w.write(t, rev); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// checkMax returns ErrQuota for a new record if its namespace and first term already have c.Max records.
func (t *txn) checkMax(c store.Change, live bool, now time.Time, growth map[engine.CountOf]int) error {
	if c.Max == 0 || c.Delete || live {
		return nil
	}
	key := engine.CountOf{NS: c.Record.NS}
	if len(c.Record.Terms) > 0 {
		key.Term = c.Record.Terms[0]
	}
	n, err := t.counts.count(t.Tx, key, engine.Nanos(now))
	if err != nil {
		return err
	}
	if n+growth[key] >= c.Max {
		return fmt.Errorf("%w: %d records of %s", store.ErrQuota, c.Max, c.Record.NS)
	}
	return nil
}

func (w recordWrite) write(t *txn, rev store.Rev) error {
	t.note(w.change.Record.NS, w.change.Record.Key)
	if w.change.Delete {
		if !w.exists {
			return nil
		}
		return deleteRecord(t, w.old)
	}
	rec := w.change.Record
	rec.Rev = rev
	scheduled := int64(engine.NoTime) // the time for which a sweep of the record is already scheduled
	if w.exists {
		scheduled = engine.Deadline(w.old.Expires)
		t.counts.remove(w.old)
		for _, term := range w.old.Terms {
			if slices.Contains(rec.Terms, term) {
				continue
			}
			if err := bucketRecordTerms.in(t.Tx).delete(engine.TermKey(rec.NS, term, rec.Key)); err != nil {
				return err
			}
		}
	}
	key := engine.RecordKey(rec.NS, rec.Key)
	if err := bucketRecords.in(t.Tx).put(key, engine.EncodeRecord(rec)); err != nil {
		return err
	}
	for _, term := range rec.Terms {
		if slices.Contains(w.old.Terms, term) {
			continue
		}
		if err := bucketRecordTerms.in(t.Tx).put(engine.TermKey(rec.NS, term, rec.Key), nil); err != nil {
			return err
		}
	}
	t.counts.add(rec)
	return scheduleSweep(t.Tx, kindRecord, key, scheduled, engine.Deadline(rec.Expires))
}

// deleteRecord removes the row of a record and the rows of its terms. The row in bucketExpiries stays until the sweep
// reaches it.
func deleteRecord(t *txn, rec store.Record) error {
	if err := bucketRecords.in(t.Tx).delete(engine.RecordKey(rec.NS, rec.Key)); err != nil {
		return err
	}
	for _, term := range rec.Terms {
		if err := bucketRecordTerms.in(t.Tx).delete(engine.TermKey(rec.NS, term, rec.Key)); err != nil {
			return err
		}
	}
	t.counts.remove(rec)
	return nil
}

// Get implements [store.Records].
func (r records) Get(ctx context.Context, ns, key string, now time.Time) (rec store.Record, err error) {
	err = r.s.view(ctx, func(tx *bbolt.Tx) error {
		row, ok, err := recordAt(tx, ns, key)
		if err != nil {
			return err
		}
		if !ok || !engine.IsLive(row.Expires, now) {
			return store.ErrNotFound
		}
		rec = row
		return nil
	})
	return rec, err
}

// List implements [store.Records].
func (r records) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if err := engine.CheckList(ns, term, limit); err != nil {
		return store.RecordPage{}, err
	}
	var page store.RecordPage
	err := r.s.view(ctx, func(tx *bbolt.Tx) error {
		records := bucketRecords.in(tx)
		listed, prefix := records, engine.RecordKey(ns, "")
		if term != "" {
			listed, prefix = bucketRecordTerms.in(tx), engine.TermKey(ns, term, "")
		}
		start := prefix
		if after != "" {
			start = append(append(bytes.Clone(prefix), after...), 0)
		}
		for row, err := range listed.from(start, prefix) {
			if err != nil {
				return err
			}
			key := string(row.key[len(prefix):])
			if term != "" {
				if row.value, err = records.get(engine.RecordKey(ns, key)); err != nil {
					return err
				}
				if row.value == nil {
					return fmt.Errorf("%w: record %q %q has a term but no row", ErrDamaged, ns, key)
				}
			}
			rec, err := engine.DecodeRecord(ns, key, row.value)
			if err != nil {
				return err
			}
			if !engine.IsLive(rec.Expires, now) {
				continue
			}
			if len(page.Records) == limit {
				page.Next = page.Records[limit-1].Key
				break
			}
			page.Records = append(page.Records, rec)
		}
		return nil
	})
	if err != nil {
		return store.RecordPage{}, err
	}
	return page, nil
}
