package store

import (
	"context"
	"iter"
	"time"
)

// pageSize is how many records [AllRecords] reads at once.
const pageSize = 500

// AllRecords returns the live records of a namespace with a term, in order of their keys; an empty term stands for all records.
// It reads page by page, so records that change meanwhile may be seen in either state. An error ends the iteration.
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
