package postgres

import (
	"bytes"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// lane is what a transaction knows of a lane (see [store.Record]), as its units have left the lane so far.
type lane struct {
	first []store.Record // the records with the smallest keys, in order, without bodies and terms
	read  []byte         // the largest key of a row that was read for first
	all   bool           // first has every record
	last  string         // the largest key of a record, or ""
	ended bool           // the record with the key last has left the lane
}

// lanesSQL reads, of each lane that has the prefix $1 and ends before $2, the first two rows and the last one.
const lanesSQL = `select p.prefix, l.key, l.value from unnest($1::bytea[], $2::bytea[]) p (prefix, stop), lateral (
	(select key, value from record_lanes where key >= p.prefix and key < p.stop order by key limit 2) union
	(select key, value from record_lanes where key >= p.prefix and key < p.stop order by key desc limit 1)) l order by l.key`

// queueLanes adds to batch the query that reads lanes, which the transaction has locked.
func (t *txn) queueLanes(batch *pgx.Batch, prefixes ...string) {
	var from, stop [][]byte
	for _, prefix := range prefixes {
		t.lanes[prefix] = &lane{all: true}
		from, stop = append(from, []byte(prefix)), append(stop, prefixEnd([]byte(prefix)))
	}
	batch.Queue(lanesSQL, from, stop).Query(func(rows pgx.Rows) error {
		var prefix, key, value []byte
		_, err := pgx.ForEachRow(rows, []any{&prefix, &key, &value}, func() error {
			l := t.lanes[string(prefix)]
			l.last = string(key[len(prefix):])
			if l.all = len(l.first) < 2; !l.all {
				return nil
			}
			l.read = bytes.Clone(key)
			return l.add(prefix, key, value)
		})
		return err
	})
}

// add adds a row to the first ones.
func (l *lane) add(prefix, key, value []byte) error {
	ns, _, _ := engine.SplitRecordKey(prefix)
	rec, err := engine.DecodeRecord(ns, string(key[len(prefix):]), value)
	l.first = append(l.first, rec)
	return err
}

// lane returns a lane. If no unit of the group named it, lane locks and reads it.
func (t *txn) lane(prefix []byte) (*lane, error) {
	if l := t.lanes[string(prefix)]; l != nil {
		return l, nil
	}
	var batch pgx.Batch
	batch.Queue(lockPrefixes, lockClass, []int32{countLock(prefix)})
	t.queueLanes(&batch, string(prefix))
	if err := t.conn.SendBatch(t.ctx, &batch).Close(); err != nil {
		return nil, dbError{err}
	}
	return t.lanes[string(prefix)], nil
}

// lanePage is the number of further rows of a lane that are read at a time.
const lanePage = 100

// more reads further rows of a lane.
func (t *txn) more(prefix []byte, l *lane) error {
	from, rows := l.read, make(map[string][]byte)
	n := 0
	found, err := t.conn.Query(t.ctx, "select key, value from record_lanes where key > $1 and key < $2 order by key limit $3", from, prefixEnd(prefix), lanePage)
	if err == nil {
		var key, value []byte
		_, err = pgx.ForEachRow(found, []any{&key, &value}, func() error {
			n++
			l.read, rows[string(key)] = bytes.Clone(key), bytes.Clone(value)
			return nil
		})
	}
	if err != nil {
		return dbError{err}
	}
	l.all = n < lanePage
	for key, c := range t.cells[recordLanes] { // what the units changed
		switch {
		case key <= string(from) || !strings.HasPrefix(key, string(prefix)) || !l.all && key > string(l.read):
		case c.after == nil:
			delete(rows, key)
		default:
			rows[key] = c.after.value
		}
	}
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		if err := l.add(prefix, []byte(key), rows[key]); err != nil {
			return err
		}
	}
	return nil
}

// FirstInLane implements [engine.Tx].
func (t *txn) FirstInLane(ns, name string) (string, error) {
	prefix := engine.TermKey(ns, name, "")
	l, err := t.lane(prefix)
	for err == nil && len(l.first) == 0 && !l.all {
		err = t.more(prefix, l)
	}
	if err != nil || len(l.first) == 0 {
		return "", err
	}
	return l.first[0].Key, nil
}

// LaneRecord implements [engine.Tx].
func (t *txn) LaneRecord(ns, name, _ string) (store.Record, error) {
	return t.lanes[string(engine.TermKey(ns, name, ""))].first[0], nil
}

// LastInLane implements [engine.Tx].
func (t *txn) LastInLane(ns, name string) (string, error) {
	prefix := engine.TermKey(ns, name, "")
	l, err := t.lane(prefix)
	if err != nil || !l.ended {
		return l.last, err
	}
	for !l.all {
		if err := t.more(prefix, l); err != nil {
			return "", err
		}
	}
	l.last, l.ended = "", false
	if n := len(l.first); n > 0 {
		l.last = l.first[n-1].Key
	}
	return l.last, nil
}

// index returns the index among the first records of the one with this key, or where it would be.
func (l *lane) index(key string) (int, bool) {
	return slices.BinarySearchFunc(l.first, key, func(rec store.Record, key string) int { return strings.Compare(rec.Key, key) })
}

// PutInLane implements [engine.Tx].
func (t *txn) PutInLane(rec store.Record) {
	t.put(recordLanes, engine.LaneKey(rec), row{value: laneValue(rec)})
	l := t.lanes[string(engine.LanePrefix(rec))]
	if i, found := l.index(rec.Key); found {
		l.first[i] = rec
	} else if l.all {
		l.first = append(l.first, rec)
	}
	if rec.Key >= l.last {
		l.last, l.ended = rec.Key, false
	}
}

// DropFromLane implements [engine.Tx].
func (t *txn) DropFromLane(rec store.Record) {
	t.drop(recordLanes, engine.LaneKey(rec))
	l := t.lanes[string(engine.LanePrefix(rec))]
	if i, found := l.index(rec.Key); found {
		l.first = slices.Delete(l.first, i, i+1)
	}
	l.ended = l.ended || rec.Key == l.last
}

func laneValue(rec store.Record) []byte {
	rec.Body, rec.Terms = nil, nil
	return engine.EncodeRecord(rec)
}

// PutHead implements [engine.Tx].
func (t *txn) PutHead(rec store.Record) {
	t.put(heads, engine.HeadKey(rec), row{due: engine.Deadline(rec.Expires), value: []byte(rec.Party)})
}

// DropHead implements [engine.Tx].
func (t *txn) DropHead(rec store.Record) { t.drop(heads, engine.HeadKey(rec)) }

// dueSQL selects the heads of a namespace, whose keys are from $1 to $4: first where they begin, with the oldest
// transaction that has not ended, then at most $7 + 1 of those that are due, which have keys before $3, and then the first
// that is not due. No head before $8 was added by a transaction before $9.
const dueSQL = `with added as materialized (select key, due, value from heads where xact >= $9)
	select coalesce((select key from added where key >= $1 and key < $8 order by key limit 1), (select key from heads where key >= $8 and key < $4 order by key limit 1), $4),
		null, pg_snapshot_xmin(pg_current_snapshot())::text::bigint union all
	(select h.key, r.value, 0 from added h left join records r on r.key = $1::bytea || substr(h.key, $2)
		where h.key >= $1 and h.key < $8 and h.due > $5 and h.value <> all($6) order by h.key limit $7 + 1) union all
	(select h.key, r.value, 0 from heads h left join records r on r.key = $1::bytea || substr(h.key, $2)
		where h.key >= $8 and h.key < $3 and h.due > $5 and h.value <> all($6) order by h.key limit $7 + 1) union all
	(select key, null, 0 from heads where key >= greatest($3, $8) and key < $4 and due > $5 and value <> all($6) order by key limit 1)`

// begun is where the heads of a namespace begin: no head before key was added by a transaction before xact.
type begun struct {
	key  []byte
	xact int64
	at   time.Time // when all heads were read
}

// readAgain is the time after which all heads are read again, because a server that lost the numbers of aborted
// transactions in a crash assigns them again.
const readAgain = time.Minute

func (r recordStore) Due(ctx context.Context, ns string, until time.Time, skip []string, limit int) (due []store.Record, next time.Time, err error) {
	if err := engine.CheckDue(ns, skip, limit); err != nil {
		return nil, next, err
	}
	parties := make([][]byte, 0, len(skip)) // not nil, which would be null
	for _, party := range skip {
		parties = append(parties, []byte(party))
	}
	prefix, end := engine.RecordKey(ns, ""), engine.HeadsEnd(ns, until)
	from := begun{prefix, math.MaxInt64, time.Now()}
	if known, ok := r.s.begun.Load(ns); ok && time.Since(known.(begun).at) < readAgain {
		from = known.(begun)
	}
	args := []any{prefix, len(prefix) + 17, end, prefixEnd(prefix), min(engine.Nanos(until), engine.Never-1), parties, limit, from.key, from.xact}
	var key, value []byte
	var xact int64
	n := 0
	err = r.s.query(ctx, dueSQL, args, []any{&key, &value, &xact}, func() error {
		if xact != 0 {
			from.key, from.xact = bytes.Clone(key), xact
			return nil
		}
		head, err := engine.ReadHeadKey(key)
		if err == nil && (n == limit || bytes.Compare(key, end) >= 0) {
			if next.IsZero() {
				next = head.Due
			}
			return nil
		}
		n++
		var rec store.Record
		if err == nil {
			rec, err = engine.DecodeHead(head, value)
		}
		if err != nil {
			r.s.damage.Note("left out of what is due", err)
			return nil
		}
		due = append(due, rec)
		return nil
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	r.s.begun.Store(ns, from)
	return due, next, nil
}

func (r recordStore) Count(ctx context.Context, ns, term string, limit int, now time.Time) (n int, err error) {
	if err := engine.CheckList(ns, limit); err != nil {
		return 0, err
	}
	set := engine.RecordSet{NS: ns, Term: term}
	sql := "select count(*) from (select from " + countedIn(set).name + " where key >= $1 and key < $2 and due > $3 limit $4) counted"
	err = r.s.query(ctx, sql, []any{set.Prefix(), prefixEnd(set.Prefix()), engine.Nanos(now), limit}, []any{&n}, func() error { return nil })
	return n, err
}

// countedIn returns the table of the rows that count as a set.
func countedIn(set engine.RecordSet) *table {
	if set.Term != "" {
		return recordTerms
	}
	return records
}
