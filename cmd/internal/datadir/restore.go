package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// A restore unpacks the archive into a folder inside the data directory, because a container's volume or a service's
// user may not be able to write beside the directory. The restore verifies the folder, then renames it. The rename is
// the decision point: if a process is killed later, the next process that opens the directory finishes the restore.
//
//	.agentmesh-restore-*  the archive while it is unpacked; if the restore is killed, a later process removes it
//	.agentmesh-place      its files move up into the directory, the database last
//
// A restore holds the lock of the directory. A process that works on a restore after its decision point holds the lock
// of the new database. On Windows, no process keeps the lock of a database, because that would prevent renames: see
// [bolt.Hold].
const (
	PrefixRestore = ".agentmesh-restore-"
	dirPlace      = ".agentmesh-place"
)

// listEntries returns the names of the agent's entries in the directory. stale are the folders of restores that were
// killed before their decision point. Neither list has the lock file or lost+found.
func (d Dir) listEntries() (names, stale []string, err error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, PrefixRestore):
			stale = append(stale, name)
		case name == "lost+found", name == FileLock:
		default:
			names = append(names, name)
		}
	}
	return names, stale, nil
}

// removeStaleRestores removes the folders of restores that were killed before their decision point. These folders
// contain private keys. If there are such folders and another process has the lock of the directory, such as a running
// restore, the error matches [ErrInUse].
func (d Dir) removeStaleRestores() error {
	if _, stale, err := d.listEntries(); err != nil || len(stale) == 0 {
		return nil // other code reports an unreadable directory
	}
	unlock, err := d.lockBriefly()
	if err != nil {
		return err
	}
	defer unlock()
	d.removeStale()
	return nil
}

// removeStale is the part of removeStaleRestores for a caller that has the lock of the directory.
func (d Dir) removeStale() {
	_, stale, err := d.listEntries()
	if err != nil {
		return
	}
	for _, name := range stale {
		_ = os.RemoveAll(d.Path(name)) // the next call tries again
	}
}

// lockBriefly is like [Dir.Lock], but unlock removes a lock file that lockBriefly made. A lock file that stays means
// that PostgreSQL was used. Windows cannot remove the file, which is harmless.
func (d Dir) lockBriefly() (unlock func(), err error) {
	existed := d.UsedPostgres()
	release, err := d.Lock()
	if err != nil {
		return nil, err
	}
	return func() {
		if !existed {
			_ = os.Remove(d.Path(FileLock))
		}
		release()
	}, nil
}

// place moves the content of stage, the folder of an unpacked archive, into the directory.
func (d Dir) place(stage string) error {
	if err := os.Rename(stage, d.Path(dirPlace)); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("restore: %w", err))
	}
	atomicfile.SyncDir(string(d))
	return d.finishRestore()
}

// finishRestore finishes a restore that has passed its decision point, if there is one.
func (d Dir) finishRestore() error {
	source := d.Path(dirPlace)
	if !exists(source) {
		return nil
	}
	err := d.moveUp(source)
	if errors.Is(err, bolt.ErrLocked) {
		return d.InUse()
	}
	if err != nil {
		return exit.FailHint(exit.Config, fmt.Errorf("finish a restore: %w", err), "the next command on this data directory continues the restore")
	}
	return nil
}

// moveUp moves the files of source into the directory, the database last, and removes source.
func (d Dir) moveUp(source string) error {
	release, err := bolt.Hold(filepath.Join(source, FileDatabase))
	if errors.Is(err, fs.ErrNotExist) { // the last file has been moved
		return removeEmpty(source)
	}
	if err != nil {
		return err
	}
	defer release()
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Name() != FileDatabase {
			names = append(names, e.Name())
		}
	}
	for _, name := range append(names, FileDatabase) {
		if err := os.Rename(filepath.Join(source, name), d.Path(name)); err != nil {
			return err
		}
	}
	atomicfile.SyncDir(string(d))
	return removeEmpty(source)
}

// removeEmpty removes an empty directory. It succeeds if another process has just removed the directory.
func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
