package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/node/atomicfile"
)

// offlineWait is how long Check, Compact and CompactInPlace wait for another process to let go of the file.
const offlineWait = 200 * time.Millisecond

// checkOffline says whether there is a database that may be opened.
func checkOffline(path string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	if err := checkMode(path); err != nil {
		return err
	}
	return preflight(path, offlineWait)
}

// openOffline opens an existing database for reading.
func openOffline(path string) (*bbolt.DB, error) {
	if err := checkOffline(path); err != nil {
		return nil, err
	}
	return openBolt(path, &bbolt.Options{ReadOnly: true, Timeout: offlineWait})
}

// Compact writes a copy of the database at src, which must not be open elsewhere, without its free pages to
// dst, which must not exist.
func Compact(ctx context.Context, src, dst string) error {
	if err := compact(ctx, src, dst); err != nil {
		return fmt.Errorf("compact %s: %w", src, err)
	}
	return nil
}

func compact(ctx context.Context, src, dst string) error {
	from, err := openOffline(src)
	if err != nil {
		return err
	}
	defer from.Close()
	return compactFrom(ctx, from, dst)
}

// CompactInPlace writes a copy of the database at path, which must not be open elsewhere, without its free pages
// beside it, checks the copy and puts it in place of the file, whose sizes before and after it returns. A copy that is not
// smaller is thrown away. After a crash the file is the old one or the new one.
func CompactInPlace(ctx context.Context, path string) (before, after int64, err error) {
	if before, after, err = compactInPlace(ctx, path); err != nil {
		return before, after, fmt.Errorf("compact %s: %w", path, err)
	}
	return before, after, nil
}

func compactInPlace(ctx context.Context, path string) (before, after int64, err error) {
	if err := checkOffline(path); err != nil {
		return 0, 0, err
	}
	// Alone, and until the new file has the name: what somebody wrote to the old one meanwhile would be lost.
	from, err := openBolt(path, &bbolt.Options{Timeout: offlineWait, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return 0, 0, err
	}
	defer from.Close()
	dst := path + ".backup-compact" // the next Open removes what a killed process left, as of a backup
	if err := os.Remove(dst); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, err
	}
	if err := compactFrom(ctx, from, dst); err != nil {
		return 0, 0, err
	}
	defer os.Remove(dst) // where it did not become the file
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
	if runtime.GOOS == "windows" { // it renames over no open file
		if err := from.Close(); err != nil {
			return 0, 0, err
		}
	}
	if err := os.Rename(dst, path); err != nil {
		return 0, 0, err
	}
	atomicfile.SyncDir(filepath.Dir(path))
	return old.Size(), compacted.Size(), nil
}

// compactFrom copies what from holds into a new file.
func compactFrom(ctx context.Context, from *bbolt.DB, dst string) error {
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", dst, fs.ErrExist)
	}
	// NoSync is safe here: the copy counts only after the Sync at its end.
	to, err := openBolt(dst, &bbolt.Options{Timeout: offlineWait, NoSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	const batch = 4 << 20
	err = readDamaged(func() error { return bbolt.Compact(to, from, batch) })
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
