package bolt

import (
	"errors"
	"fmt"
	"iter"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
)

// countOf is the key of a count: the records of a namespace that carry a term, or all its records if term is empty.
type countOf struct{ ns, term string }

// countsOf yields the keys of the counts that include a record.
func countsOf(rec store.Record) iter.Seq[countOf] {
	return func(yield func(countOf) bool) {
		if !yield(countOf{ns: rec.NS}) {
			return
		}
		for i, term := range rec.Terms {
			repeated := false
			for _, before := range rec.Terms[:i] {
				repeated = repeated || before == term
			}
			if !repeated && !yield(countOf{rec.NS, term}) {
				return
			}
		}
	}
}

// liveCount is the number of live records at every time in [from, until).
type liveCount struct {
	n           int
	from, until int64
}

// liveCounts caches the counts that store.Change.Max needs, so that adding a record to a long list does not require
// counting the whole list. The writer owns it, and calls add and remove for every row that it writes or deletes. After
// a failed transaction, the writer resets it.
type liveCounts struct {
	known map[countOf]liveCount
}

// maxLiveCounts bounds the number of cached counts, because strangers choose terms.
const maxLiveCounts = 4096

func newLiveCounts() *liveCounts { return &liveCounts{known: make(map[countOf]liveCount)} }

func (l *liveCounts) reset() { clear(l.known) }

// count returns the number of records under key that are live at now.
func (l *liveCounts) count(tx *bbolt.Tx, key countOf, now int64) (int, error) {
	if c, ok := l.known[key]; ok && c.from <= now && now < c.until {
		return c.n, nil
	}
	c := liveCount{from: now, until: never}
	records := bucketRecords.in(tx)
	listed, prefix := records, recordKey(key.ns, "")
	if key.term != "" {
		listed, prefix = bucketRecordTerms.in(tx), termKey(key.ns, key.term, "")
	}
	for row, err := range listed.from(prefix, prefix) {
		if err == nil && key.term != "" {
			row.value, err = records.get(recordKey(key.ns, string(row.key[len(prefix):])))
		}
		expires := int64(never) // a damaged record may be live, so it counts
		if err == nil {
			expires, err = recordExpiry(row.value)
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			return 0, err
		}
		c.include(expires)
	}
	for other := range l.known {
		if len(l.known) < maxLiveCounts {
			break
		}
		delete(l.known, other)
	}
	l.known[key] = c
	return c.n, nil
}

// include counts a record that is live until expires.
func (c *liveCount) include(expires int64) {
	if expires > c.from {
		c.n++
		c.until = min(c.until, expires)
	}
}

func (l *liveCounts) add(rec store.Record) {
	for key := range countsOf(rec) {
		if c, ok := l.known[key]; ok {
			c.include(deadline(rec.Expires))
			l.known[key] = c
		}
	}
}

func (l *liveCounts) remove(rec store.Record) {
	for key := range countsOf(rec) {
		if c, ok := l.known[key]; ok && deadline(rec.Expires) > c.from {
			c.n--
			l.known[key] = c
		}
	}
}

// recordExpiry reads the expiry of a record from the beginning of its row.
func recordExpiry(row []byte) (int64, error) {
	if len(row) < 17 || row[0] != rowVersion {
		return never, fmt.Errorf("%w: record row is cut short", ErrDamaged)
	}
	at := int64(number(row[9:17]))
	if at == noTime {
		return never, nil
	}
	return at, nil
}
