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

// ExplainPostgres adds an exit code and a hint to the error err, for a PostgreSQL database that cannot be opened or
// copied.
func ExplainPostgres(err error) error {
	code, hint := exit.Config, ""
	switch {
	case errors.Is(err, engine.ErrUnfinished):
		hint = "run agentmesh db import again, or drop the tables to begin with an empty database"
	case errors.Is(err, engine.ErrNotEmpty):
		hint = "import into an empty schema; if an import was interrupted at its very end, it is complete"
	case errors.Is(err, postgres.ErrCopying):
		code, hint = exit.Unavailable, "wait until agentmesh db import has ended"
	case errors.Is(err, postgres.ErrInUse):
		code, hint = exit.Unavailable, "stop them first"
	case errors.Is(err, postgres.ErrMayNotMigrate):
		hint = "run agentmesh db migrate as the owner of the schema, or give its owner what agentmesh db migrate --print prints"
	case errors.Is(err, postgres.ErrUnsafe):
		hint = "set it to on in postgresql.conf and reload the server, or, for data that you can lose, set store.allow_unsafe"
	case errors.Is(err, postgres.ErrNewerSchema):
		hint = "use the newer agentmesh"
	case errors.Is(err, postgres.ErrReadOnly):
		code, hint = exit.Unavailable, "connect to the primary: name all servers in store.postgres, with target_session_attrs=read-write"
	case errors.Is(err, postgres.ErrLogin):
		hint = "check user and password in the file of store.postgres, PGPASSFILE and pg_hba.conf"
	case errors.Is(err, postgres.ErrUnreachable):
		code, hint = exit.Unavailable, "is the server up, and are host, port and sslmode in store.postgres right?"
	case errors.Is(err, store.ErrUnavailable):
		code, hint = exit.Unavailable, "mend what the message of the server names, such as a full disk"
	}
	return exit.FailHint(code, err, hint)
}
