package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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

// copyWait is how long lockExclusive waits for another import or export whose process may have been killed.
const copyWait = 10 * time.Second

// lockExclusive takes the lock of the processes that use the schema, so that no other process has it. If other
// processes still use the schema after a second, the error is ErrInUse with their names. If another import or export
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
		case len(names) > 0 && time.Since(start) > time.Second: // for a moment, the server still lists an ended process
			return fmt.Errorf("%w: %s", ErrInUse, strings.Join(names, ", "))
		case time.Since(start) > copyWait:
			return ErrCopying
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
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
	l := &loader{ctx: ctx, tx: tx, buffers: make(map[*table][][]any)}
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
	if err := readRows(ctx, tx, copied.Add); err != nil {
		return err
	}
	return tally.Compare(copied)
}

// readRows passes the rows of all tables to add, in any order.
func readRows(ctx context.Context, tx pgx.Tx, add func(engine.Row)) error {
	for _, t := range []struct {
		table *table
		row   func(key []byte, r row) (engine.Row, error)
	}{
		{cards, func(_ []byte, r row) (engine.Row, error) {
			return engine.Row{Kind: engine.KindCard, Num: uint64(r.num), Value: r.value}, nil
		}},
		{changes, readChange},
		{entries, func(key []byte, r row) (engine.Row, error) {
			seq, n, ok := splitEntryKey(key)
			if !ok {
				return engine.Row{}, fmt.Errorf("%w: the message key %x is malformed", store.ErrDamaged, key)
			}
			return engine.Row{Kind: engine.KindEntry, Num: seq, N: n, Value: r.value}, nil
		}},
		{convs, func(_ []byte, r row) (engine.Row, error) {
			return engine.Row{Kind: engine.KindConv, Num: uint64(r.num), Value: r.value}, nil
		}},
		{replays, func(_ []byte, r row) (engine.Row, error) {
			return engine.Row{Kind: engine.KindReplay, Value: r.value}, nil
		}},
		{records, func(key []byte, r row) (engine.Row, error) {
			return engine.Row{Kind: engine.KindRecord, Key: key, Value: r.value}, nil
		}},
	} {
		rows, err := tx.Query(ctx, "select key, num, due, value from "+t.table.name)
		if err != nil {
			return err
		}
		var key []byte
		var r row
		if _, err := pgx.ForEachRow(rows, []any{&key, &r.num, &r.due, &r.value}, func() error {
			read, err := t.row(key, r)
			if err == nil {
				add(read)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// readChange converts a line of the feed of card changes. It leaves out what only indexes in memory need.
func readChange(key []byte, r row) (engine.Row, error) {
	line, err := decodeLine(key, r.value)
	change := store.CardChange{Change: uint64(r.num), ID: string(key), Gone: line.Gone, Withdrawn: line.Withdrawn, At: line.At}
	value := engine.EncodeChange(engine.ChangeRow{CardChange: change, Seq: line.Seq})
	return engine.Row{Kind: engine.KindChange, Num: uint64(r.num), Due: r.due, Value: value}, err
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
}

// loadBatch is the number of bytes that are in memory at a time.
const loadBatch = 4 << 20

func (l *loader) put(tb *table, key []byte, num, due int64, value []byte) {
	// The copy of value is never nil, because the column must not be null.
	l.buffers[tb] = append(l.buffers[tb], []any{append([]byte(nil), key...), num, due, append([]byte{}, value...)})
	l.size += len(key) + len(value) + 16 // num and due
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
	decoded, err := r.Decode()
	if err != nil {
		return err
	}
	num := int64(r.Num)
	switch v := decoded.(type) {
	case engine.CardRow:
		for _, count := range v.Counts {
			if !v.Withdrawn {
				l.put(cardCounts, cardCountKey(count, v.ID), 0, engine.Deadline(v.Expires), nil)
			}
		}
		l.put(cards, []byte(v.ID), num, engine.CardDue(v.Card), r.Value)
	case engine.ChangeRow:
		line := feedLine{At: v.At, Gone: v.Gone, Withdrawn: v.Withdrawn, Seq: v.Seq}
		l.put(changes, []byte(v.ID), num, r.Due, wire.MustMarshal(line))
	case engine.EntryRow:
		l.put(entries, entryKey(r.Num, r.N), 0, 0, r.Value)
	case store.Conversation:
		for _, term := range engine.SortedSet(v.Terms) {
			l.put(convTerms, convTermKey(term, r.Num), num, 0, nil)
		}
		l.put(convs, engine.ConvKey(v.Key), num, engine.Deadline(v.Expires), r.Value)
	case engine.ReplayRow:
		l.put(replays, engine.ReplayHash(v.Sender, v.MessageID), int64(v.ConvSeq), engine.Deadline(v.Expires), r.Value)
	case store.Record:
		due := engine.Deadline(v.Expires)
		for _, term := range engine.SortedSet(v.Terms) {
			l.put(recordTerms, engine.TermKey(v.NS, term, v.Key), 0, due, nil)
		}
		l.put(records, r.Key, 0, due, r.Value)
	}
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
