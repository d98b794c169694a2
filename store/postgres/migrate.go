package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tablesVersion is the version of the tables, which the table schema_version holds.
const tablesVersion = 1

//go:embed tables.sql
var tablesSQL string

// migrationLock is the advisory lock under which one process at a time makes the tables.
const migrationLock = 0x616d6573

const createVersions = "create table if not exists schema_version (version int primary key, at timestamptz not null default now());\n"

// createScript returns the statements, without a transaction, that make the tables.
func createScript() string {
	return fmt.Sprintf("%s%s\ninsert into schema_version (version) values (%d);\n", createVersions, strings.TrimRight(tablesSQL, "\n"), tablesVersion)
}

// version returns the version of the tables, or 0 if the schema has no tables. If this program must not use them, the
// error is ErrNewerSchema.
func version(ctx context.Context, tx pgx.Tx) (have int, err error) {
	var exists bool
	if err := tx.QueryRow(ctx, "select to_regclass('schema_version') is not null").Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = tx.QueryRow(ctx, "select coalesce(max(version), 0) from schema_version").Scan(&have)
	if err == nil && have > tablesVersion {
		err = fmt.Errorf("%w: version %d, and this program knows %d", ErrNewerSchema, have, tablesVersion)
	}
	return have, err
}

// migrate makes the tables, in one transaction, if there are none, and returns their version before.
func migrate(ctx context.Context, conn *pgx.Conn) (before int, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if before, err = version(ctx, tx); err != nil || before > 0 {
			return err
		}
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", migrationLock); err != nil {
			return err
		}
		// Another process may have made the tables while this one waited. The server then finds schema_version only after
		// this statement, because it remembers that the table was missing.
		if _, err := conn.PgConn().Exec(ctx, createVersions).ReadAll(); err != nil {
			return asMissingRight(err)
		}
		if before, err = version(ctx, tx); err != nil || before > 0 {
			return err
		}
		_, err := conn.PgConn().Exec(ctx, createScript()).ReadAll()
		return asMissingRight(err)
	})
	return before, err
}

// asMissingRight returns err as ErrMayNotMigrate if the user lacks the right to execute a statement.
func asMissingRight(err error) error {
	if sqlState(err) == "42501" { // insufficient privilege
		return fmt.Errorf("%w: %w", ErrMayNotMigrate, err)
	}
	return err
}

// Migrate makes the tables if there are none, and returns their version before and after. Migrate needs the rights to do
// so; [Open] then does not need them.
func Migrate(ctx context.Context, cfg Config) (before, after int, err error) {
	conn, err := connect(ctx, cfg)
	if err != nil {
		return 0, 0, classifyOpen(err)
	}
	defer conn.Close(ctx)
	before, err = migrate(ctx, conn)
	return before, tablesVersion, classifyOpen(err)
}

// MigrationScript returns the SQL text of what [Migrate] would do, with its own transaction, or "" if there is nothing
// to do. With an empty URL, the script makes all tables.
func MigrationScript(ctx context.Context, cfg Config) (text string, err error) {
	have := 0
	if cfg.URL != "" {
		conn, err := connect(ctx, cfg)
		if err != nil {
			return "", classifyOpen(err)
		}
		defer conn.Close(ctx)
		if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			have, err = version(ctx, tx)
			return err
		}); err != nil {
			return "", classifyOpen(err)
		}
	}
	if have > 0 {
		return "", nil
	}
	return fmt.Sprintf("begin;\nselect pg_advisory_xact_lock(%d);\n%scommit;\n", migrationLock, createScript()), nil
}

// connect opens a connection for work on the whole database. The work may take long and must not go through a pooler.
func connect(ctx context.Context, cfg Config) (*pgx.Conn, error) {
	s := &Store{cfg: cfg.withDefaults()}
	pool, err := pgxpool.ParseConfig(s.cfg.ListenURL) // it may have parameters of the pool
	if err != nil {
		return nil, fmt.Errorf("read the connection string of the database: %w", err)
	}
	s.prepare(pool.ConnConfig)
	pool.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	conn, err := pgx.ConnectConfig(ctx, pool.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}
