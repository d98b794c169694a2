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

// OpenStore opens the database, and says that this process has it until release is called.
func (h Dir) OpenStore(ctx context.Context, cfg bolt.Config) (s *bolt.Store, release func(), err error) {
	if s, err = bolt.Open(ctx, h.Path(FileDatabase), cfg); err != nil {
		return nil, nil, h.openFault(err)
	}
	if release, err = h.hold(); err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	h.dropUnfinished()
	return s, release, nil
}

// OpenDatabase opens a database that lies outside a data directory.
func OpenDatabase(ctx context.Context, file string, log *slog.Logger) (store.Store, error) {
	return bolt.Open(ctx, file, bolt.Config{Logger: log})
}

// Free returns the free bytes on the disk of the directory.
func (h Dir) Free() (int64, error) { return bolt.Free(string(h)) }

// openFault says what a database that cannot be opened means to the user.
func (h Dir) openFault(err error) error {
	switch {
	case errors.Is(err, bolt.ErrLocked):
		return h.InUse()
	case errors.Is(err, bolt.ErrFileMode):
		return exit.FailHint(exit.Config, err, "chmod 600 "+h.Path(FileDatabase))
	case errors.Is(err, bolt.ErrNewerSchema):
		return exit.FailHint(exit.Config, err, "use the newer agentmesh; docs/operations.md, Upgrade, says how to go back")
	case errors.Is(err, store.ErrUnavailable):
		return exit.FailHint(exit.Unavailable, err, "make room on the disk; nothing was changed")
	case errors.Is(err, bolt.ErrDamaged):
		return exit.FailHint(exit.Config, err, "agentmesh check says more; agentmesh restore brings a backup into a new directory")
	}
	return exit.Fail(exit.Config, err)
}

// ErrInUse is the error of a data directory that another process has.
var ErrInUse = errors.New("in use")

// WaitFree calls take until it gets the data directory, at most for as long as wait; done ends it before that. note tells the user. What
// is refused for another reason than [ErrInUse] stays refused.
func (h Dir) WaitFree(ctx context.Context, wait time.Duration, note func(string, ...any), take func() (done bool, err error)) error {
	const (
		tellAfter = time.Second // from when on the user is told
		askAgain  = 100 * time.Millisecond
	)
	begun, told := time.Now(), false
	for {
		done, err := take()
		waited := time.Since(begun)
		if done || !errors.Is(err, ErrInUse) || waited >= wait {
			return err
		}
		if !told && waited >= tellAfter {
			told = true
			note("waiting for %s to let go of %s", h.Holder(), string(h))
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askAgain):
		}
	}
}

// Compact gives the database's free pages back to the disk, and returns its sizes. It needs the database for itself.
func (h Dir) Compact(ctx context.Context) (before, after int64, err error) {
	if !h.HasDatabase() {
		return 0, 0, NoAgent(string(h))
	}
	if _, err := Open(string(h)); err != nil {
		return 0, 0, err
	}
	before, after, err = bolt.CompactInPlace(ctx, h.Path(FileDatabase))
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return 0, 0, RoomFault(err)
	case err != nil:
		return 0, 0, h.openFault(err)
	}
	return before, after, nil
}
