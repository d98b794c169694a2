// Package work does what is due: it is the only scheduler of the work that waits in the store.
//
// A record that waits for a time has a [store.Record].Due. A [Worker] reads the due records of its queues, calls the
// queue's Do for each, and sleeps until the next one. The contract of [store.Records].Due gives the order: only the first
// record of a lane is due, so the work of a lane is done in the order of the keys. The worker adds what a store cannot
// know: how many calls run at once, and for one party; that a call waits for something which this process has, such as a
// connection; and that the wall clock was set.
//
// The worker keeps nothing that a restart could lose, and claims nothing in the store. One process works at a time: run a
// worker under a lease, whose context the calls get.
//
// Start with [New] and [Worker.Add]; then call [Worker.Run].
package work

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const (
	maxSleep    = 30 * time.Second // between two looks while records wait, because the wall clock may be set
	errPause    = 10 * time.Second // the longest after an error of the store; it begins with a second and doubles
	maxErrPause = time.Minute      // after an error of a call; it begins with a second and doubles
	openGap     = time.Second      // between a call that found its gate closed and the next one, if the gate opens meanwhile
	stepLimit   = time.Second      // a larger difference between wall clock and monotonic clock is a step of the wall clock

	maxSkip   = 32     // parties that one reading leaves out
	maxRows   = 1000   // records of one reading
	maxOpened = 100    // openings that a running call remembers
	maxPassed = 10_000 // lanes, and pauses, that a queue remembers
	minRows   = 64     // records of one reading, so that those that wait long take their turn
)

// Queue is the work in one namespace.
type Queue struct {
	NS   string
	Term string // the term of the records that wait; "": every record of the namespace waits
	// Max and PerParty bound the calls that run at once, in all and for one party. Zero PerParty: Max.
	Max, PerParty int
	// MaxPause is the longest pause that Do stores. While the process lives, a pause is measured by the monotonic clock, so
	// that a step of the wall clock changes nothing. A record that is due even later was stored while the clock was wrong;
	// it is due now. Zero: Due is a time of the wall clock, not the end of a pause.
	MaxPause time.Duration
	// Ends means that Do ends something because of the time. It is not called while the wall clock is in doubt.
	Ends bool
	// Do works on a record. It stores the outcome together with the next Due, or the deletion of the record, in one unit
	// whose precondition is the revision of rec; or it returns what it waits for. fresh means that no call for the
	// record can have begun, here or in another process: this process committed it while it worked, or settled another
	// record of its lane before it. After an error the worker tries again after a pause that grows; the other records of
	// the party wait, too, if Do also returned a Gate.
	Do func(ctx context.Context, rec store.Record, fresh bool) (Later, error)
}

// Later is why a call did not settle its record. It is kept in memory only, so a restart tries at once. The record is
// worked on again after Pause, when Gate opens, or when it is changed, whichever comes first.
type Later struct {
	Pause time.Duration // zero: only Gate ends the wait
	// Gate names what is missing, such as a connection; see [Worker.Open]. The other records of the party, if the record
	// has one, wait too.
	Gate string
}

// Worker works on the due records of its queues. It is safe for concurrent use.
type Worker struct {
	records store.Records
	commits *store.Observed
	clock   *store.WallClock
	log     *slog.Logger
	wake    chan struct{} // has room for one signal

	mu     sync.Mutex
	queues []*queue
	read   time.Time // the newest reading of the clock, to notice that it was set
}

// queue is the state of a Queue, all of it in memory.
type queue struct {
	Queue
	running bool                 // under Run
	look    bool                 // something may be due
	stepped bool                 // the clock may have been set: records far in the future may be due
	next    time.Time            // when the first waiting record is due; zero: none waits
	retry   time.Time            // no look before this time
	failed  int                  // readings in a row
	calls   map[string]*call     // that run, by key
	parties map[string]int       // running calls
	later   map[string]deferral  // records that wait in memory, by key
	fresh   map[string]bool      // see Queue.Do
	passed  map[string]string    // by lane, the key of the last record that a call settled
	seen    map[string]time.Time // when the records that were read last, and must wait, were first read
	begun   map[string]beginning // the newest call for each record, of this minute
	older   map[string]beginning // the same, of the minute before
	rotated time.Time            // when begun was emptied
	pauses  map[string]pause     // that were stored, by key
	reads   int                  // how often records were read
}

// call is a running call, or a claim.
type call struct {
	party  string
	opened []func(gate string) bool // the gates that opened meanwhile
}

type deferral struct {
	Later
	party string
	since time.Time
}

// pause is a Due that ends a pause, by the monotonic clock.
type pause struct {
	since  time.Time
	length time.Duration
}

func (p pause) left(now time.Time) time.Duration { return p.length - now.Sub(p.since) }

// count returns how many calls run, without claims.
func (q *queue) count() (n int) {
	for _, calls := range q.parties {
		n += calls
	}
	return n
}

// beginning remembers a call for a minute or two, because the commit that made its record may be reported only after it,
// and the record may have been read before it.
type beginning struct {
	rev     store.Rev
	ended   int  // queue.reads when it ended
	settled bool // the call said that it settled this revision
	errors  int  // in a row
}

// newest returns the newest call for a record.
func (q *queue) newest(key string) (b beginning, ok bool) {
	if b, ok = q.begun[key]; !ok {
		b, ok = q.older[key]
	}
	return b, ok
}

// New returns a worker without queues. clock may be nil.
func New(of store.Store, clock *store.WallClock, log *slog.Logger) *Worker {
	s := store.Observe(of)
	w := &Worker{records: s.Records(), commits: s, clock: clock, log: log, wake: make(chan struct{}, 1), read: time.Now()}
	s.OnLoss(w.LookAgain)
	return w
}

// Add adds a queue. Call it during set-up, before the first commit.
func (w *Worker) Add(q Queue) {
	q.PerParty = cmp.Or(q.PerParty, q.Max)
	added := &queue{
		Queue: q, calls: make(map[string]*call), parties: make(map[string]int), later: make(map[string]deferral),
		pauses: make(map[string]pause), fresh: make(map[string]bool), passed: make(map[string]string), begun: make(map[string]beginning),
	}
	w.mu.Lock()
	w.queues = append(w.queues, added)
	w.mu.Unlock()
	w.commits.OnCommit(func(changes []store.Change) { w.onCommit(added, changes) }, q.NS)
}

// onCommit notices records that were made, changed or removed.
func (w *Worker) onCommit(q *queue, changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS != q.NS {
			continue
		}
		key := c.Record.Key
		w.mu.Lock()
		_, begun := q.newest(key)
		delete(q.later, key)
		delete(q.pauses, key)
		now := time.Now()
		if p := (pause{now, c.Record.Due.Sub(now.Round(0))}); q.MaxPause > 0 && !c.Delete && p.length > 0 && p.length <= q.MaxPause && len(q.pauses) < maxPassed {
			q.pauses[key] = p
		}
		switch {
		case c.Delete, c.Record.Due.IsZero():
			delete(q.fresh, key)
		case c.IfRev == store.Absent && q.running && !begun && q.calls[key] == nil: // only our own commits have this IfRev
			q.fresh[key] = true
		}
		changed := c.Delete || !c.Record.Due.IsZero() || c.Record.Lane != ""
		q.look = q.look || changed
		w.mu.Unlock()
		if changed {
			w.signal()
		}
	}
}

func (w *Worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// LookAgain makes the worker read every queue, because changes may have been missed.
func (w *Worker) LookAgain() {
	w.mu.Lock()
	for _, q := range w.queues {
		q.look = true
	}
	w.mu.Unlock()
	w.signal()
}

// Claim keeps the worker from a record that the caller is about to commit and to work on itself, until it calls release.
func (w *Worker) Claim(ns, key string) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queue(ns)
	c := &call{}
	q.calls[key] = c
	return func() {
		w.mu.Lock()
		if q.calls[key] == c {
			delete(q.calls, key)
		}
		q.look = true
		w.mu.Unlock()
		w.signal()
	}
}

// queue returns the queue of a namespace, which must have one.
func (w *Worker) queue(ns string) *queue {
	return w.queues[slices.IndexFunc(w.queues, func(q *queue) bool { return q.NS == ns })]
}

// Open ends the waits in a namespace for gates that match. A call that runs, and then finds such a gate closed, is
// repeated after openGap.
func (w *Worker) Open(ns string, match func(gate string) bool) {
	w.mu.Lock()
	q, opened := w.queue(ns), false
	for key, d := range q.later {
		if d.Gate != "" && match(d.Gate) {
			q.later[key] = deferral{Later: Later{Pause: openGap}, party: d.party, since: d.since}
			opened = true
		}
	}
	for _, c := range q.calls {
		if len(c.opened) < maxOpened {
			c.opened = append(c.opened, match)
		}
	}
	w.mu.Unlock()
	if opened {
		w.signal()
	}
}

// Run works until ctx ends and the running calls have ended. With namespaces it works only on their queues.
func (w *Worker) Run(ctx context.Context, namespaces ...string) {
	var calls sync.WaitGroup
	var queues []*queue
	w.mu.Lock()
	for _, q := range w.queues {
		if len(namespaces) == 0 || slices.Contains(namespaces, q.NS) {
			queues = append(queues, q)
			q.running, q.look, q.stepped = true, true, true
		}
	}
	w.mu.Unlock()
	defer func() {
		calls.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, q := range queues {
			q.running, q.next, q.retry = false, time.Time{}, time.Time{}
			clear(q.later)
			clear(q.fresh)
			clear(q.passed)
			clear(q.begun)
			clear(q.older)
		}
	}()
	for ctx.Err() == nil {
		now := time.Now()
		w.noticeStep(now)
		for _, q := range queues {
			if w.mustLook(q, now) {
				w.lookAt(ctx, q, now, &calls)
			}
		}
		var timer <-chan time.Time
		if next := w.nextLook(queues); !next.IsZero() {
			timer = time.After(min(time.Until(next), maxSleep))
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-timer:
		}
	}
}

// noticeStep makes every queue look for records far in the future if the wall clock was set.
func (w *Worker) noticeStep(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Round(0) strips the monotonic reading, so the first difference is of the wall clock, the second of the monotonic one.
	step := now.Round(0).Sub(w.read.Round(0)) - now.Sub(w.read)
	w.read = now
	if step.Abs() < stepLimit {
		return
	}
	for _, q := range w.queues {
		q.look, q.stepped, q.retry = true, true, time.Time{}
	}
}

// mustLook reports whether a record of the queue may be due, and notes that it is looked for.
func (w *Worker) mustLook(q *queue, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(q.rotated).Abs() > time.Minute {
		q.rotated, q.older, q.begun = now, q.begun, make(map[string]beginning)
	}
	due := q.look || !q.next.IsZero() && !q.next.After(now)
	for key, d := range q.later {
		if d.ended(now) {
			delete(q.later, key)
			due = true
		}
	}
	if !due || q.retry.After(now) {
		return false
	}
	q.look = false
	return true
}

func (d deferral) ended(now time.Time) bool { return d.Pause > 0 && now.Sub(d.since) >= d.Pause }

// nextLook returns when a queue must be looked at again, or the zero time.
func (w *Worker) nextLook(queues []*queue) (next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, q := range queues {
		if !q.retry.IsZero() {
			sooner(q.retry)
			continue
		}
		if !q.next.IsZero() {
			sooner(q.next)
		}
		for _, d := range q.later {
			if d.Pause > 0 {
				sooner(d.since.Add(d.Pause))
			}
		}
	}
	return next
}

// lookAt starts the calls for the records that are due.
func (w *Worker) lookAt(ctx context.Context, q *queue, now time.Time, calls *sync.WaitGroup) {
	var retry time.Time
	failed := 0
	if q.Ends && !w.clock.Reliable() {
		retry = now.Add(2 * maxSleep)
	} else if err := w.startDue(ctx, q, now, calls); err != nil && ctx.Err() == nil {
		w.log.Warn("due records cannot be read; tries again", "queue", q.NS, "err", err)
		retry = now.Add(min(time.Second<<min(q.failed, 10), errPause))
		failed = q.failed + 1
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	q.retry, q.failed = retry, failed
	q.look = q.look || !retry.IsZero()
}

// startDue starts calls until no place is free or nothing more is due.
func (w *Worker) startDue(ctx context.Context, q *queue, now time.Time, calls *sync.WaitGroup) error {
	for {
		skip, limit := w.room(q)
		if limit == 0 { // the end of a call looks again
			w.setNext(q, now.Add(maxSleep))
			return nil
		}
		read := w.countRead(q)
		rows, next, err := w.records.Due(ctx, q.NS, now, skip, limit)
		if err != nil {
			return err
		}
		started := 0
		for _, rec := range w.inTurn(q, rows, now) {
			if w.start(ctx, q, rec, read, calls) {
				started++
			}
		}
		q.stepped = q.stepped || q.isWrong(next, now)
		if !next.IsZero() && (!next.After(now) || q.isWrong(next, now)) { // no room was left for it, or it is looked for below
			next = now.Add(maxSleep)
		}
		w.setNext(q, next)
		if started == 0 || len(rows) < limit {
			break
		}
	}
	if !q.stepped {
		return nil
	}
	read := w.countRead(q)
	rows, _, err := w.records.Due(ctx, q.NS, endOfTime, nil, 10*maxRows)
	if err != nil {
		return err
	}
	w.mu.Lock()
	q.stepped = false
	var due []store.Record
	for _, rec := range rows {
		p, known := q.pauses[rec.Key]
		switch left := p.left(now); {
		case known && left <= 0, !known && q.isWrong(rec.Due, now):
			due = append(due, rec)
		case known && rec.Due.Sub(now)-left > stepLimit: // the clock was set back: look again when the pause ends
			q.stepped = true
			if end := now.Add(left); q.next.IsZero() || end.Before(q.next) {
				q.next = end
			}
		}
	}
	w.mu.Unlock()
	for _, rec := range due {
		w.start(ctx, q, rec, read, calls)
	}
	return nil
}

// inTurn sorts records by the time since which they could be worked on, so that one that was postponed takes its turn
// among those that are due at once.
func (w *Worker) inTurn(q *queue, rows []store.Record, now time.Time) []store.Record {
	seen := make(map[string]time.Time, len(rows))
	for _, rec := range rows {
		since, ok := q.seen[rec.Key]
		if !ok && rec.Due.After(store.DueNow) {
			since = rec.Due
		} else if !ok {
			since = now
		}
		seen[rec.Key] = since
	}
	q.seen = seen // only Run uses it
	slices.SortStableFunc(rows, func(a, b store.Record) int { return seen[a.Key].Compare(seen[b.Key]) })
	return rows
}

func (w *Worker) setNext(q *queue, next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.next = next
}

// endOfTime is later than every Due.
var endOfTime = time.Unix(1<<33, 0)

// isWrong reports whether a Due comes from a clock that was wrong by more than an hour. A smaller step only shifts it.
func (q *queue) isWrong(due, now time.Time) bool {
	return q.MaxPause > 0 && due.Sub(now) > q.MaxPause+time.Hour
}

// room returns the parties whose records must wait, and how many records to read so that every free place is used.
func (w *Worker) room(q *queue) (skip []string, limit int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	running, closed := q.count(), make(map[string]bool)
	for party, n := range q.parties {
		if n >= q.PerParty {
			closed[party] = true
		}
	}
	for _, d := range q.later {
		if d.Gate != "" && d.party != "" {
			closed[d.party] = true
		}
	}
	if running >= q.Max {
		return nil, 0
	}
	skip = slices.Sorted(maps.Keys(closed))
	skip = skip[:min(len(skip), maxSkip)]
	held := 0 // records that the reading returns although no call can start for them
	for _, c := range q.calls {
		if !slices.Contains(skip, c.party) {
			held++
		}
	}
	for _, d := range q.later {
		if !slices.Contains(skip, d.party) {
			held++
		}
	}
	return skip, min(max(q.Max-running+held, minRows), maxRows)
}

func (w *Worker) countRead(q *queue) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.reads++
	return q.reads
}

// start starts the call for a record that the reading with this number returned, unless the record must wait.
func (w *Worker) start(ctx context.Context, q *queue, rec store.Record, read int, calls *sync.WaitGroup) bool {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waits := q.later[rec.Key]; q.calls[rec.Key] != nil || waits {
		return false
	}
	if q.count() >= q.Max || q.parties[rec.Party] >= q.PerParty {
		return false
	}
	last, begun := q.newest(rec.Key)
	if begun && last.ended >= read {
		return false // the record may have been read before that call stored its outcome; its end looks again
	}
	if p, known := q.pauses[rec.Key]; known && p.left(now) > stepLimit { // the clock was set forward
		q.later[rec.Key] = deferral{Later: Later{Pause: p.left(now)}, party: rec.Party, since: now}
		return false
	}
	if last.settled && last.rev == rec.Rev { // a bug, which must not become a loop
		w.log.Error("a call left its record as it was", "queue", q.NS, "key", rec.Key)
		q.later[rec.Key] = deferral{Later: Later{Pause: time.Minute}, party: rec.Party, since: now}
		last.settled = false
		q.begun[rec.Key] = last
		return false
	}
	before, c := q.passed[rec.Lane], &call{party: rec.Party}
	fresh := q.fresh[rec.Key] || !begun && before != "" && before != rec.Key
	delete(q.fresh, rec.Key)
	delete(q.passed, rec.Lane)
	q.begun[rec.Key] = beginning{rev: rec.Rev, errors: last.errors}
	q.calls[rec.Key] = c
	q.parties[rec.Party]++
	calls.Go(func() {
		later, err := q.Do(ctx, rec, fresh)
		if err != nil && !errors.Is(err, store.ErrConflict) && ctx.Err() == nil {
			w.log.Warn("due record not settled; tries again", "queue", q.NS, "key", rec.Key, "err", err)
		}
		w.end(q, rec, c, later, err)
	})
	return true
}

// end notes the outcome of a call.
func (w *Worker) end(q *queue, rec store.Record, c *call, later Later, err error) {
	w.mu.Lock()
	if q.calls[rec.Key] == c { // otherwise somebody has claimed the record meanwhile
		delete(q.calls, rec.Key)
	}
	if q.parties[rec.Party]--; q.parties[rec.Party] == 0 {
		delete(q.parties, rec.Party)
	}
	b := beginning{rev: rec.Rev, ended: q.reads}
	switch {
	case errors.Is(err, store.ErrConflict):
		later = Later{Pause: openGap / 10}
	case err != nil:
		last, _ := q.newest(rec.Key)
		later.Pause = min(time.Second<<min(last.errors, 10), maxErrPause)
		b.errors = last.errors + 1
	case slices.ContainsFunc(c.opened, func(match func(string) bool) bool { return later.Gate != "" && match(later.Gate) }):
		later = Later{Pause: openGap}
	}
	if later == (Later{}) {
		b.settled = true
		if rec.Lane != "" {
			if len(q.passed) == maxPassed { // those that are forgotten lose only their freshness
				clear(q.passed)
			}
			q.passed[rec.Lane] = rec.Key
		}
	} else {
		q.later[rec.Key] = deferral{Later: later, party: rec.Party, since: time.Now()}
	}
	q.begun[rec.Key], q.look = b, true
	w.mu.Unlock()
	w.signal()
}
