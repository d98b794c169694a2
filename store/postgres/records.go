package postgres

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// recordStore implements [store.Records].
type recordStore struct {
	engine.Records
	s *Store
}

// Records implements [store.Store].
func (s *Store) Records() store.Records { return recordStore{engine.Records{Driver: driver{s}}, s} }

func (t *txn) CountRecords(set engine.RecordSet, now int64) (int, error) {
	return t.count(countedIn(set), set.Prefix(), now)
}

func (r recordStore) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	return r.list(ctx, ns, term, after, "", "", limit, now)
}

func (r recordStore) ListBackward(ctx context.Context, ns, term, before string, limit int, now time.Time) (store.RecordPage, error) {
	return r.list(ctx, ns, term, "", before, "desc", limit, now)
}

// list returns a page of the records whose keys are between after and, unless it is empty, before.
func (r recordStore) list(ctx context.Context, ns, term, after, before, order string, limit int, now time.Time) (store.RecordPage, error) {
	if err := engine.CheckList(ns, limit); err != nil {
		return store.RecordPage{}, err
	}
	prefix := engine.RecordKey(ns, "")
	listed := prefix
	sql := "select key, value from records where key > $1 and key < $2 and due > $3 order by key " + order + " limit $4"
	if term != "" {
		// The key of a term's row ends with the key of the record.
		listed = engine.TermKey(ns, term, "")
		sql = `select r.key, r.value from record_terms t join records r on r.key = $5::bytea || substr(t.key, $6)
			where t.key > $1 and t.key < $2 and r.due > $3 order by t.key ` + order + ` limit $4`
	}
	from, to := append(bytes.Clone(listed), after...), append(bytes.Clone(listed), before...)
	if before == "" {
		to = prefixEnd(listed)
	}
	args := []any{from, to, engine.Nanos(now), limit + 1}
	if term != "" {
		args = append(args, prefix, len(listed)+1)
	}
	var page store.RecordPage
	var key, value []byte
	err := r.s.query(ctx, sql, args, []any{&key, &value}, func() error {
		rec, err := engine.DecodeRecord(ns, string(key[len(prefix):]), value)
		page.Records = append(page.Records, rec)
		return err
	})
	if err != nil {
		return store.RecordPage{}, err
	}
	if len(page.Records) > limit {
		page.Records = page.Records[:limit]
		page.Next = page.Records[limit-1].Key
	}
	return page, nil
}

// get reads a row. If it does not exist, the error is store.ErrNotFound.
func (s *Store) get(ctx context.Context, tb *table, key []byte) (r row, err error) {
	err = ask(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, tb.read, key).Scan(&r.num, &r.due, &r.value)
	})
	return r, err
}

// query calls fn for each row of a query, with the columns in scans.
func (s *Store) query(ctx context.Context, sql string, args, scans []any, fn func() error) error {
	return ask(ctx, func(ctx context.Context) error { return forEachRow(ctx, s.pool, sql, args, scans, fn) })
}

// forEachRow works like [Store.query], without a time limit.
func forEachRow(ctx context.Context, pool *pgxpool.Pool, sql string, args, scans []any, fn func() error) error {
	rows, err := pool.Query(ctx, sql, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, scans, fn)
	}
	return err
}

// ask executes a call that waits for the server. It waits at most for answerFor, because the server's host may have
// vanished.
func ask(ctx context.Context, call func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, answerFor)
	defer cancel()
	err := call(limited)
	if errors.Is(err, pgx.ErrNoRows) {
		err = store.ErrNotFound
	}
	return readError(ctx, err)
}
