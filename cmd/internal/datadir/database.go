package datadir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/engine"
)

// OpenStore opens the database and records this process as its holder until the caller calls release.
func (d Dir) OpenStore(ctx context.Context, cfg bolt.Config) (s *bolt.Store, release func(), err error) {
	if err := d.removeStaleRestores(); err != nil {
		return nil, nil, err
	}
	if s, err = bolt.Open(ctx, d.Path(FileDatabase), cfg); err != nil {
		return nil, nil, d.explainOpen(err)
	}
	if release, err = d.writePID(); err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, release, nil
}

// OpenDatabase opens a database file outside a data directory.
func OpenDatabase(ctx context.Context, file string, log *slog.Logger) (store.Store, error) {
	return bolt.Open(ctx, file, bolt.Config{Logger: log})
}

// ImportDatabase makes the database from rows that fill supplies: those of another database.
func (d Dir) ImportDatabase(ctx context.Context, fill engine.Fill) (engine.Tally, error) {
	if _, err := Open(string(d)); err != nil {
		return engine.Tally{}, err
	}
	unlock, err := d.Lock()
	if err != nil {
		return engine.Tally{}, err
	}
	defer unlock()
	tally, err := bolt.Import(ctx, d.Path(FileDatabase), fill)
	if _, explained := errors.AsType[*exit.Error](err); err != nil && !explained { // an error of the other database is explained already
		err = d.explainOpen(err)
	}
	return tally, err
}

// FreeBytes returns the free bytes on the disk of the directory.
func (d Dir) FreeBytes() (int64, error) { return bolt.Free(string(d)) }

// explainOpen adds an exit code and a hint to the error err, for a database that cannot be opened.
func (d Dir) explainOpen(err error) error {
	switch {
	case errors.Is(err, bolt.ErrLocked):
		return d.InUse()
	case errors.Is(err, engine.ErrUnfinished):
		return exit.FailHint(exit.Config, err, "run agentmesh db import again, or delete "+d.Path(bolt.ImportPath(FileDatabase))+" to begin with an empty database")
	case errors.Is(err, engine.ErrNotEmpty):
		return exit.FailHint(exit.Config, err, "import into another data directory; if an import was interrupted at its very end, it is complete")
	case errors.Is(err, syscall.ENOSPC):
		return ExplainDiskFull(err)
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

// WaitUntilFree calls attempt again and again until done is true, err is not [ErrInUse], the timeout has passed, or ctx
// ends. It returns the last err. note tells the user about a wait of more than a second.
func (d Dir) WaitUntilFree(ctx context.Context, timeout time.Duration, note func(string, ...any), attempt func() (done bool, err error)) error {
	const (
		noteAfter  = time.Second
		retryAfter = 100 * time.Millisecond
	)
	start, noted := time.Now(), false
	for {
		done, err := attempt()
		waited := time.Since(start)
		if done || !errors.Is(err, ErrInUse) || waited >= timeout {
			return err
		}
		if !noted && waited >= noteAfter {
			noted = true
			note("waiting for %s to release %s", d.Holder(), string(d))
		}
		if !waiting.Pause(ctx, retryAfter) {
			return err
		}
	}
}

// Compacted has the sizes of a database file before and after [Dir.Compact], in bytes.
type Compacted struct {
	Before int64 `json:"before"`
	After  int64 `json:"after"`
}

// String describes the result for the user.
func (c Compacted) String() string {
	if c.After == c.Before {
		return fmt.Sprintf("%s has %d bytes and no free space", FileDatabase, c.Before)
	}
	return fmt.Sprintf("%s had %d bytes and now has %d", FileDatabase, c.Before, c.After)
}

// Compact returns the database's free pages to the disk. It needs exclusive use of the database.
func (d Dir) Compact(ctx context.Context) (c Compacted, err error) {
	if !d.HasDatabase() {
		return c, NoAgent(string(d))
	}
	if _, err := Open(string(d)); err != nil {
		return c, err
	}
	if err := d.checkOwner(d.Path(FileDatabase)); err != nil {
		return c, err
	}
	c.Before, c.After, err = bolt.CompactInPlace(ctx, d.Path(FileDatabase))
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return Compacted{}, ExplainDiskFull(err)
	case err != nil:
		return Compacted{}, d.explainOpen(err)
	}
	return c, nil
}
