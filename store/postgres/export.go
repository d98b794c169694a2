package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

var (
	// ErrInUse means that other processes use the tables.
	ErrInUse = errors.New("other processes use the database")
	// ErrCopying means that an import or export is running.
	ErrCopying = errors.New("the database is being copied")
)

// useLock is the class of the advisory lock of the processes that use a schema. Each process holds a shared lock, on
// its connection for notifications. An import or export holds the exclusive lock.
const useLock = 0x616d7573

// counterImport and counterFences are rows of counters. The first exists from the beginning of an import to its end.
// The second has the number that is added to the fences of leases.
var (
	counterImport = []byte("import")
	counterFences = []byte("fences")
)

// lockShared takes the lock of the processes that use the schema. If an import or export has it, the error is
// ErrCopying. If an import was interrupted, the error is engine.ErrUnfinished.
func lockShared(ctx context.Context, conn *pgx.Conn) error {
	var locked bool
	err := conn.QueryRow(ctx, "select pg_try_advisory_lock_shared($1, hashtext(current_schema()))", useLock).Scan(&locked)
	switch {
	case err != nil:
		return err
	case !locked:
		return ErrCopying
	}
	return checkImport(ctx, conn)
}

// checkImport returns engine.ErrUnfinished if an import was interrupted.
func checkImport(ctx context.Context, conn *pgx.Conn) error {
	var unfinished bool
	err := conn.QueryRow(ctx, "select exists (select from counters where key = $1)", counterImport).Scan(&unfinished)
	if err == nil && unfinished {
		err = engine.ErrUnfinished
	}
	return err
}

// openExclusive opens a connection that keeps other processes away from the tables until closeExclusive.
func openExclusive(ctx context.Context, cfg Config) (*pgx.Conn, error) {
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := lockExclusive(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// closeExclusive closes a connection of openExclusive. It unlocks first, because the server notices a closed connection
// only later, and a process that starts meanwhile would get ErrCopying.
func closeExclusive(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, "select pg_advisory_unlock_all()") // without an answer, the server unlocks when the connection ends
	_ = conn.Close(ctx)
}

const (
	// copyWait is how long lockExclusive waits for another import or export whose process may have been killed.
	copyWait = 10 * time.Second
	// endWait is how long the server may still list a process that has ended: longer than a moment if it is busy.
	endWait = 3 * time.Second
)

// lockExclusive takes the lock of the processes that use the schema, so that no other process has it. If other
// processes still use the schema after endWait, the error is ErrInUse with their names. If another import or export
// runs, the error is ErrCopying.
func lockExclusive(ctx context.Context, conn *pgx.Conn) error {
	for start := time.Now(); ; {
		var locked bool
		var schema string
		err := conn.QueryRow(ctx, "select pg_try_advisory_lock($1, hashtext(current_schema())), current_schema()", useLock).Scan(&locked, &schema)
		if err != nil || locked {
			return err
		}
		rows, err := conn.Query(ctx, instancesSQL, instanceMark(channelOf(schema)))
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		switch {
		case err != nil:
			return err
		case len(names) > 0 && time.Since(start) > endWait:
			return fmt.Errorf("%w: %s", ErrInUse, strings.Join(names, ", "))
		case time.Since(start) > copyWait:
			return ErrCopying
		}
		if !waiting.Pause(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// Export reads the whole database, passes its rows to put, and returns the last numbers that it assigned. No process may
// use the tables meanwhile, or the error is ErrInUse. If rows are damaged, the error names up to a hundred of them.
func Export(ctx context.Context, cfg Config, put func(engine.Row) error) (n engine.Numbers, err error) {
	defer func() { err = classifyOpen(err) }()
	conn, err := openExclusive(ctx, cfg)
	if err != nil {
		return n, err
	}
	defer closeExclusive(ctx, conn)
	if _, err := migrate(ctx, conn); err != nil {
		return n, err
	}
	if err := checkImport(ctx, conn); err != nil {
		return n, err
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// A first pass finds damage, so that put gets no rows of a damaged database.
		if n, err = exportRows(ctx, tx, func(engine.Row) error { return nil }); err != nil {
			return err
		}
		n, err = exportRows(ctx, tx, put)
		return err
	})
	return n, err
}

const maxFindings = 100

// exporter passes rows to put. After a damaged row, it only notes further damaged rows.
type exporter struct {
	ctx    context.Context
	tx     pgx.Tx
	put    func(engine.Row) error
	faults []error
}

// exportRows passes the rows to put, and returns the numbers from which the database continues.
func exportRows(ctx context.Context, tx pgx.Tx, put func(engine.Row) error) (n engine.Numbers, err error) {
	x := &exporter{ctx: ctx, tx: tx, put: put}
	err = errors.Join(
		x.exportTable(cards, func(r keyedRow) (engine.Row, error) {
			return engine.Row{Kind: engine.KindCard, Num: uint64(r.num), Value: r.value}, nil
		}),
		x.exportTable(changes, changeRow),
		x.exportConvs(),
		x.exportTable(replays, func(r keyedRow) (engine.Row, error) {
			return engine.Row{Kind: engine.KindReplay, Value: r.value}, nil
		}),
		x.exportTable(records, func(r keyedRow) (engine.Row, error) {
			return engine.Row{Kind: engine.KindRecord, Key: r.key, Value: r.value}, nil
		}))
	if err = errors.Join(err, errors.Join(x.faults...)); err != nil {
		return n, err
	}
	return x.readNumbers()
}

// keyedRow is a row with its key.
type keyedRow struct {
	key []byte
	row
}

// order is the column by which an export reads the rows of a table.
var order = map[*table]string{cards: "num", changes: "num", replays: "key", records: "key"}

func (x *exporter) exportTable(tb *table, convert func(keyedRow) (engine.Row, error)) error {
	return x.query("select key, num, due, value from "+tb.name+" order by "+order[tb], nil, func(r keyedRow) error {
		out, err := convert(r)
		if err != nil {
			return x.noteDamage(err)
		}
		return x.exportRow(out)
	})
}

func (x *exporter) query(sql string, args []any, fn func(keyedRow) error) error {
	rows, err := x.tx.Query(x.ctx, sql, args...)
	if err != nil {
		return err
	}
	var r keyedRow
	_, err = pgx.ForEachRow(rows, []any{&r.key, &r.num, &r.due, &r.value}, func() error { return fn(r) })
	return err
}

// exportRow passes on a row, or notes that it is damaged.
func (x *exporter) exportRow(r engine.Row) error {
	if _, _, err := r.Decode(); err != nil {
		return x.noteDamage(err)
	}
	if len(x.faults) > 0 {
		return nil // only name further damaged rows
	}
	return x.put(r)
}

// noteDamage notes the error of a damaged row, and returns nil so that the export finds further damage.
func (x *exporter) noteDamage(err error) error {
	if len(x.faults) < maxFindings {
		x.faults = append(x.faults, err)
	}
	return nil
}

// changeRow converts a line of the feed of card changes. It leaves out what only indexes in memory need.
func changeRow(r keyedRow) (engine.Row, error) {
	line, err := decodeLine(r.key, r.value)
	change := store.CardChange{Change: uint64(r.num), ID: string(r.key), Gone: line.Gone, Withdrawn: line.Withdrawn, At: line.At}
	value := engine.EncodeChange(engine.ChangeRow{CardChange: change, Seq: line.Seq})
	return engine.Row{Kind: engine.KindChange, Num: uint64(r.num), Due: r.due, Value: value}, err
}

// exportPage is the number of conversations that exportConvs reads into memory at a time.
const exportPage = 500

// exportConvs exports the conversations page by page, in the order of their numbers. The entries of all conversations of a
// page come before these conversations.
func (x *exporter) exportConvs() error {
	for after := int64(-1); ; {
		var page []keyedRow
		if err := x.query("select key, num, due, value from convs where num > $1 order by num limit $2", []any{after, exportPage}, func(r keyedRow) error {
			page = append(page, r)
			return nil
		}); err != nil || len(page) == 0 {
			return err
		}
		first, last := engine.EntryKey(uint64(after+1), 0), engine.EntryKey(uint64(page[len(page)-1].num+1), 0)
		if err := x.query("select key, num, due, value from entries where key >= $1 and key < $2 order by key", []any{first, last}, func(r keyedRow) error {
			seq, n, ok := splitEntryKey(r.key)
			if !ok {
				return x.noteDamage(fmt.Errorf("%w: the message key %x is malformed", store.ErrDamaged, r.key))
			}
			return x.exportRow(engine.Row{Kind: engine.KindEntry, Num: seq, N: n, Value: r.value})
		}); err != nil {
			return err
		}
		for _, r := range page {
			if err := x.exportRow(engine.Row{Kind: engine.KindConv, Num: uint64(r.num), Value: r.value}); err != nil {
				return err
			}
		}
		after = page[len(page)-1].num
	}
}

// readNumbers returns the numbers from which the database continues. A conversation has its first revision as its number,
// and fences are revisions plus the number in counterFences.
func (x *exporter) readNumbers() (n engine.Numbers, err error) {
	var rev, card, change, fences int64
	err = x.tx.QueryRow(x.ctx, `select last_value, (select num from counters where key = $1), (select num from counters where key = $2),
		coalesce((select num from counters where key = $3), 0) from revisions`, counterCards, counterChanges, counterFences).Scan(&rev, &card, &change, &fences)
	return engine.Numbers{Rev: uint64(rev), Conv: uint64(rev), Card: uint64(card), Change: uint64(change), Fence: uint64(rev + fences)}, err
}

// Import fills the tables of an empty database with the rows that fill passes to it, in one transaction, and makes the
// tables if necessary. It reads the tables back and compares them with these rows before it commits. Until then, Open
// returns ErrCopying. If Import was interrupted, Open returns engine.ErrUnfinished, and the next Import begins again.
// If the tables have data already, the error is engine.ErrNotEmpty; if processes use the tables, ErrInUse.
func Import(ctx context.Context, cfg Config, fill engine.Fill) (tally engine.Tally, err error) {
	defer func() { err = classifyOpen(err) }()
	conn, err := openExclusive(ctx, cfg)
	if err != nil {
		return tally, err
	}
	defer closeExclusive(ctx, conn)
	if _, err := migrate(ctx, conn); err != nil {
		return tally, err
	}
	if err := checkEmpty(ctx, conn); err != nil {
		return tally, err
	}
	marked, err := conn.Exec(ctx, "insert into counters (key, num, due, value) values ($1, 0, 0, '') on conflict do nothing", counterImport)
	if err != nil {
		return tally, err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := load(ctx, tx, &tally, fill); err != nil {
			return err
		}
		takeWarning(conn) // forget earlier warnings
		return nil
	})
	if err == nil {
		if text := takeWarning(conn); text != "" { // the wait for the standby was canceled
			err = fmt.Errorf("%w: commit: %s", errUnknown, text)
		}
		return tally, err
	}
	if tally == (engine.Tally{}) && marked.RowsAffected() == 1 { // no earlier import was interrupted, and fill passed no row
		_, deleteErr := conn.Exec(context.WithoutCancel(ctx), "delete from counters where key = $1", counterImport)
		err = errors.Join(err, deleteErr)
	}
	return tally, err
}

// load fills the tables and compares them with the rows that fill passed.
func load(ctx context.Context, tx pgx.Tx, tally *engine.Tally, fill engine.Fill) error {
	l := &loader{ctx: ctx, tx: tx, buffers: make(map[*table][][]any), heads: make(engine.LaneHeads)}
	n, err := fill(func(r engine.Row) error {
		tally.Add(r)
		return l.add(r)
	})
	if err != nil {
		return err
	}
	if err := errors.Join(l.flush(), l.finish(n)); err != nil {
		return err
	}
	var copied engine.Tally
	if _, err := exportRows(ctx, tx, func(r engine.Row) error { copied.Add(r); return nil }); err != nil {
		return err
	}
	return tally.Compare(copied)
}

// checkEmpty returns engine.ErrNotEmpty if a table other than counters has rows.
func checkEmpty(ctx context.Context, conn *pgx.Conn) error {
	var queries []string
	for _, tb := range tables {
		if tb != counters {
			queries = append(queries, "exists (select from "+tb.name+")")
		}
	}
	var hasRows bool
	err := conn.QueryRow(ctx, "select "+strings.Join(queries, " or ")).Scan(&hasRows)
	if err == nil && hasRows {
		err = engine.ErrNotEmpty
	}
	return err
}

// loader writes the rows of an import, one batch after the other.
type loader struct {
	ctx     context.Context
	tx      pgx.Tx
	buffers map[*table][][]any
	size    int
	heads   engine.LaneHeads
}

// loadBatch is the number of bytes that are in memory at a time.
const loadBatch = 4 << 20

func (l *loader) put(tb *table, key []byte, r row) {
	// The copy of value is never nil, because the column must not be null.
	l.buffers[tb] = append(l.buffers[tb], []any{append([]byte(nil), key...), r.num, r.due, append([]byte{}, r.value...)})
	l.size += len(key) + len(r.value) + 16 // num and due
}

func (l *loader) flush() error {
	for _, tb := range tables {
		if len(l.buffers[tb]) == 0 {
			continue
		}
		if _, err := l.tx.CopyFrom(l.ctx, pgx.Identifier{tb.name}, []string{"key", "num", "due", "value"}, pgx.CopyFromRows(l.buffers[tb])); err != nil {
			return fmt.Errorf("write %s: %w", tb.name, err)
		}
		l.buffers[tb] = l.buffers[tb][:0]
	}
	l.size = 0
	return nil
}

// add stores a row with the rows that are derived from it.
func (l *loader) add(r engine.Row) error {
	r, decoded, err := r.Decode()
	if err != nil {
		return err
	}
	switch v := decoded.(type) {
	case engine.ChangeRow:
		line := feedLine{At: v.At, Gone: v.Gone, Withdrawn: v.Withdrawn, Seq: v.Seq}
		r.Value = wire.MustMarshal(line)
	case store.Record:
		if engine.InLane(v) {
			l.put(recordLanes, engine.LaneKey(v), row{value: laneValue(v)})
		}
		if l.heads.Is(v) {
			l.put(heads, engine.HeadKey(v), row{due: r.Due, value: []byte(v.Party)})
		}
	}
	for _, term := range r.Terms {
		l.put(listing(r, term))
	}
	l.put(ownRow(r))
	if l.size >= loadBatch {
		return l.flush()
	}
	return nil
}

// finish stores the numbers from which the database continues, and ends the import.
func (l *loader) finish(n engine.Numbers) error {
	rev := max(n.Rev, n.Conv, 1) // new conversations get revisions as numbers
	var batch pgx.Batch
	batch.Queue("select setval('revisions', $1)", int64(rev))
	batch.Queue("update counters set num = $2 where key = $1", counterCards, int64(n.Card))
	batch.Queue("update counters set num = $2 where key = $1", counterChanges, int64(n.Change))
	batch.Queue(`insert into counters (key, num, due, value) values ($1, $2, 0, '') on conflict (key) do update set num = excluded.num`, counterFences, int64(n.FenceOffset(rev)))
	batch.Queue("delete from counters where key = $1", counterImport)
	for _, tb := range tables {
		batch.Queue("analyze " + tb.name)
	}
	return l.tx.SendBatch(l.ctx, &batch).Close()
}
