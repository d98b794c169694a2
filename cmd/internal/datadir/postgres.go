package datadir

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/postgres"
)

// OpenPostgres opens a PostgreSQL database for this data directory, and records this process as its holder. It also
// locks the directory: only a database file has a lock of its own. The caller calls release.
func (d Dir) OpenPostgres(ctx context.Context, cfg postgres.Config) (s *postgres.Store, release func(), err error) {
	unlock, err := d.Lock()
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	if s, err = postgres.Open(ctx, cfg); err != nil {
		return nil, nil, ExplainPostgres(err)
	}
	removePID, err := d.writePID()
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, func() { removePID(); unlock() }, nil
}

// Lock locks the data directory until the caller calls unlock. Imports, restores and processes that use PostgreSQL take
// this lock. It is not the lock of the database file.
func (d Dir) Lock() (unlock func(), err error) {
	unlock, err = lockFile(d.Path(FileLock))
	if errors.Is(err, ErrInUse) {
		return nil, d.InUse()
	}
	if err != nil {
		return nil, exit.Fail(exit.Config, fmt.Errorf("lock the data directory: %w", err))
	}
	return unlock, nil
}

// UsedPostgres reports whether a process has used a PostgreSQL database for this data directory, or has imported into
// its database file: both leave the lock file.
func (d Dir) UsedPostgres() bool { return exists(d.Path(FileLock)) }

// postgresHints explains the errors of a PostgreSQL database.
var postgresHints = []struct {
	err  error
	code int
	hint string
}{
	{engine.ErrUnfinished, exit.Config, "run agentmesh db import again, or drop the tables to begin with an empty database"},
	{engine.ErrNotEmpty, exit.Config, "import into an empty schema; if an import was interrupted at its very end, it is complete"},
	{postgres.ErrCopying, exit.Unavailable, "wait until agentmesh db import has ended"},
	{postgres.ErrInUse, exit.Unavailable, "stop them first"},
	{postgres.ErrMayNotMigrate, exit.Config, "run agentmesh db migrate as the owner of the schema, or give its owner what agentmesh db migrate --print prints"},
	{postgres.ErrUnsafe, exit.Config, "set it to on in postgresql.conf and reload the server, or, for data that you can lose, set store.allow_unsafe"},
	{postgres.ErrNewerSchema, exit.Config, "use the newer agentmesh"},
	{postgres.ErrReadOnly, exit.Unavailable, "connect to the primary: name all servers in store.postgres, with target_session_attrs=read-write"},
	{postgres.ErrLogin, exit.Config, "check user and password in the file of store.postgres, PGPASSFILE and pg_hba.conf"},
	{postgres.ErrUnreachable, exit.Unavailable, "is the server up, and are host, port and sslmode in store.postgres right?"},
	{store.ErrUnavailable, exit.Unavailable, "mend what the message of the server names, such as a full disk"},
}

// ExplainPostgres adds an exit code and a hint to the error err, for a PostgreSQL database that cannot be opened or
// copied. It returns nil if err is nil.
func ExplainPostgres(err error) error {
	if err == nil {
		return nil
	}
	for _, known := range postgresHints {
		if errors.Is(err, known.err) {
			return exit.FailHint(known.code, err, known.hint)
		}
	}
	return exit.Fail(exit.Config, err)
}
