package bolt

import (
	"context"
	"errors"
	"math"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store/engine"
)

// liveCount is the number of live records in a set, after the commit with number tx. It is right at every time in [from,
// until).
type liveCount struct {
	n           int
	more        bool  // n is a lower bound, because a reading stopped there
	from, until int64 // as engine.Nanos returns them
	tx          int
}

// liveCounts caches numbers of records, so that neither a count nor the check of a store.Change.Max reads a whole list. It
// knows only what is committed.
type liveCounts struct {
	s  *Store
	mu sync.Mutex // guards the fields below

	known map[engine.RecordSet]liveCount
	tx    int // the last commit that was passed to commit
}

// maxLiveCounts bounds the number of cached counts, because each term has its own, and strangers choose terms.
const maxLiveCounts = 4096

// reset forgets all counts, because the file was opened again.
func (l *liveCounts) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known, l.tx = make(map[engine.RecordSet]liveCount), 0
}

// count returns the number of committed records in set that are live at now, but at most limit.
func (l *liveCounts) count(ctx context.Context, set engine.RecordSet, now int64, limit int) (n int, err error) {
	l.mu.Lock()
	c, ok := l.known[set]
	l.mu.Unlock()
	if ok && c.from <= now && now < c.until && (c.n >= limit || !c.more) {
		return min(c.n, limit), nil
	}
	err = l.s.view(ctx, func(tx *bbolt.Tx) error {
		c, err := countLive(tx, set, now, max(limit, 2*limit)) // more than asked, for counts after some records are gone
		if n = min(c.n, limit); err == nil {
			l.keep(set, c)
		}
		return err
	})
	return n, err
}

// keep adds a count, unless there was a commit since.
func (l *liveCounts) keep(set engine.RecordSet, c liveCount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.tx < l.tx {
		return
	}
	for other := range l.known {
		if len(l.known) < maxLiveCounts {
			break
		}
		delete(l.known, other)
	}
	l.known[set] = c
}

// commit changes the counts after the commit with number tx.
func (l *liveCounts) commit(tx int, changes countChanges) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tx = tx
	for set, list := range changes {
		c, ok := l.known[set]
		if !ok || c.tx >= tx {
			continue
		}
		for _, change := range list {
			c.include(change)
		}
		c.tx = tx
		l.known[set] = c
	}
}

// countChange adds n records that are live until expires.
type countChange struct {
	n       int
	expires int64
}

// countChanges has what the units of a transaction add to counts, or remove.
type countChanges map[engine.RecordSet][]countChange

// add adds the row of a record; n is -1 to remove it.
func (changes countChanges) add(r engine.Row, n int) {
	for set := range r.Sets() {
		changes[set] = append(changes[set], countChange{n, r.Due})
	}
}

// CountRecords implements [engine.Tx].
func (t *txn) CountRecords(set engine.RecordSet, now int64) (int, error) {
	n, err := t.counts.count(context.Background(), set, now, math.MaxInt)
	c := liveCount{n: n, from: now}
	for _, change := range t.countChanges[set] {
		c.include(change)
	}
	return c.n, err
}

// include applies a change.
func (c *liveCount) include(change countChange) {
	if change.expires > c.from {
		c.n += change.n
		c.until = min(c.until, change.expires)
	}
}

// countLive counts the records in set that are live at now, up to limit. It counts a damaged record, which may be live.
func countLive(tx *bbolt.Tx, set engine.RecordSet, now int64, limit int) (liveCount, error) {
	c := liveCount{from: now, until: engine.Never, tx: tx.ID()}
	records := bucketRecords.in(tx)
	listed, prefix := records, set.Prefix()
	if set.Term != "" {
		listed = bucketRecordTerms.in(tx)
	}
	for row, err := range listed.from(prefix, prefix) {
		if err == nil && set.Term != "" {
			row.value, err = records.get(engine.RecordKey(set.NS, string(row.key[len(prefix):])))
		}
		expires := int64(engine.Never)
		if err == nil {
			expires, err = engine.RecordExpiry(row.value)
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			return c, err
		}
		if c.include(countChange{1, expires}); c.n == limit {
			c.more = true
			break
		}
	}
	return c, nil
}
