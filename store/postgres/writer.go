package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// driver implements [engine.Driver].
type driver struct{ s *Store }

func (d driver) Do(ctx context.Context, call engine.Call) error {
	return d.s.writer.queue.Do(ctx, call)
}

func (d driver) View(ctx context.Context, fn func(engine.Reader) error) error {
	return fn(reads(func(tb *table, key []byte) (*row, error) {
		r, err := d.s.get(ctx, tb, key)
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		return &r, err
	}))
}

// reads implements [engine.Reader] with a function that returns a row, or nil.
type reads func(tb *table, key []byte) (*row, error)

func (get reads) Row(kind engine.Kind, key []byte) (engine.Row, error) {
	stored, err := get(tableOf[kind], key)
	if stored == nil || err != nil {
		return engine.Row{}, err
	}
	return engine.Row{Kind: kind, Num: uint64(stored.num), Due: stored.due, Key: key, Value: stored.value}, nil
}

type unit = engine.Unit[engine.Call]

const (
	maxGroup = 512  // bounds the time for which a group locks its rows
	maxQueue = 4096 // units that may wait
	maxTries = 12   // attempts to commit a group that fails because of other processes
	// resolveFor is the time for which a writer tries to learn the outcome of a commit.
	resolveFor = 8 * time.Second
	acquireFor = 5 * time.Second  // to wait for a connection
	answerFor  = 5 * time.Second  // to wait for a connection and for all rows of a read
	groupFor   = 30 * time.Second // for all statements of a group
	tellAgain  = 2 * time.Second  // between attempts to tell other processes that they missed notifications
	forgetLane = "30 days"        // after which the row of a process in the table lanes is removed
)

// writer commits units in groups, see [engine.Queue]. The leader is the caller that commits a group for all its callers.
type writer struct {
	s     *Store
	queue *engine.Queue[engine.Call]

	// Only the leader uses the following fields.

	number int64 // of the last group
	// unheard is true if other processes may not have received the notifications of a commit.
	unheard   bool
	tellTimer *time.Timer // executes an empty group, which then calls tellLost
}

func newWriter(s *Store) *writer {
	w := &writer{s: s}
	w.queue = engine.NewQueue[engine.Call](maxQueue, w.serve)
	w.tellTimer = time.AfterFunc(tellAgain, func() { _ = s.Ping(context.Background()) })
	w.tellTimer.Stop()
	return w
}

func (w *writer) close() {
	w.queue.Close()
	w.tellTimer.Stop()
}

// serve commits one group. The caller is the leader.
func (w *writer) serve() {
	runtime.Gosched() // let callers that the last commit woke queue their next unit
	group := w.queue.Take(nil, maxGroup)
	if len(group) > 0 {
		w.commit(group)
	}
	if w.unheard {
		w.tellTimer.Reset(tellAgain)
	}
}

// commit executes a group of units and reports its outcome to each caller.
func (w *writer) commit(group []*unit) {
	for try := 1; ; try++ {
		errs, err := w.attempt(group)
		switch {
		case err == nil:
			for i, u := range group {
				u.Report(errs[i])
			}
			return
		case mayRepeat(err) && try < maxTries:
			time.Sleep(rand.N(time.Duration(try) * 5 * time.Millisecond))
			continue
		case len(group) > 1 && !isUnavailable(err):
			for _, u := range group { // one of them is at fault, so execute them one by one
				w.commit([]*unit{u})
			}
			return
		}
		w.s.log.Error("a commit failed", slog.Any("err", err))
		for _, u := range group {
			u.Report(asUnavailable(err))
		}
		return
	}
}

// attempt executes a group in one transaction. errs holds the refusals of the units, which are reported only after the
// commit, because they may depend on what another unit wrote. After an error, nothing is committed; only errUnknown
// leaves that open.
func (w *writer) attempt(group []*unit) (errs []error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), groupFor)
	defer cancel()
	conn, err := w.s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release() // closes the connection if it is still in the transaction
	w.number++
	t := &txn{ctx: ctx, conn: conn.Conn(), cells: make(map[*table]map[string]*cell), leases: make(map[string]uint64), lanes: make(map[string]*lane)}
	t.reads = t.get
	if err := t.begin(w.s.id, w.number, group); err != nil {
		t.rollback()
		if errors.Is(err, errNoLane) {
			return nil, errors.Join(err, w.s.openLane(ctx))
		}
		return nil, asLost(conn.Conn(), err)
	}
	wrote := false
	errs = make([]error, len(group))
	for i, u := range group {
		var write func() error
		// Guard turns a panic into an error.
		errs[i] = engine.Guard(func() (err error) { write, err = u.Work.Plan(t); return err })
		if db := (dbError{}); errors.As(errs[i], &db) {
			t.rollback()
			return nil, asLost(conn.Conn(), db)
		}
		if errs[i] != nil || write == nil {
			continue
		}
		if err := engine.Guard(write); err != nil {
			t.rollback()
			return nil, asLost(conn.Conn(), fmt.Errorf("%w: %w", errFault, err))
		}
		wrote = true
	}
	if !wrote {
		t.rollback()
	} else if uncertain, err := t.commit(w); err != nil {
		if !uncertain {
			t.rollback()
			return nil, err
		}
		// The outcome is unknown.
		_ = conn.Conn().Close(ctx) // so that the server ends the transaction if it has not
		conn.Release()             // resolve needs a connection too
		w.unheard = true
		if err := w.resolve(err); err != nil {
			return nil, err
		}
	}
	if w.unheard {
		conn.Release() // tellLost needs a connection too
		w.tellLost()
	}
	return errs, nil
}

// rollback ends a transaction without a commit. If it fails, the pool closes the connection, which does the same.
func (t *txn) rollback() { _, _ = t.conn.Exec(t.ctx, "rollback") }

// commit writes all rows and commits, in one round trip. If err is not nil, uncertain reports whether the transaction
// may have been committed nevertheless.
func (t *txn) commit(w *writer) (uncertain bool, err error) {
	var batch pgx.Batch
	t.flush(&batch)
	for _, q := range batch.QueuedQueries { // forget warnings before the commit
		q.Exec(func(pgconn.CommandTag) error { takeWarning(t.conn); return nil })
	}
	// outcome is the answer to the commit, and warning is a warning that came with it.
	var outcome, warning string
	batch.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		outcome, warning = tag.String(), takeWarning(t.conn)
		return nil
	})
	// The server commits only one transaction with notifications at a time, so groups would wait for each other's writes
	// to the disk. Therefore the notifications follow in a transaction of their own, which writes nothing.
	for _, payload := range encodeHints(w.s.id, t.hints) {
		batch.Queue("select pg_notify($1, $2)", w.s.channel, payload)
	}
	err = t.conn.SendBatch(t.ctx, &batch).Close()
	switch {
	case warning != "":
		// The wait for the standby was canceled. The transaction is committed on the server, but perhaps on no standby.
		return true, fmt.Errorf("%w: commit: %s", errUnknown, warning)
	case outcome == "COMMIT":
		w.unheard = w.unheard || err != nil
		return false, nil
	case outcome != "":
		return false, fmt.Errorf("commit: the server answered %s", outcome)
	}
	var refused *pgconn.PgError // after an ERROR, nothing is committed; a FATAL one may follow the commit
	return !errors.As(err, &refused) || refused.SeverityUnlocalized != "ERROR", err
}

// tellLost tells the other processes that they missed notifications. If it fails, the next group tries again.
// If no caller queues a unit, the next group is an empty one after tellAgain.
func (w *writer) tellLost() {
	ctx, cancel := context.WithTimeout(context.Background(), acquireFor)
	defer cancel()
	_, err := w.s.pool.Exec(ctx, "select pg_notify($1, $2)", w.s.channel, notification{By: w.s.id, Lost: true}.encode())
	if w.unheard = err != nil; w.unheard {
		w.s.log.Warn("other processes did not hear of a commit", slog.Any("err", err))
	}
}

// errUnknown means that a group was perhaps committed, and perhaps not durably.
var errUnknown = errors.New("the outcome of a commit is unknown")

// resolve finds out whether the last group was committed, and returns nil if it was. The answer is final, because the
// transaction of the group locks the row that resolve reads until the transaction has ended on the server.
func (w *writer) resolve(cause error) error {
	if errors.Is(cause, errUnknown) {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveFor)
	defer cancel()
	for {
		n, err := w.lastCommitted(ctx)
		switch {
		case err == nil && n == w.number:
			return nil
		case err == nil:
			return fmt.Errorf("%w: %w", errLost, cause)
		}
		if !waiting.Pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("%w: %w", errUnknown, cause)
		}
	}
}

// asLost returns err, which occurred before the commit, as errLost if the connection is gone.
func asLost(conn *pgx.Conn, err error) error {
	if conn.IsClosed() {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return err
}

// errLost means that a connection was lost and that its group was not committed, so the group may run again.
var errLost = errors.New("the connection was lost before the commit")

// lastCommitted returns the number of the last group that was committed.
func (w *writer) lastCommitted(ctx context.Context) (n int64, err error) {
	conn, err := w.s.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	err = conn.QueryRow(ctx, "select n from lanes where id = $1 for update", w.s.id).Scan(&n)
	return n, err
}

// errFault means that a unit failed while it wrote, after its plan.
var errFault = errors.New("write")
