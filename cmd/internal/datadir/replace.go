package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// A restore unpacks the archive into a folder inside the data directory, because a container's volume or a service's
// user may not be able to write beside the directory. The restore verifies the folder, then renames it. The rename is
// the decision point: if a process is killed later, the next process that opens the directory finishes the restore.
//
//	.agentmesh-restore-*      the archive while it is unpacked; if the restore is killed, a later process removes it
//	.agentmesh-replace-TIME   the future content of the directory; everything else moves to replaced-TIME, then the
//	                          folder is renamed to .agentmesh-place-TIME
//	.agentmesh-place-TIME     its files move up into the directory, the database last
//
// A restore holds the lock of the directory and, if the directory has a database, the lock of the database. A process
// that works on a restore after its decision point holds the lock of the new database. On Windows, no process keeps
// the lock of a database, because that would prevent renames: see [bolt.Hold].
const (
	PrefixRestore  = ".agentmesh-restore-"
	prefixReplace  = ".agentmesh-replace-"
	prefixPlace    = ".agentmesh-place-"
	prefixReplaced = "replaced-"
)

// listEntries returns the names of the agent's entries in the directory. stale are the folders of restores that were
// killed before their decision point. Neither list has the folders of restores after that point, the lock file, or
// lost+found.
func (d Dir) listEntries() (names, stale []string, err error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, PrefixRestore):
			stale = append(stale, name)
		case name == "lost+found", name == FileLock, isReplacement(name):
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

// isReplacement reports whether a name in the data directory belongs to a restore after its decision point.
func isReplacement(name string) bool {
	return strings.HasPrefix(name, prefixReplace) || strings.HasPrefix(name, prefixPlace) || strings.HasPrefix(name, prefixReplaced)
}

// replaceWith replaces the content of the directory with that of stage, the folder of an unpacked archive. It returns
// the folder that keeps the old content, or "" if the directory was empty.
func (d Dir) replaceWith(stage string) (kept string, err error) {
	id := time.Now().UTC().Format("20060102-150405.000")
	if err := os.Rename(stage, d.Path(prefixReplace+id)); err != nil {
		return "", exit.Fail(exit.Config, fmt.Errorf("restore: %w", err))
	}
	atomicfile.SyncDir(string(d))
	err = d.finishReplace()
	if kept = d.Path(prefixReplaced + id); !exists(kept) {
		kept = ""
	}
	return kept, err
}

// finishReplace finishes a restore that has passed its decision point, if there is one.
func (d Dir) finishReplace() error {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("read the data directory: %w", err))
	}
	for _, e := range entries {
		for _, phase := range []string{prefixReplace, prefixPlace} {
			id, ok := strings.CutPrefix(e.Name(), phase)
			if !ok {
				continue
			}
			err := d.finishPhase(id, phase)
			if errors.Is(err, bolt.ErrLocked) {
				return d.InUse()
			}
			if err != nil {
				return exit.FailHint(exit.Config, fmt.Errorf("finish a restore: %w", err), "the next command on this data directory continues the restore")
			}
		}
	}
	return nil
}

// finishPhase runs the remaining phases of the restore with this id, beginning with phase.
func (d Dir) finishPhase(id, phase string) error {
	release, err := bolt.Hold(filepath.Join(d.Path(phase+id), FileDatabase))
	switch {
	case errors.Is(err, fs.ErrNotExist) && phase == prefixPlace: // the last file has been moved
		return removeEmpty(d.Path(phase + id))
	case err != nil:
		return err
	}
	defer release()
	if phase == prefixReplace {
		names, _, err := d.listEntries()
		if err != nil {
			return err
		}
		if err := moveEntries(string(d), d.Path(prefixReplaced+id), names); err != nil {
			return err
		}
		if err := os.Rename(d.Path(prefixReplace+id), d.Path(prefixPlace+id)); err != nil {
			return err
		}
		atomicfile.SyncDir(string(d))
	}
	source := d.Path(prefixPlace + id)
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	var names, inTheWay []string
	for _, e := range entries {
		if e.Name() != FileDatabase {
			names = append(names, e.Name())
		}
		if exists(d.Path(e.Name())) { // for example, the archive contains replaced-TIME of an earlier restore
			inTheWay = append(inTheWay, e.Name())
		}
	}
	if err := moveEntries(string(d), d.Path(prefixReplaced+id), inTheWay); err != nil {
		return err
	}
	if err := moveEntries(source, string(d), append(names, FileDatabase)); err != nil {
		return err
	}
	return removeEmpty(source)
}

// moveEntries moves the named entries of the directory source to target, which it makes if necessary. Without names, it
// does nothing.
func moveEntries(source, target string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := os.MkdirAll(target, 0o700); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(source, name), filepath.Join(target, name)); err != nil {
			return err
		}
	}
	atomicfile.SyncDir(target)
	atomicfile.SyncDir(source)
	return nil
}

// removeEmpty removes an empty directory. It succeeds if another process has just removed the directory.
func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
