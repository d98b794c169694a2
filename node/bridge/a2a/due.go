package a2a

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

// termDue is the term of the rows that wait to be worked on.
const termDue = "due"

// maxCalls and maxCallsOfOne bound the calls of one queue at the same time.
const (
	maxCalls      = 32
	maxCallsOfOne = 4 // for one party
)

// dueRow holds the fields that the rows of all queues have in common.
type dueRow struct {
	Party string    `json:"party"` // the calls of one party must not hold up those of others
	Due   time.Time `json:"due,omitzero"`
}

// dueQueue works on the rows of a namespace when they are due. The rows are in the store, so a restart loses none.
type dueQueue struct {
	records store.Records
	ns      string
	work    func(ctx context.Context, rec store.Record) error // stores the row with its next due time, or without termDue
	failed  func(error)

	wake   chan struct{}
	places *waiting.Places // of calls, by party

	mu      sync.Mutex
	running map[string]func() // what gives the place of a row back, by key
}

func newDueQueue(records store.Records, ns string) *dueQueue {
	return &dueQueue{records: records, ns: ns, wake: make(chan struct{}, 1), places: waiting.NewPlaces(maxCalls, maxCallsOfOne), running: make(map[string]func())}
}

// wakeUp makes the queue look for due rows.
func (q *dueQueue) wakeUp() {
	waiting.Wake(q.wake)
}

// run works until ctx ends, and returns when every call has ended.
func (q *dueQueue) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		next, err := q.start(ctx, &calls)
		if err != nil && ctx.Err() == nil {
			q.failed(err)
			next = time.Now().Add(10 * time.Second)
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-q.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// start starts the calls for the rows that are due, and returns when to look again.
func (q *dueQueue) start(ctx context.Context, calls *sync.WaitGroup) (next time.Time, err error) {
	now := time.Now()
	next = now.Add(time.Minute)
	for rec, err := range store.AllRecords(ctx, q.records, q.ns, termDue, now) {
		var row dueRow
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
			continue // the end of a call wakes the queue
		}
		calls.Go(func() {
			err := q.work(ctx, rec)
			q.leave(rec.Key)
			if err != nil && ctx.Err() == nil {
				q.failed(err)
				return // the queue tries the row again within a minute
			}
			q.wakeUp()
		})
	}
	return next, nil
}

func (q *dueQueue) enter(key, party string) bool {
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

func (q *dueQueue) leave(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running[key]()
	delete(q.running, key)
}

// pauseBefore returns how long to wait before another attempt: a second, doubled for each attempt, at most limit.
func pauseBefore(attempts int, limit time.Duration) time.Duration {
	return min(time.Second<<min(attempts, 20), limit)
}
