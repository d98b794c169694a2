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

	"github.com/agentmesh/agentmesh/store"
)

// Backup implements [store.Store]. It first copies the database to a temporary file in the same directory, and then
// writes the copy to w. A read transaction that waited for a slow w would prevent the reuse of free pages, and could
// block writers that must grow the file.
func (s *Store) Backup(ctx context.Context, w io.Writer) (int64, error) {
	f, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".backup-*")
	if err != nil {
		return 0, fmt.Errorf("backup: %w", err)
	}
	n, err := s.backup(ctx, f, w)
	// If the temporary copy cannot be removed, the backup fails, because the copy contains all data.
	if err := errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return n, fmt.Errorf("backup: %w", err)
	}
	return n, nil
}

// removeTempCopies removes the temporary copies that a killed process left behind.
func (s *Store) removeTempCopies() error {
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

// backup copies the database to f, and then copies f to w.
func (s *Store) backup(ctx context.Context, f *os.File, w io.Writer) (int64, error) {
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		if err := s.checkRoom(tx.Size()); err != nil {
			return err
		}
		_, err := tx.WriteTo(&contextWriter{ctx, f})
		return err
	})
	if err != nil {
		return 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(&contextWriter{ctx, w}, f)
}

// checkRoom returns ErrUnavailable if a copy of size bytes would leave less than Config.MinFree bytes on the disk.
func (s *Store) checkRoom(size int64) error {
	free, err := diskFree(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	if spare := free - max(s.cfg.MinFree, 0); spare < size {
		return fmt.Errorf("%w: the local copy needs %d MiB of disk, but only %d MiB can be spared", store.ErrUnavailable, size>>20, max(spare, 0)>>20)
	}
	return nil
}

// contextWriter is a Writer that fails once ctx has ended.
type contextWriter struct {
	ctx context.Context
	w   io.Writer
}

func (c *contextWriter) Write(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.w.Write(b)
}
