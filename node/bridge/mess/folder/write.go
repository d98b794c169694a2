package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

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

// Export is a thread as files of version 2, as the owner receives it.
type Export struct {
	Ref         string        `json:"ref"`
	Folder      string        `json:"folder"` // the folder of its state, such as state=finished
	Files       []thread.File `json:"files"`
	Attachments []string      `json:"attachments"`
}

// check checks the names against MESS-46, because they come over a connection and become names of files.
func (e Export) check() error {
	ok := thread.IsThreadRef(e.Ref) && slices.Contains(thread.Folders(), e.Folder)
	for i, f := range e.Files {
		ok = ok && f.Name == ThreadFileName(i, e.Ref)
	}
	for _, name := range e.Attachments {
		ok = ok && thread.IsAttachmentName(name)
	}
	if !ok {
		return fmt.Errorf("the thread %q has a file name that is not valid in a thread folder", e.Ref)
	}
	return nil
}

// Write writes the thread below a directory, which it creates if necessary, in the layout that [Import] and
// other tools read: exchange/state=…/REF/. If an earlier export is in the folder of another state, Write moves it.
// attachment returns the bytes of an attachment. Write returns the paths of the thread's files and attachments.
func (e Export) Write(dir string, attachment func(name string) ([]byte, error)) ([]string, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := root.MkdirAll(path.Join("exchange", e.Folder), 0o700); err != nil {
		return nil, err
	}
	at, err := MoveThread(root, e.Folder, e.Ref)
	if err == nil {
		err = WriteThread(root, at, e.Files)
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range e.Files {
		names = append(names, filepath.Join(dir, filepath.FromSlash(at), f.Name))
	}
	for _, name := range e.Attachments {
		names = append(names, filepath.Join(dir, filepath.FromSlash(at), name))
	}
	return names, writeAttachments(root, at, e.Attachments, attachment)
}
