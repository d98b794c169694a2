package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// cell has a row as it was before the transaction, and as the transaction has left it so far; nil if it does not exist.
type cell struct{ before, after *row }

// txn is the transaction of one group of units, each with the changes of one caller. Rows that a unit writes are in
// memory until flush. txn implements [engine.Tx].
type txn struct {
	reads  // reads and locks
	ctx    context.Context
	conn   *pgx.Conn
	cells  map[*table]map[string]*cell
	cut    [][]byte          // prefixes of the entries that are removed before others are written
	lanes  map[string]*lane  // by the prefix of their keys
	leases map[string]uint64 // the fences of the leases that have not ended, by name
	revs   []uint64          // revisions that are not used yet
	hints  []store.Hint      // notices for other processes about the written entries
}

// dbError is an error of the database, and not a refusal of a unit. It ends the transaction.
type dbError struct{ error }

func (e dbError) Unwrap() error { return e.error }

// countLocks bounds the advisory locks that a group takes for the key prefixes under which its units count rows. Several
// prefixes share a lock.
const countLocks = 1024

// countLock returns the number of the lock of a prefix.
func countLock(prefix []byte) int32 { return int32(crc32.ChecksumIEEE(prefix) % countLocks) }

// lockPrefixes takes the locks with the numbers $2.
const lockPrefixes = "select pg_advisory_xact_lock($1, n) from unnest($2::int[]) n"

// lockClass is the class of these advisory locks.
const lockClass = 0x616d6571

// begin begins the transaction of group number n of a process; lane is the id of the process. In one round trip, it
// locks and reads what the units need.
func (t *txn) begin(lane string, n int64, group []*unit) error {
	keys, locks, leases := make(map[*table]map[string]bool), make(map[int32]bool), make(map[string]bool)
	lanes := make(map[string]bool)
	lock := func(tb *table, key []byte) {
		if keys[tb] == nil {
			keys[tb] = make(map[string]bool)
		}
		keys[tb][string(key)] = true
	}
	for _, u := range group {
		needs := u.Work.Touches()
		for _, r := range needs.Rows {
			lock(tableOf[r.Kind], r.Key)
			if r.Kind == engine.KindCard {
				lock(changes, r.Key)
				lock(counters, counterCards)
				lock(counters, counterChanges)
			}
		}
		for _, prefix := range needs.Counts {
			locks[countLock(prefix)] = true
		}
		for _, prefix := range needs.Lanes {
			locks[countLock(prefix)], lanes[string(prefix)] = true, true
		}
		for _, name := range needs.Leases {
			leases[name] = true
		}
	}
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue("update lanes set n = $2, seen = now() where id = $1 returning n", lane, n).QueryRow(func(r pgx.Row) error { return r.Scan(&n) })
	if len(leases) > 0 {
		// The lock keeps another process from taking the lease before the commit. It lets this process renew the lease.
		batch.Queue("select name, fence from leases where name = any($1) and until > clock_timestamp() order by name for key share", slices.Sorted(maps.Keys(leases))).
			Query(func(rows pgx.Rows) error {
				var name string
				var fence int64
				_, err := pgx.ForEachRow(rows, []any{&name, &fence}, func() error { t.leases[name] = uint64(fence); return nil })
				return err
			})
	}
	if len(locks) > 0 {
		batch.Queue(lockPrefixes, lockClass, slices.Sorted(maps.Keys(locks)))
	}
	if len(lanes) > 0 {
		t.queueLanes(&batch, slices.Sorted(maps.Keys(lanes))...)
	}
	for _, tb := range tables {
		if len(keys[tb]) == 0 {
			continue
		}
		t.cells[tb] = make(map[string]*cell, len(keys[tb]))
		sorted := make([][]byte, 0, len(keys[tb]))
		for _, key := range slices.Sorted(maps.Keys(keys[tb])) {
			t.cells[tb][key] = &cell{}
			sorted = append(sorted, []byte(key))
		}
		batch.Queue(tb.lock, sorted).Query(t.cellAdder(tb))
	}
	batch.Queue("select nextval('revisions') from generate_series(1, $1)", len(group)).Query(func(rows pgx.Rows) error {
		revs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		for _, rev := range revs {
			t.revs = append(t.revs, uint64(rev))
		}
		return err
	})
	err := t.conn.SendBatch(t.ctx, &batch).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return errNoLane
	}
	return err
}

// errNoLane means that the table lanes has no row of this process.
var errNoLane = errors.New("the lane of this process is gone")

// cellAdder returns a function that adds rows to the cells of a table, unless the transaction knows them already.
func (t *txn) cellAdder(tb *table) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var key []byte
		var r row
		_, err := pgx.ForEachRow(rows, []any{&key, &r.num, &r.due, &r.value}, func() error {
			if c := t.cells[tb][string(key)]; c != nil && (c.before != nil || c.after != nil) {
				return nil
			}
			found := r
			if t.cells[tb] == nil {
				t.cells[tb] = make(map[string]*cell)
			}
			t.cells[tb][string(key)] = &cell{before: &found, after: &found}
			return nil
		})
		return err
	}
}

// lockRows locks and reads the rows that a statement selects.
func (t *txn) lockRows(tb *table, sql string, args ...any) error {
	rows, err := t.conn.Query(t.ctx, sql, args...)
	if err == nil {
		err = t.cellAdder(tb)(rows)
	}
	if err != nil {
		return dbError{err}
	}
	return nil
}

// get returns a row as the earlier units of the group left it, or nil. It locks a row that is not in memory yet.
func (t *txn) get(tb *table, key []byte) (*row, error) {
	if c := t.cells[tb][string(key)]; c != nil {
		return c.after, nil
	}
	if err := t.lockRows(tb, tb.lock, [][]byte{key}); err != nil {
		return nil, err
	}
	return t.cell(tb, key).after, nil
}

// cell returns the cell of a row. It makes an empty cell if the transaction does not know the row.
func (t *txn) cell(tb *table, key []byte) *cell {
	if t.cells[tb] == nil {
		t.cells[tb] = make(map[string]*cell)
	}
	c := t.cells[tb][string(key)]
	if c == nil {
		c = &cell{}
		t.cells[tb][string(key)] = c
	}
	return c
}

// put writes a row. If the table is not dependent, the row must have been read before.
func (t *txn) put(tb *table, key []byte, r row) {
	if r.value == nil {
		r.value = []byte{} // the column is never null
	}
	t.cell(tb, key).after = &r
}

func (t *txn) drop(tb *table, key []byte) { t.cell(tb, key).after = nil }

// Put implements [engine.Tx].
func (t *txn) Put(r, old engine.Row) {
	for _, term := range old.Terms {
		if !slices.Contains(r.Terms, term) {
			tb, key, _ := listing(r, term)
			t.drop(tb, key)
		}
	}
	for _, term := range r.Terms {
		if r.Kind != engine.KindConv || !slices.Contains(old.Terms, term) { // the row of a conversation's term never changes
			t.put(listing(r, term))
		}
	}
	t.put(ownRow(r))
}

// Drop implements [engine.Tx].
func (t *txn) Drop(r engine.Row) {
	for _, term := range r.Terms {
		tb, key, _ := listing(r, term)
		t.drop(tb, key)
	}
	t.drop(tableOf[r.Kind], r.Key)
}

// ownRow returns where a row of the engine is stored.
func ownRow(r engine.Row) (*table, []byte, row) {
	return tableOf[r.Kind], r.Key, row{num: int64(r.Num), due: r.Due, value: r.Value}
}

// listing returns the row that lists a row of the engine under a term.
func listing(r engine.Row, term string) (*table, []byte, row) {
	switch r.Kind {
	case engine.KindCard:
		return cardCounts, append(engine.HashKey(term), r.Key...), row{due: r.Due}
	case engine.KindConv:
		return convTerms, convTermKey(term, r.Num), row{num: int64(r.Num)}
	}
	return recordTerms, engine.ListKey(r.Key, term), row{due: r.Due}
}

// count returns the number of rows whose keys have a prefix and whose due is later than at.
func (t *txn) count(tb *table, prefix []byte, at int64) (n int, err error) {
	known := [][]byte{}
	inMemory := 0
	for key, c := range t.cells[tb] {
		if strings.HasPrefix(key, string(prefix)) {
			known = append(known, []byte(key))
			if c.after != nil && c.after.due > at {
				inMemory++
			}
		}
	}
	err = t.conn.QueryRow(t.ctx, "select count(*) from "+tb.name+" where key >= $1 and key < $2 and due > $3 and key <> all($4)", prefix, prefixEnd(prefix), at, known).Scan(&n)
	if err != nil {
		return 0, dbError{err}
	}
	return n + inMemory, nil
}

// NextRev implements [engine.Tx].
func (t *txn) NextRev() store.Rev {
	rev := t.revs[0]
	t.revs = t.revs[1:]
	return store.Rev(rev)
}

// next increments a counter and returns its new value.
func (t *txn) next(counter []byte) (uint64, error) {
	r, err := t.get(counters, counter)
	if err != nil {
		return 0, err
	}
	if r == nil {
		return 0, fmt.Errorf("%w: no counter %s", store.ErrDamaged, counter)
	}
	n := r.num + 1
	t.put(counters, counter, row{num: n})
	return uint64(n), nil
}

func (t *txn) CheckLease(held *store.Lease) error {
	if held == nil || t.leases[held.Name] == held.Fence {
		return nil
	}
	return fmt.Errorf("%w: %s", store.ErrLeaseLost, held.Name)
}

// Note implements [engine.Tx].
func (t *txn) Note(ns, key string) { t.hints = append(t.hints, store.Hint{NS: ns, Key: key}) }

// flush adds to batch the statements that write the changed rows.
func (t *txn) flush(batch *pgx.Batch) {
	for _, prefix := range t.cut {
		batch.Queue("delete from entries where key >= $1 and key < $2", prefix, prefixEnd(prefix))
	}
	for _, tb := range tables {
		var inserted, updated columns
		var removed [][]byte
		for _, key := range slices.Sorted(maps.Keys(t.cells[tb])) {
			switch c := t.cells[tb][key]; {
			case c.before == c.after && (c.after != nil || !tb.dependent): // unchanged
			case c.after == nil: // a dependent row may exist although before is nil, because drop does not read it
				removed = append(removed, []byte(key))
			case c.before == nil:
				inserted.add(key, c.after)
			default:
				updated.add(key, c.after)
			}
		}
		if len(removed) > 0 {
			batch.Queue(tb.remove, removed)
		}
		if len(updated.keys) > 0 {
			batch.Queue(tb.update, updated.keys, updated.nums, updated.dues, updated.values)
		}
		if len(inserted.keys) > 0 {
			batch.Queue(tb.insert, inserted.keys, inserted.nums, inserted.dues, inserted.values)
		}
	}
}

// columns are the columns of rows to write.
type columns struct {
	keys, values [][]byte
	nums, dues   []int64
}

func (c *columns) add(key string, r *row) {
	c.keys, c.values = append(c.keys, []byte(key)), append(c.values, r.value)
	c.nums, c.dues = append(c.nums, r.num), append(c.dues, r.due)
}
