package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrationLock is the advisory lock under which one process at a time changes the tables.
const migrationLock = 0x616d6573

// migration makes one version of the tables from the version before.
type migration struct {
	sql string
	// oldest is the lowest version that a program must know to use the tables; 0 if it must know this version. A
	// migration that only adds tables, or columns with a default, names an older version, so that programs of both
	// versions can run during an upgrade.
	oldest int
}

// oldestLine is the line of a migration that sets its field oldest.
var oldestLine = regexp.MustCompile(`(?m)^-- Programs that know version (\d+) may use these tables\.$`)

// migrations returns all versions of the tables, oldest first.
func migrations() []migration {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql") // sorted
	if err != nil {
		panic(err)
	}
	var all []migration
	for _, name := range names {
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			panic(err)
		}
		all = append(all, newMigration(string(text)))
	}
	return all
}

func newMigration(sql string) migration {
	m := migration{sql: sql}
	if found := oldestLine.FindStringSubmatch(sql); found != nil {
		m.oldest, _ = strconv.Atoi(found[1]) // digits
	}
	return m
}

// createVersions makes the table of versions. Its column oldest is null if only programs that know the version may use
// the tables.
const createVersions = `create table if not exists schema_version (version int primary key, at timestamptz not null default now());
alter table schema_version add column if not exists oldest int;
`

// insert returns the statement that stores the version of m.
func (m migration) insert(version int) string {
	if m.oldest == 0 {
		return fmt.Sprintf("insert into schema_version (version) values (%d);\n", version)
	}
	return fmt.Sprintf("insert into schema_version (version, oldest) values (%d, %d);\n", version, m.oldest)
}

// upgradeScript returns the statements, without a transaction, that bring the tables from version have to the newest.
func upgradeScript(all []migration, have int) string {
	var b strings.Builder
	b.WriteString(createVersions)
	for i, m := range all[have:] {
		b.WriteString(strings.TrimRight(m.sql, "\n") + "\n" + m.insert(have+i+1))
	}
	return b.String()
}

// version returns the version of the tables, or 0 if the schema has no tables. If this program must not use them,
// because it knows only an older version, the error is ErrNewerSchema.
func version(ctx context.Context, tx pgx.Tx, known int) (have int, err error) {
	var exists bool
	if err := tx.QueryRow(ctx, "select to_regclass('schema_version') is not null").Scan(&exists); err != nil || !exists {
		return 0, err
	}
	if err := tx.QueryRow(ctx, "select coalesce(max(version), 0) from schema_version").Scan(&have); err != nil || have <= known {
		return have, err
	}
	// Every version that is newer than this program must allow this program, not only the newest.
	var oldest int
	err = tx.QueryRow(ctx, "select max(coalesce(oldest, version)) from schema_version").Scan(&oldest)
	if err != nil && sqlState(err) != "42703" { // 42703: the column is missing
		return have, err
	}
	if err != nil || oldest > known {
		return have, fmt.Errorf("%w: version %d, and this program knows %d", ErrNewerSchema, have, known)
	}
	return have, nil
}

// migrate brings the tables to the newest version, in one transaction, and returns their version before and after.
// Newer tables that this program may use stay as they are.
func migrate(ctx context.Context, conn *pgx.Conn, all []migration) (before, after int, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if before, err = version(ctx, tx, len(all)); err != nil || before >= len(all) {
			return err
		}
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", migrationLock); err != nil {
			return err
		}
		if _, err := conn.PgConn().Exec(ctx, createVersions).ReadAll(); err != nil {
			return asMissingRight(err)
		}
		// Another process may have migrated while this one waited.
		if before, err = version(ctx, tx, len(all)); err != nil || before >= len(all) {
			return err
		}
		_, err := conn.PgConn().Exec(ctx, upgradeScript(all, before)).ReadAll()
		return asMissingRight(err)
	})
	return before, max(before, len(all)), err
}

// asMissingRight returns err as ErrMayNotMigrate if the user lacks the right to execute a statement.
func asMissingRight(err error) error {
	if sqlState(err) == "42501" { // insufficient privilege
		return fmt.Errorf("%w: %w", ErrMayNotMigrate, err)
	}
	return err
}

// Migrate makes the tables or brings them to the version of this program, and returns their version before and after.
// Migrate needs the rights to do so; [Open] then does not need them.
func Migrate(ctx context.Context, cfg Config) (before, after int, err error) {
	conn, err := connect(ctx, cfg)
	if err != nil {
		return 0, 0, classifyOpen(err)
	}
	defer conn.Close(ctx)
	before, after, err = migrate(ctx, conn, migrations())
	return before, after, classifyOpen(err)
}

// MigrationScript returns the SQL text of what [Migrate] would do, with its own transaction, or "" if there is nothing
// to do. With an empty URL, the script makes all tables.
func MigrationScript(ctx context.Context, cfg Config) (text string, err error) {
	have, all := 0, migrations()
	if cfg.URL != "" {
		conn, err := connect(ctx, cfg)
		if err != nil {
			return "", classifyOpen(err)
		}
		defer conn.Close(ctx)
		if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			have, err = version(ctx, tx, len(all))
			return err
		}); err != nil {
			return "", classifyOpen(err)
		}
	}
	if have >= len(all) {
		return "", nil
	}
	return fmt.Sprintf("begin;\nselect pg_advisory_xact_lock(%d);\n%scommit;\n", migrationLock, upgradeScript(all, have)), nil
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
