package store

import (
	"context"
	"iter"
	"time"
)

// pageSize is the number of records that [AllRecords] reads in one call of List.
const pageSize = 500

// AllRecords returns the live records of a namespace that carry a term, in the order of their keys. An empty term
// selects all records. AllRecords reads page by page, so a record that changes meanwhile may be seen in either state.
// An error ends the iteration.
func AllRecords(ctx context.Context, r Records, ns, term string, now time.Time) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for after := ""; ; {
			page, err := r.List(ctx, ns, term, after, pageSize, now)
			if err != nil {
				yield(Record{}, err)
				return
			}
			for _, rec := range page.Records {
				if !yield(rec, nil) {
					return
				}
			}
			if after = page.Next; after == "" {
				return
			}
		}
	}
}
