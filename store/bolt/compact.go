package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/node/atomicfile"
)

// checkOffline returns nil if path names a database that only its owner can access, no import into it was interrupted,
// and [preflight] finds no damage.
func checkOffline(path string) error {
	if err := checkImport(path); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	if err := checkMode(path); err != nil {
		return err
	}
	return preflight(path)
}

// openOffline opens a database for reading, after the checks of checkOffline.
func openOffline(path string) (*bbolt.DB, error) {
	if err := checkOffline(path); err != nil {
		return nil, err
	}
	return openBolt(path, &bbolt.Options{ReadOnly: true})
}

// CompactInPlace replaces the database at path, which must not be open elsewhere, with a copy without free pages, and
// returns the sizes of the file before and after. It checks the copy first. If the copy is not smaller, the old file
// stays. After a crash, path names either the old file or the complete new file.
func CompactInPlace(ctx context.Context, path string) (before, after int64, err error) {
	if before, after, err = compactInPlace(ctx, followLink(path)); err != nil {
		return before, after, fmt.Errorf("compact %s: %w", path, err)
	}
	return before, after, nil
}

func compactInPlace(ctx context.Context, path string) (before, after int64, err error) {
	if err := checkOffline(path); err != nil {
		return 0, 0, err
	}
	// Hold the lock until the rename, because anything that another process wrote to the old file would be lost.
	src, err := openBolt(path, &bbolt.Options{})
	if err != nil {
		return 0, 0, err
	}
	defer src.Close()
	dst := path + ".backup-compact" // the next Open removes what a killed process left
	if err := os.Remove(dst); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, err
	}
	if err := compactFrom(ctx, src, dst); err != nil {
		return 0, 0, err
	}
	defer os.Remove(dst) // has no effect after the rename
	if err := Check(ctx, dst); err != nil {
		return 0, 0, err
	}
	old, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	compacted, err := os.Stat(dst)
	if err != nil {
		return 0, 0, err
	}
	if compacted.Size() >= old.Size() {
		return old.Size(), old.Size(), nil
	}
	if runtime.GOOS == "windows" { // Windows cannot rename over an open file
		if err := src.Close(); err != nil {
			return 0, 0, err
		}
	}
	if err := os.Rename(dst, path); err != nil {
		return 0, 0, err
	}
	atomicfile.SyncDir(filepath.Dir(path))
	return old.Size(), compacted.Size(), nil
}

// compactFrom copies src without its free pages to a new file dst.
func compactFrom(ctx context.Context, src *bbolt.DB, dst string) error {
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", dst, fs.ErrExist)
	}
	// NoSync is safe, because nothing uses the copy before the Sync at the end.
	to, err := openBolt(dst, &bbolt.Options{NoSync: true})
	if err != nil {
		return err
	}
	const batch = 4 << 20
	err = catchDamage(func() error { return bbolt.Compact(to, src, batch) })
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return errors.Join(err, os.Remove(dst))
	}
	return nil
}
