package datadir

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store/postgres"
)

// OpenPostgres opens a PostgreSQL database for this data directory. It locks the directory, as the database file does
// otherwise, and records this process as its holder, until the caller calls release.
func (d Dir) OpenPostgres(ctx context.Context, cfg postgres.Config) (s *postgres.Store, release func(), err error) {
	unlock, err := lockFile(d.Path(FileLock))
	if errors.Is(err, ErrInUse) {
		return nil, nil, d.InUse()
	}
	if err != nil {
		return nil, nil, exit.Fail(exit.Config, fmt.Errorf("lock the data directory: %w", err))
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	if s, err = postgres.Open(ctx, cfg); err != nil {
		return nil, nil, explainPostgres(err)
	}
	removePID, err := d.writePID()
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, func() { removePID(); unlock() }, nil
}

// UsedPostgres reports whether a process has used a PostgreSQL database for this data directory.
func (d Dir) UsedPostgres() bool {
	_, err := os.Stat(d.Path(FileLock))
	return err == nil
}

// explainPostgres adds an exit code and a hint to the error err, for a PostgreSQL database that cannot be opened.
func explainPostgres(err error) error {
	code, hint := exit.Config, ""
	switch {
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
	}
	return exit.FailHint(code, err, hint)
}
