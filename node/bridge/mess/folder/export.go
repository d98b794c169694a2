package folder

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

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
