package bolt

import (
	"errors"
	"math"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// liveCount is the number of live records in a set. It is right at every time in [from, until).
type liveCount struct {
	n           int
	from, until int64 // as engine.Nanos returns them
}

// liveCounts caches the counts that store.Change.Max needs, so that adding a record does not count a whole list. The
// writer calls add and remove for every row that it writes or deletes, and reset after a failed transaction.
type liveCounts struct {
	known map[engine.RecordSet]liveCount
}

// maxLiveCounts bounds the number of cached counts, because each term has its own, and strangers choose terms.
const maxLiveCounts = 4096

func newLiveCounts() *liveCounts { return &liveCounts{known: make(map[engine.RecordSet]liveCount)} }

func (l *liveCounts) reset() { clear(l.known) }

// count returns the number of records in set that are live at now.
func (l *liveCounts) count(tx *bbolt.Tx, set engine.RecordSet, now int64) (int, error) {
	if c, ok := l.known[set]; ok && c.from <= now && now < c.until {
		return c.n, nil
	}
	c, err := countLive(tx, set, now, math.MaxInt)
	if err != nil {
		return 0, err
	}
	for other := range l.known {
		if len(l.known) < maxLiveCounts {
			break
		}
		delete(l.known, other)
	}
	l.known[set] = c
	return c.n, nil
}

// countLive counts the records in set that are live at now, up to limit. It counts a damaged record, which may be live.
func countLive(tx *bbolt.Tx, set engine.RecordSet, now int64, limit int) (liveCount, error) {
	c := liveCount{from: now, until: engine.Never}
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
		if c.include(expires); c.n == limit {
			break
		}
	}
	return c, nil
}

// include counts a record that is live until expires.
func (c *liveCount) include(expires int64) {
	if expires > c.from {
		c.n++
		c.until = min(c.until, expires)
	}
}

func (l *liveCounts) add(rec store.Record) {
	for set := range engine.SetsOf(rec) {
		if c, ok := l.known[set]; ok {
			c.include(engine.Deadline(rec.Expires))
			l.known[set] = c
		}
	}
}

func (l *liveCounts) remove(rec store.Record) {
	for set := range engine.SetsOf(rec) {
		if c, ok := l.known[set]; ok && engine.Deadline(rec.Expires) > c.from {
			c.n--
			l.known[set] = c
		}
	}
}
