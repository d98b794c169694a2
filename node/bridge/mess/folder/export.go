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

// Write writes the thread below a directory, which it creates if necessary, in the layout that [ImportDirectory] and
// other tools read: exchange/state=…/REF/. It moves the folder of an earlier export in another state. attachment returns
// the bytes of an attachment. Write returns the paths of the thread's files and attachments.
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
	at := path.Join("exchange", e.Folder, e.Ref)
	if err := root.MkdirAll(path.Dir(at), 0o700); err != nil {
		return nil, err
	}
	for _, f := range thread.Folders() {
		old := path.Join("exchange", f, e.Ref)
		if old != at {
			if err := MoveThread(root, old, at); err != nil {
				return nil, err
			}
		}
		if err := removeIfThere(root, old+thread.FileSuffix); err != nil { // version 1
			return nil, err
		}
	}
	if err := threadDir(root, at); err != nil {
		return nil, err
	}
	var names []string
	for _, f := range e.Files {
		if err := atomicfile.WriteIn(root, path.Join(at, f.Name), []byte(f.Content)); err != nil {
			return names, err
		}
		names = append(names, filepath.Join(dir, filepath.FromSlash(at), f.Name))
	}
	for n := len(e.Files); n < maxThreadFiles; n++ {
		if err := removeIfThere(root, path.Join(at, ThreadFileName(n, e.Ref))); err != nil {
			return names, err
		}
	}
	for _, name := range e.Attachments {
		names = append(names, filepath.Join(dir, filepath.FromSlash(at), name))
		if _, err := root.Lstat(path.Join(at, name)); err == nil {
			continue
		}
		data, err := attachment(name)
		if err != nil {
			return names, err
		}
		if err := atomicfile.WriteIn(root, path.Join(at, name), data); err != nil {
			return names, err
		}
	}
	return names, nil
}

func removeIfThere(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
