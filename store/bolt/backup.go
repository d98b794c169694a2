package bolt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/store"
)

// Backup implements [store.Store]. It copies the database to a file beside it first: a read transaction that
// waited for w would keep the file from reusing its free pages and, at worst, writers from growing it.
func (s *Store) Backup(ctx context.Context, w io.Writer) (int64, error) {
	f, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".backup-*")
	if err != nil {
		return 0, fmt.Errorf("backup: %w", err)
	}
	n, err := s.backup(ctx, f, w)
	// It is an error to leave a copy of everything lying about.
	if err := errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return n, fmt.Errorf("backup: %w", err)
	}
	return n, nil
}

// copyTo puts a copy of the database at name, whole or not at all.
func (s *Store) copyTo(name string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".backup-*") // mode 0600
	if err != nil {
		return err
	}
	err = s.db.View(func(tx *bbolt.Tx) error {
		if err := s.roomFor(tx.Size()); err != nil {
			return err
		}
		_, err := tx.WriteTo(f)
		return err
	})
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	atomicfile.SyncDir(filepath.Dir(name))
	return nil
}

// dropBackups removes the local copies of backups that a killed process left behind.
func (s *Store) dropBackups() error {
	dir, prefix := filepath.Dir(s.path), filepath.Base(s.path)+".backup-"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.Type().IsRegular() {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) backup(ctx context.Context, f *os.File, w io.Writer) (int64, error) {
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		if err := s.roomFor(tx.Size()); err != nil {
			return err
		}
		_, err := tx.WriteTo(&untilDone{ctx, f})
		return err
	})
	if err != nil {
		return 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(&untilDone{ctx, w}, f)
}

// roomFor says whether a copy of size bytes leaves the disk as free as it must stay.
func (s *Store) roomFor(size int64) error {
	free, err := diskFree(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	if spare := free - max(s.cfg.MinFree, 0); spare < size {
		return fmt.Errorf("%w: the local copy takes %d MiB of disk, %d MiB can be spared", store.ErrUnavailable, size>>20, max(spare, 0)>>20)
	}
	return nil
}

// untilDone stops writing when ctx ends.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

func (u *untilDone) Write(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(b)
}
