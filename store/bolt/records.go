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
	"github.com/agentmesh/agentmesh/store/local"
)

const (
	maxNS         = 64
	maxKey        = 512
	maxRecordTerm = 512
	maxListTerms  = 4
	maxQuota      = 10_000 // the largest Max of a change
)

// records implements [store.Records].
type records struct {
	s  *Store
	by *local.Handle // the handle that calls
}

// Records implements [store.Store].
func (s *Store) Records() store.Records { return records{s, s.self} }

func recordKey(ns, key string) []byte {
	return append(key1(make([]byte, 0, 1+len(ns)+len(key)), ns), key...)
}

// termKey returns the key of the row that lists a record under one of its terms. With an empty key, it returns the
// prefix of all such rows of the term.
func termKey(ns, term, key string) []byte {
	return append(key2(key1(make([]byte, 0, 3+len(ns)+len(term)+len(key)), ns), term), key...)
}

// isLive reports whether a row with the given expiry has not expired at now. A zero expiry never
// expires.
func isLive(expires, now time.Time) bool { return expires.IsZero() || now.Before(expires) }

// recordAt returns a record, even if it has expired. ok is false if it has no row.
func recordAt(tx *bbolt.Tx, ns, key string) (rec store.Record, ok bool, err error) {
	row, err := bucketRecords.in(tx).get(recordKey(ns, key))
	if row == nil || err != nil {
		return store.Record{}, false, err
	}
	rec, err = decodeRecord(ns, key, row)
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

func checkChange(c store.Change) error {
	switch rec := c.Record; {
	case rec.NS == "" || len(rec.NS) > maxNS:
		return fmt.Errorf("record namespace has %d bytes, must have 1 to %d", len(rec.NS), maxNS)
	case rec.Key == "" || len(rec.Key) > maxKey:
		return fmt.Errorf("record key has %d bytes, must have 1 to %d", len(rec.Key), maxKey)
	case len(rec.Terms) > maxListTerms:
		return fmt.Errorf("record has %d terms, more than %d", len(rec.Terms), maxListTerms)
	case c.Max < 0 || c.Max > maxQuota:
		return fmt.Errorf("record quota is %d, must be 0 to %d", c.Max, maxQuota)
	}
	for _, term := range c.Record.Terms {
		if term == "" || len(term) > maxRecordTerm {
			return fmt.Errorf("record term has %d bytes, must have 1 to %d", len(term), maxRecordTerm)
		}
	}
	return nil
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
	growth := make(map[countOf]int) // by how much the earlier changes of the unit change the counts
	for i, change := range changes {
		if err := checkChange(change); err != nil {
			return nil, err
		}
		if err := t.leases.Check(change.Held, time.Now()); err != nil {
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
		live := exists && isLive(old.Expires, now)
		if !revFits(change.IfRev, live, old.Rev) {
			return nil, fmt.Errorf("record of %s: %w", change.Record.NS, store.ErrConflict)
		}
		if err := t.checkMax(change, live, now, growth); err != nil {
			return nil, err
		}
		if live {
			for key := range countsOf(old) {
				growth[key]--
			}
		}
		if !change.Delete {
			for key := range countsOf(change.Record) {
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

// revFits reports whether a row satisfies the precondition want of a change. live is true if the row exists and has not
// expired; have is its revision.
func revFits(want store.Rev, live bool, have store.Rev) bool {
	switch want {
	case store.Any:
		return true
	case store.Absent:
		return !live
	}
	return live && want == have
}

// checkMax returns ErrQuota for a new record if its namespace and first term already have c.Max records.
func (t *txn) checkMax(c store.Change, live bool, now time.Time, growth map[countOf]int) error {
	if c.Max == 0 || c.Delete || live {
		return nil
	}
	key := countOf{ns: c.Record.NS}
	if len(c.Record.Terms) > 0 {
		key.term = c.Record.Terms[0]
	}
	n, err := t.counts.count(t.Tx, key, nanos(now))
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
	scheduled := int64(noTime) // the time for which a sweep of the record is already scheduled
	if w.exists {
		scheduled = deadline(w.old.Expires)
		t.counts.remove(w.old)
		for _, term := range w.old.Terms {
			if slices.Contains(rec.Terms, term) {
				continue
			}
			if err := bucketRecordTerms.in(t.Tx).delete(termKey(rec.NS, term, rec.Key)); err != nil {
				return err
			}
		}
	}
	key := recordKey(rec.NS, rec.Key)
	if err := bucketRecords.in(t.Tx).put(key, encodeRecord(rec)); err != nil {
		return err
	}
	for _, term := range rec.Terms {
		if slices.Contains(w.old.Terms, term) {
			continue
		}
		if err := bucketRecordTerms.in(t.Tx).put(termKey(rec.NS, term, rec.Key), nil); err != nil {
			return err
		}
	}
	t.counts.add(rec)
	return scheduleSweep(t.Tx, kindRecord, key, scheduled, deadline(rec.Expires))
}

// deleteRecord removes the row of a record and the rows of its terms. The row in bucketExpiries stays until the sweep
// reaches it.
func deleteRecord(t *txn, rec store.Record) error {
	if err := bucketRecords.in(t.Tx).delete(recordKey(rec.NS, rec.Key)); err != nil {
		return err
	}
	for _, term := range rec.Terms {
		if err := bucketRecordTerms.in(t.Tx).delete(termKey(rec.NS, term, rec.Key)); err != nil {
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
		if !ok || !isLive(row.Expires, now) {
			return store.ErrNotFound
		}
		rec = row
		return nil
	})
	return rec, err
}

// List implements [store.Records].
func (r records) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if limit < 1 {
		return store.RecordPage{}, errLimit
	}
	if ns == "" || len(ns) > maxNS || len(term) > maxRecordTerm {
		return store.RecordPage{}, errors.New("list records: namespace is empty or too long, or term is too long")
	}
	var page store.RecordPage
	err := r.s.view(ctx, func(tx *bbolt.Tx) error {
		records := bucketRecords.in(tx)
		listed, prefix := records, recordKey(ns, "")
		if term != "" {
			listed, prefix = bucketRecordTerms.in(tx), termKey(ns, term, "")
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
				if row.value, err = records.get(recordKey(ns, key)); err != nil {
					return err
				}
				if row.value == nil {
					return fmt.Errorf("%w: record %q %q has a term but no row", ErrDamaged, ns, key)
				}
			}
			rec, err := decodeRecord(ns, key, row.value)
			if err != nil {
				return err
			}
			if !isLive(rec.Expires, now) {
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
