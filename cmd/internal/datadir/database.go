package datadir

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// OpenStore opens the database and records this process as its holder until the caller calls release.
func (d Dir) OpenStore(ctx context.Context, cfg bolt.Config) (s *bolt.Store, release func(), err error) {
	if s, err = bolt.Open(ctx, d.Path(FileDatabase), cfg); err != nil {
		return nil, nil, d.explainOpen(err)
	}
	if release, err = d.writePID(); err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	d.removeStaleRestores()
	return s, release, nil
}

// OpenDatabase opens a database file outside a data directory.
func OpenDatabase(ctx context.Context, file string, log *slog.Logger) (store.Store, error) {
	return bolt.Open(ctx, file, bolt.Config{Logger: log})
}

// FreeBytes returns the free bytes on the disk of the directory.
func (d Dir) FreeBytes() (int64, error) { return bolt.Free(string(d)) }

// explainOpen adds an exit code and a hint to the error err, for a database that cannot be opened.
func (d Dir) explainOpen(err error) error {
	switch {
	case errors.Is(err, bolt.ErrLocked):
		return d.InUse()
	case errors.Is(err, bolt.ErrFileMode):
		return exit.FailHint(exit.Config, err, "chmod 600 "+d.Path(FileDatabase))
	case errors.Is(err, bolt.ErrNewerSchema):
		return exit.FailHint(exit.Config, err, "use the newer agentmesh; docs/operations.md, Upgrade, explains how to go back")
	case errors.Is(err, store.ErrUnavailable):
		return exit.FailHint(exit.Unavailable, err, "make room on the disk; nothing was changed")
	case errors.Is(err, bolt.ErrDamaged):
		return exit.FailHint(exit.Config, err, "agentmesh check shows details; agentmesh restore unpacks a backup into a new directory")
	}
	return exit.Fail(exit.Config, err)
}

// ErrInUse is the error for a data directory that another process uses.
var ErrInUse = errors.New("in use")

// WaitUntilFree calls take repeatedly until take reports done or no longer returns [ErrInUse], or until wait has passed
// or ctx ends. It returns the last error of take. note tells the user about a wait of more than a second.
func (d Dir) WaitUntilFree(ctx context.Context, wait time.Duration, note func(string, ...any), take func() (done bool, err error)) error {
	const (
		noteAfter  = time.Second
		retryAfter = 100 * time.Millisecond
	)
	start, noted := time.Now(), false
	for {
		done, err := take()
		waited := time.Since(start)
		if done || !errors.Is(err, ErrInUse) || waited >= wait {
			return err
		}
		if !noted && waited >= noteAfter {
			noted = true
			note("waiting for %s to release %s", d.Holder(), string(d))
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryAfter):
		}
	}
}

// Compact returns the database's free pages to the disk. It returns the sizes before and after, in bytes, and needs
// exclusive use of the database.
func (d Dir) Compact(ctx context.Context) (before, after int64, err error) {
	if !d.HasDatabase() {
		return 0, 0, NoAgent(string(d))
	}
	if _, err := Open(string(d)); err != nil {
		return 0, 0, err
	}
	before, after, err = bolt.CompactInPlace(ctx, d.Path(FileDatabase))
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return 0, 0, ExplainDiskFull(err)
	case err != nil:
		return 0, 0, d.explainOpen(err)
	}
	return before, after, nil
}
