package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

// TermDue is the index term by which the queue finds the rows that wait to be worked on.
const TermDue = "due"

// These limit how many calls of its work function one queue makes at the same time.
const (
	maxCalls         = 32
	maxCallsPerParty = 4
)

// DueRow holds the fields that the rows of all queues have in common.
type DueRow struct {
	Party string    `json:"party"` // for whom the call is made; the calls of one party must not hold up those of others
	Due   time.Time `json:"due,omitzero"`
}

// DueQueue works on the rows of a namespace when they are due. The rows are in the store, so a restart loses none.
type DueQueue struct {
	records store.Records
	ns      string
	work    func(ctx context.Context, rec store.Record) error
	onError func(error)

	wake   chan struct{}
	places *waiting.Places // the slots for calls; a call holds one, under its party

	mu      sync.Mutex
	running map[string]func() // the calls that run, by the key of the row; the function frees the place of the call
}

// NewDueQueue returns a queue of the rows in a namespace that have the term TermDue. work must store the row with its
// next due time or without TermDue, or delete it. If work returns an error, the queue calls onError and tries the row
// again within a minute. Nothing runs before [DueQueue.Run].
func NewDueQueue(records store.Records, ns string, work func(ctx context.Context, rec store.Record) error, onError func(error)) *DueQueue {
	return &DueQueue{
		records: records, ns: ns, work: work, onError: onError, wake: make(chan struct{}, 1),
		places: waiting.NewPlaces(maxCalls, maxCallsPerParty), running: make(map[string]func()),
	}
}

// WakeUp makes the queue look for due rows.
func (q *DueQueue) WakeUp() {
	waiting.Wake(q.wake)
}

// SaveUnlessChanged stores or deletes a row after work on it. If the row was changed meanwhile, SaveUnlessChanged does
// nothing, and the queue works on the changed row later.
func (q *DueQueue) SaveUnlessChanged(ctx context.Context, c store.Change) error {
	err := q.records.Apply(ctx, []store.Change{c}, time.Now())
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}

// Forget deletes a row, unless it was changed meanwhile.
func (q *DueQueue) Forget(ctx context.Context, rec store.Record) error {
	return q.SaveUnlessChanged(ctx, store.Change{IfRev: rec.Rev, Delete: true, Record: store.Record{NS: rec.NS, Key: rec.Key}})
}

// Run works until ctx ends, and returns when every call has ended.
func (q *DueQueue) Run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		next, err := q.start(ctx, &calls)
		if err != nil && ctx.Err() == nil {
			q.onError(err)
			next = time.Now().Add(10 * time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-time.After(time.Until(next)):
		}
	}
}

// start starts the calls for the rows that are due, and returns when to look again.
func (q *DueQueue) start(ctx context.Context, calls *sync.WaitGroup) (next time.Time, err error) {
	now := time.Now()
	next = now.Add(time.Minute)
	for rec, err := range store.AllRecords(ctx, q.records, q.ns, TermDue, now) {
		var row DueRow
		if err == nil {
			err = json.Unmarshal(rec.Body, &row)
		}
		if err != nil {
			return next, err
		}
		if row.Due.After(now) {
			if row.Due.Before(next) {
				next = row.Due
			}
			continue
		}
		if !q.enter(rec.Key, row.Party) {
			continue // the queue looks again when a call ends
		}
		calls.Go(func() {
			err := q.work(ctx, rec)
			q.leave(rec.Key)
			if err != nil && ctx.Err() == nil {
				q.onError(err)
				return // the queue tries the row again within a minute
			}
			q.WakeUp()
		})
	}
	return next, nil
}

// enter takes a place for a call on a row. It returns false if a call on that row is running, or if no place is free.
func (q *DueQueue) enter(key, party string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running[key] != nil {
		return false
	}
	leave, ok := q.places.Enter(party)
	if ok {
		q.running[key] = leave
	}
	return ok
}

// leave gives back the place that enter took.
func (q *DueQueue) leave(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running[key]()
	delete(q.running, key)
}

// PauseBefore returns how long to wait before another attempt: a second, doubled for each earlier attempt, and at most
// limit.
func PauseBefore(attempts int, limit time.Duration) time.Duration {
	return min(time.Second<<min(attempts, 20), limit)
}
