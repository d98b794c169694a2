package exchange

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// File is a file that a block names and that becomes an attachment: a file of the owner (file://), an attachment of an
// older thread, or a file of a foreign thread.
type File struct {
	Failure    string // why the file is missing; "" if Data has it
	Name, Mime string
	Data       []byte
	copied     bool // an attachment of an older thread (see [tx.copyRequest])
}

// readOwnerFiles reads the files that a block of the owner names, if a folder for them is configured. Otherwise the
// references stay text.
func (t *tx) readOwnerFiles(b thread.Block) error {
	if t.x.cfg.Files == "" || !t.who.Owner {
		return nil
	}
	for i, e := range b {
		list, _ := e.Body.Get(thread.ContentKey[e.Type])
		for c := range list.Elems() {
			if c.Len() != 1 {
				continue
			}
			uri := thread.ResourceURI(c.Members()[0].Key, c.At(0))
			if _, have := t.files[uri]; have || len(uri) < 5 || !strings.EqualFold(uri[:5], "file:") {
				continue
			}
			name, ok := strings.CutPrefix(uri[5:], "//")
			if !ok {
				return thread.Bad(thread.EntryPath(i, e)+"."+thread.ContentKey[e.Type], "a file is named by file://NAME")
			}
			f, err := readOwnerFile(t.x.cfg.Files, name)
			if err != nil {
				return withEntryPath(err, thread.EntryPath(i, e)+"."+thread.ContentKey[e.Type])
			}
			if t.files == nil {
				t.files = map[string]File{}
			}
			t.files[uri] = f
		}
	}
	return nil
}

// readOwnerFile reads a regular file below dir through an os.Root: neither its name nor a symbolic link leads out of
// dir (MESS-63).
func readOwnerFile(dir, name string) (f File, err error) {
	const outside = "must lie in the folder mess.attachments, without .. or %"
	if filepath.IsAbs(name) {
		if name, err = filepath.Rel(dir, name); err != nil {
			return f, thread.Bad("", outside)
		}
	}
	if !filepath.IsLocal(name) || strings.ContainsAny(name, "%\x00\\") {
		return f, thread.Bad("", outside)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return f, thread.Bad("", "mess.attachments cannot be opened")
	}
	defer root.Close()
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, thread.Bad("", "names no file")
	case err != nil:
		return f, thread.Bad("", outside)
	case !info.Mode().IsRegular() || info.Size() == 0:
		return f, thread.Bad("", "must be a file that is not empty")
	case info.Size() > thread.MaxUpload:
		return f, thread.TooLarge("the file is larger than 10 MiB")
	}
	if f.Data, err = root.ReadFile(name); err != nil {
		return f, thread.Bad("", "cannot be read")
	}
	f.Name = filepath.Base(name)
	_, f.Mime = thread.Sniff(f.Data)
	return f, nil
}
