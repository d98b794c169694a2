package bolt

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// records implements [store.Records].
type records struct {
	engine.Records
	s *Store
}

// Records implements [store.Store].
func (s *Store) Records() store.Records { return s.recordsOf(s.self) }

func (s *Store) recordsOf(by *local.Handle) store.Records {
	return records{engine.Records{Driver: driver{s, by}}, s}
}

func (t *txn) CheckLease(held *store.Lease) error { return t.leases.Check(held, time.Now()) }

func (r records) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	return r.list(ctx, ns, term, limit, now, func(rows rows, prefix []byte) iter.Seq2[row, error] {
		start := prefix
		if after != "" {
			start = append(append(bytes.Clone(prefix), after...), 0)
		}
		return rows.from(start, prefix)
	})
}

func (r records) ListBackward(ctx context.Context, ns, term, before string, limit int, now time.Time) (store.RecordPage, error) {
	return r.list(ctx, ns, term, limit, now, func(rows rows, prefix []byte) iter.Seq2[row, error] {
		if before == "" {
			return rows.backward(endOf(prefix), prefix)
		}
		return rows.backward(append(bytes.Clone(prefix), before...), prefix)
	})
}

// list returns a page of the records that walk finds; the keys of all candidates begin with prefix.
func (r records) list(ctx context.Context, ns, term string, limit int, now time.Time, walk func(rows rows, prefix []byte) iter.Seq2[row, error]) (store.RecordPage, error) {
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
		for row, err := range walk(listed, prefix) {
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

// FirstInLane implements [engine.Tx].
func (t *txn) FirstInLane(ns, lane string) (string, error) { return firstInLane(t.Tx, ns, lane) }

func firstInLane(tx *bbolt.Tx, ns, lane string) (string, error) {
	prefix := engine.TermKey(ns, lane, "")
	for row, err := range bucketLanes.in(tx).from(prefix, prefix) {
		if err != nil {
			return "", err
		}
		return string(row.key[len(prefix):]), nil
	}
	return "", nil
}

// LaneRecord implements [engine.Tx].
func (t *txn) LaneRecord(ns, _, key string) (store.Record, error) {
	rec, err := engine.FindRecord(t, ns, key)
	if rec == nil && err == nil {
		err = fmt.Errorf("%w: record %q %q is in a lane but has no row", ErrDamaged, ns, key)
	}
	if err != nil {
		return store.Record{}, err
	}
	return *rec, nil
}

// LastInLane implements [engine.Tx].
func (t *txn) LastInLane(ns, lane string) (string, error) {
	prefix := engine.TermKey(ns, lane, "")
	key, err := bucketLanes.in(t).last(prefix)
	if key == nil || err != nil {
		return "", err
	}
	return string(key[len(prefix):]), nil
}

// PutInLane implements [engine.Tx].
func (t *txn) PutInLane(rec store.Record) {
	if key := engine.LaneKey(rec); !rowExists(t.Tx, bucketLanes, key) {
		bucketLanes.in(t).put(key, nil)
	}
}

// DropFromLane implements [engine.Tx].
func (t *txn) DropFromLane(rec store.Record) { bucketLanes.in(t).delete(engine.LaneKey(rec)) }

// PutHead implements [engine.Tx].
func (t *txn) PutHead(rec store.Record) { bucketHeads.in(t).put(engine.HeadKey(rec), headValue(rec)) }

// DropHead implements [engine.Tx].
func (t *txn) DropHead(rec store.Record) { bucketHeads.in(t).delete(engine.HeadKey(rec)) }

func headValue(rec store.Record) []byte {
	return append(u64(uint64(engine.Deadline(rec.Expires))), rec.Party...)
}

func (r records) Due(ctx context.Context, ns string, until time.Time, skip []string, limit int) (due []store.Record, next time.Time, err error) {
	if err := engine.CheckDue(ns, skip, limit); err != nil {
		return nil, next, err
	}
	at, end, prefix := min(engine.Nanos(until), engine.Never-1), engine.HeadsEnd(ns, until), engine.RecordKey(ns, "")
	err = r.s.view(ctx, func(tx *bbolt.Tx) error {
		for row, err := range bucketHeads.in(tx).from(prefix, prefix) {
			var head, rec store.Record
			if err == nil {
				if len(row.value) >= 8 && (int64(number(row.value[:8])) <= at || slices.Contains(skip, string(row.value[8:]))) {
					continue
				}
				head, err = engine.ReadHeadKey(row.key)
			}
			if err == nil && (len(due) == limit || bytes.Compare(row.key, end) >= 0) {
				next = head.Due
				return nil
			}
			if err == nil {
				rec, err = headRecord(tx, head)
			}
			if err != nil {
				r.s.damage.Note("left out of what is due", err)
				continue
			}
			due = append(due, rec)
		}
		return nil
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	return due, next, nil
}

// headRecord returns the record of a head, as [engine.ReadHeadKey] returns it.
func headRecord(tx *bbolt.Tx, head store.Record) (store.Record, error) {
	row, err := bucketRecords.in(tx).get(engine.RecordKey(head.NS, head.Key))
	if err != nil {
		return head, err
	}
	return engine.DecodeHead(head, row)
}

func (r records) Count(ctx context.Context, ns, term string, limit int, now time.Time) (int, error) {
	if err := engine.CheckList(ns, limit); err != nil {
		return 0, err
	}
	return r.s.writer.counts.count(ctx, engine.RecordSet{NS: ns, Term: term}, engine.Nanos(now), limit)
}
