package folder

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

var errPlaceTaken = errors.New("a file or symbolic link has the name of the thread's folder: remove it")

// MoveThread moves a thread to the folder of a state, which must exist, from the folders of all other states, and
// returns the new path of the thread. It creates the folder of a new thread. If a symbolic link is in the place of the
// thread's folder, the error is errPlaceTaken.
func MoveThread(root *os.Root, folder, ref string) (at string, err error) {
	at = path.Join("exchange", folder, ref)
	for _, f := range thread.Folders() {
		if f == folder {
			continue
		}
		if err := mergeFolders(root, path.Join("exchange", f, ref), at); err != nil {
			return at, err
		}
	}
	if err := root.MkdirAll(at, 0o700); err != nil {
		return at, err
	}
	info, err := root.Lstat(at)
	if err == nil && !info.IsDir() {
		err = errPlaceTaken
	}
	return at, err
}

// WriteThread writes the files of a thread to its path, and then removes those that they replace: the rest of a thread
// that had more files, and the file of version 1. Other tools never see a partly written file.
func WriteThread(root *os.Root, at string, files []thread.File) error {
	for _, f := range files {
		if err := atomicfile.WriteIn(root, path.Join(at, f.Name), []byte(f.Content)); err != nil {
			return err
		}
	}
	ref := path.Base(at)
	for n := stampOf(root, at, ref).Files - 1; n >= len(files); n-- { // a crash must leave no gap
		if err := root.Remove(path.Join(at, ThreadFileName(n, ref))); err != nil {
			return err
		}
	}
	for _, f := range thread.Folders() {
		if err := root.Remove(path.Join("exchange", f, ref+thread.FileSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// writeAttachments writes the attachments of a thread that are not at its path yet. read returns the bytes of one.
func writeAttachments(root *os.Root, at string, names []string, read func(name string) ([]byte, error)) error {
	for _, name := range names {
		if _, err := root.Lstat(path.Join(at, name)); err == nil {
			continue
		}
		data, err := read(name)
		if err != nil {
			return err
		}
		if err := atomicfile.WriteIn(root, path.Join(at, name), data); err != nil {
			return err
		}
	}
	return nil
}

// mergeFolders moves the folder of a thread from the path old to the path at. If both exist, for example because
// another tool has moved only some of the files, it moves the files that exist only in old, and removes the others from
// old.
func mergeFolders(root *os.Root, old, at string) error {
	info, err := root.Lstat(old)
	if err != nil || !info.IsDir() {
		return nil
	}
	info, err = root.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return root.Rename(old, at)
	case err != nil:
		return err
	case !info.IsDir():
		return errPlaceTaken
	}
	entries, err := fs.ReadDir(root.FS(), old)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := path.Join(old, e.Name()), path.Join(at, e.Name())
		switch _, err = root.Lstat(to); {
		case errors.Is(err, fs.ErrNotExist):
			err = root.Rename(from, to)
		case err == nil:
			err = root.Remove(from)
		}
		if err != nil {
			return err
		}
	}
	return root.Remove(old)
}
