package bolt

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// records implements [store.Records].
type records struct {
	s  *Store
	by *local.Handle // the handle of the caller
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

func (r records) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	return r.s.writer.doFor(ctx, r.by, func(t *txn) (func() error, error) {
		records, err := engine.PlanRecords(t, changes, now)
		if err != nil || len(changes) == 0 {
			return nil, err
		}
		return func() error {
			t.WriteRecords(records, t.NextRev())
			return nil
		}, nil
	})
}

func (t *txn) CheckLease(held *store.Lease) error { return t.leases.Check(held, time.Now()) }

func (t *txn) Record(ns, key string) (store.Record, bool, error) { return recordAt(t.Tx, ns, key) }

func (t *txn) CountRecords(set engine.RecordSet, now int64) (int, error) {
	return t.counts.count(t.Tx, set, now)
}

// WriteRecords implements [engine.Tx].
func (t *txn) WriteRecords(writes []engine.RecordWrite, rev store.Rev) {
	for _, w := range writes {
		t.writeRecord(w, rev)
	}
}

func (t *txn) writeRecord(w engine.RecordWrite, rev store.Rev) {
	rec := w.Change.Record
	t.Note(rec.NS, rec.Key)
	if w.Change.Delete {
		if w.Exists {
			deleteRecord(t, w.Old)
		}
		return
	}
	rec.Rev = rev
	scheduled := int64(engine.NoTime) // the time for which a sweep of the record is already scheduled
	if w.Exists {
		scheduled = engine.Deadline(w.Old.Expires)
		t.counts.remove(w.Old)
	}
	key := engine.RecordKey(rec.NS, rec.Key)
	bucketRecords.in(t).put(key, engine.EncodeRecord(rec))
	replaceRecordTerms(t, rec, w.Old.Terms, rec.Terms)
	t.counts.add(rec)
	scheduleSweep(t, kindRecord, key, scheduled, engine.Deadline(rec.Expires))
}

// deleteRecord removes a record with its terms. The row in bucketExpiries stays until the sweep reaches it.
func deleteRecord(t *txn, rec store.Record) {
	bucketRecords.in(t).delete(engine.RecordKey(rec.NS, rec.Key))
	t.counts.remove(rec)
	replaceRecordTerms(t, rec, rec.Terms, nil)
}

func replaceRecordTerms(t *txn, rec store.Record, old, terms []string) {
	bucketRecordTerms.in(t).replace(engine.SortedSet(old), engine.SortedSet(terms), func(term string) []byte {
		return engine.TermKey(rec.NS, term, rec.Key)
	})
}

func (r records) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	find := func(tx *bbolt.Tx, key string) (store.Record, bool, error) { return recordAt(tx, ns, key) }
	return readRow(ctx, r.s, key, find, func(rec store.Record) bool { return engine.IsLive(rec.Expires, now) })
}

func (r records) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if err := engine.CheckList(ns, limit); err != nil {
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
