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

// A restore unpacks into a folder of the data directory, so that it works where nothing beside the directory may be
// written, in a container's volume or for a service's user. Once checked, that folder gets the name by which every
// process knows what the directory shall hold, and from then on whoever is killed, the next one to open the directory
// goes on:
//
//	.agentmesh-restore-*      being unpacked, of no meaning to anybody
//	.agentmesh-replace-TIME   what the directory shall hold; everything else goes to replaced-TIME, then it is renamed to
//	.agentmesh-place-TIME     whose files go up into the directory, the database last
//
// Who works on it holds the lock of the new database.
const (
	PrefixRestore  = ".agentmesh-restore-"
	prefixReplace  = ".agentmesh-replace-"
	prefixPlace    = ".agentmesh-place-"
	prefixReplaced = "replaced-"
)

// held lists what the directory holds, and what unfinished restores left there. What earlier restores put aside and
// what a file system makes for itself are neither.
func (h Dir) held() (names, left []string, err error) {
	entries, err := os.ReadDir(string(h))
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, PrefixRestore):
			left = append(left, name)
		case name == "lost+found", isReplacement(name):
		default:
			names = append(names, name)
		}
	}
	return names, left, nil
}

// dropUnfinished removes what restores left that were killed before they were decided: it holds private keys. A restore
// that runs keeps others from opening the database, so whoever has it open may call this.
func (h Dir) dropUnfinished() {
	_, left, err := h.held()
	if err != nil {
		return // somebody else says what is wrong with the directory
	}
	for _, name := range left {
		_ = os.RemoveAll(h.Path(name)) // what stays is tried again next time
	}
}

// isReplacement says whether a name of the data directory belongs to a restore that was decided.
func isReplacement(name string) bool {
	return strings.HasPrefix(name, prefixReplace) || strings.HasPrefix(name, prefixPlace) || strings.HasPrefix(name, prefixReplaced)
}

// replaceWith puts what stage holds in place of all that the directory holds. kept is where that went, "" for nothing.
func (h Dir) replaceWith(stage string) (kept string, err error) {
	held, _, err := h.held()
	if err != nil {
		return "", err
	}
	id := time.Now().UTC().Format("20060102-150405.000")
	if err := os.Rename(stage, h.Path(prefixReplace+id)); err != nil {
		return "", exit.Fail(exit.Config, fmt.Errorf("restore: %w", err))
	}
	atomicfile.SyncDir(string(h))
	if len(held) > 0 {
		kept = h.Path(prefixReplaced + id)
	}
	return kept, h.finishReplace()
}

// finishReplace goes on with a restore that was decided; mostly there is none.
func (h Dir) finishReplace() error {
	entries, err := os.ReadDir(string(h))
	if err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("read the data directory: %w", err))
	}
	for _, e := range entries {
		for _, phase := range []string{prefixReplace, prefixPlace} {
			id, ok := strings.CutPrefix(e.Name(), phase)
			if !ok {
				continue
			}
			err := h.finish(id, phase)
			if errors.Is(err, bolt.ErrLocked) {
				return h.InUse()
			}
			if err != nil {
				return exit.FailHint(exit.Config, fmt.Errorf("finish a restore: %w", err), "the next command on this data directory goes on with it")
			}
		}
	}
	return nil
}

// finish does what is left to do from a phase on.
func (h Dir) finish(id, phase string) error {
	release, err := bolt.Hold(filepath.Join(h.Path(phase+id), FileDatabase))
	switch {
	case errors.Is(err, fs.ErrNotExist) && phase == prefixPlace: // its last file has gone up
		return removeEmpty(h.Path(phase + id))
	case err != nil:
		return err
	}
	defer release()
	if phase == prefixReplace {
		held, _, err := h.held()
		if err != nil {
			return err
		}
		if len(held) > 0 {
			if err := h.move(string(h), h.Path(prefixReplaced+id), held); err != nil {
				return err
			}
		}
		if err := os.Rename(h.Path(prefixReplace+id), h.Path(prefixPlace+id)); err != nil {
			return err
		}
		atomicfile.SyncDir(string(h))
	}
	from := h.Path(prefixPlace + id)
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if e.Name() != FileDatabase {
			names = append(names, e.Name())
		}
	}
	if err := h.move(from, string(h), append(names, FileDatabase)); err != nil {
		return err
	}
	return removeEmpty(from)
}

// move renames entries of a directory into another, in their order.
func (h Dir) move(from, to string, names []string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	atomicfile.SyncDir(to)
	atomicfile.SyncDir(from)
	return nil
}

// removeEmpty removes a directory that another process may have removed just now.
func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
