package bridge

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// TermDue is the index term of the due rows.
const TermDue = "due"

// DueRow holds the fields that the due rows of all bridges have in common.
type DueRow struct {
	Party string    `json:"party"` // for whom the call is made; the calls of one party must not hold up those of others
	Due   time.Time `json:"due,omitzero"`
}

// The limits of the calls that a bridge makes at the same time for the rows of one namespace.
const (
	maxCalls         = 32
	maxCallsPerParty = 4
)

// Schedule returns the record with its due time, the term of due rows, and its party.
func (r DueRow) Schedule(rec store.Record, now time.Time) store.Record {
	if r.Due.IsZero() {
		return rec
	}
	rec.Due, rec.Party, rec.Terms = r.Due, r.Party, append(rec.Terms, TermDue)
	if !r.Due.After(now) {
		rec.Due = store.DueNow
	}
	return rec
}

// Queue returns the queue of the rows of a namespace. do stores the row with its next due time or without one, or deletes
// it; see [work.Queue].
func Queue(ns string, maxPause time.Duration, do func(ctx context.Context, rec store.Record) error) work.Queue {
	return work.Queue{
		NS: ns, Term: TermDue, Max: maxCalls, PerParty: maxCallsPerParty, MaxPause: maxPause,
		Do: func(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
			return work.Later{}, do(ctx, rec)
		},
	}
}

// Forget returns the change that deletes a row, unless it was changed meanwhile.
func Forget(rec store.Record) []store.Change {
	return []store.Change{{IfRev: rec.Rev, Delete: true, Record: rec}}
}

// PauseBefore returns how long to wait before another attempt: a second, doubled for each earlier attempt, and at most
// limit.
func PauseBefore(attempts int, limit time.Duration) time.Duration {
	return min(time.Second<<min(attempts, 20), limit)
}
