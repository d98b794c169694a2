package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"
)

// pageSize is the number of records that [AllRecords] reads in one call of List.
const pageSize = 500

// ReadRecord decodes the JSON body of a record into v and returns the revision of the record. If the record does not
// exist, ReadRecord returns false and leaves v as it is.
func ReadRecord(ctx context.Context, r Records, ns, key string, v any, now time.Time) (Rev, bool, error) {
	rec, err := r.Get(ctx, ns, key, now)
	if errors.Is(err, ErrNotFound) {
		return Absent, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return rec.Rev, true, decodeInto(rec, v)
}

// AllRecords returns the live records of a namespace that carry a term, in the order of their keys. An empty term
// selects all records. AllRecords reads page by page, so a record that changes meanwhile may be seen in either state.
// An error ends the iteration.
func AllRecords(ctx context.Context, r Records, ns, term string, now time.Time) iter.Seq2[Record, error] {
	return All(func(after string) ([]Record, string, error) {
		page, err := r.List(ctx, ns, term, after, pageSize, now)
		return page.Records, page.Next, err
	})
}

// Decode decodes the JSON body of a record.
func Decode[T any](rec Record) (v T, err error) {
	err = decodeInto(rec, &v)
	return v, err
}

func decodeInto(rec Record, v any) error {
	if err := json.Unmarshal(rec.Body, v); err != nil {
		return fmt.Errorf("read record %s of %s: %w", rec.Key, rec.NS, err)
	}
	return nil
}

// DecodeAll works like [AllRecords], but decodes the records.
func DecodeAll[T any](ctx context.Context, r Records, ns, term string, now time.Time, decode func(Record) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for rec, err := range AllRecords(ctx, r, ns, term, now) {
			var item T
			if err == nil {
				item, err = decode(rec)
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// MaxConflicts is how often an update is tried if others change the same record meanwhile.
const MaxConflicts = 16

// Retry calls do again while its error is [ErrConflict], at most MaxConflicts times in all.
func Retry(do func() error) error {
	for range MaxConflicts {
		if err := do(); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return ErrConflict
}

// All returns the elements of every page of a list. The function list returns the page at a position, and the
// position of the next page. The first page is at the zero position; a zero next ends the list. An error ends the
// iteration.
func All[T any, P comparable](list func(at P) (page []T, next P, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var at, end P
		for {
			page, next, err := list(at)
			if err != nil {
				yield(*new(T), err)
				return
			}
			for _, item := range page {
				if !yield(item, nil) {
					return
				}
			}
			if at = next; at == end {
				return
			}
		}
	}
}
