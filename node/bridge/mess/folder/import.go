package folder

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// importBatch is the number of threads that an import stores together.
const importBatch = 100

// maxSkipped bounds the reasons in the result of an import.
const maxSkipped = 20

// Imported is the result of an import.
type Imported struct {
	Threads  int      `json:"imported"`
	Existing int      `json:"here,omitempty"` // threads that the exchange already had
	Unread   int      `json:"left,omitempty"` // files that could not be read
	Reasons  []string `json:"reasons,omitempty"`
}

// errNoThreadFile names the files that an import looks for.
var errNoThreadFile = thread.Bad("", "found no thread file; looked for exchange/state={received,executing,finished,canceled}/REF/000-REF"+thread.FileSuffix+
	" and …/REF"+thread.FileSuffix+", where REF is like 2026-02-01-001")

// Import adopts the threads below a path, with their attachments, unless the exchange already has them. The path is a
// thread file, a directory that contains exchange/, that folder, one of its state folders, or the folder of a thread.
// progress is called from time to time. Files in a directory that are not threads are skipped.
func Import(ctx context.Context, x *exchange.Exchange, log *slog.Logger, name string, progress func(done, all int)) (Imported, error) {
	var res Imported
	if err := x.Load(); err != nil {
		return res, err
	}
	if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
		return importFile(ctx, x, name)
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return res, thread.Bad("path", "cannot be opened")
	}
	defer root.Close()
	list, err := findThreads(root)
	if err != nil {
		return res, err
	}
	if len(list) == 0 {
		return res, errNoThreadFile
	}
	var batch []thread.ParsedFile
	flush := func() error {
		threads, err := x.Adopt(ctx, batch)
		res.Threads += len(threads)
		batch = nil
		return err
	}
	skip := func(at string, err error) {
		log.Warn("a file was skipped", "file", at, "error", err)
		if res.Unread++; len(res.Reasons) < maxSkipped {
			res.Reasons = append(res.Reasons, at+": "+skipReason(err))
		}
	}
	seen := make(map[string]bool, len(list))
	for i, f := range list {
		if i%importBatch == 0 || i == len(list)-1 {
			progress(i+1, len(list))
		}
		if seen[f.ref] {
			continue // the thread is in two folders
		}
		if x.Has(f.ref) {
			seen[f.ref] = true
			res.Existing++
			continue
		}
		parsed, err := ReadThread(root, f.at, f.ref, f.flat)
		if err != nil {
			skip(f.at, err)
			continue
		}
		seen[f.ref] = true
		if !f.flat {
			if err := importAttachments(ctx, x, root, f, skip); err != nil {
				return res, err
			}
		}
		if batch = append(batch, parsed); len(batch) == importBatch {
			if err := flush(); err != nil {
				return res, err
			}
		}
	}
	if len(batch) > 0 {
		err = flush()
	}
	return res, err
}

// importFile adopts the thread in one file, whatever the name of the file.
func importFile(ctx context.Context, x *exchange.Exchange, name string) (Imported, error) {
	root, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return Imported{}, thread.Bad("path", "cannot be opened")
	}
	defer root.Close()
	data, err := readRegular(root, filepath.Base(name), thread.MaxDocument, thread.TooLarge("the file is larger than 2 MiB"))
	if err != nil {
		return Imported{}, err
	}
	f, err := thread.ParseFiles(data)
	if err != nil {
		return Imported{}, err
	}
	if x.Has(f.Thread.Ref) {
		return Imported{Existing: 1}, nil
	}
	_, err = x.Adopt(ctx, []thread.ParsedFile{f})
	return Imported{Threads: 1}, err
}

// skipReason returns the reason that the owner reads; it may contain an error of the file system.
func skipReason(err error) string {
	switch _, refused := errors.AsType[*wire.Error](err); {
	case refused:
		return thread.PublicText(err)
	case errors.Is(err, fs.ErrNotExist):
		return "contains no 000-REF" + thread.FileSuffix + ", where REF is the name of the folder"
	}
	return err.Error()
}

// threadPlace is the place of a thread in a directory.
type threadPlace struct {
	at, ref string
	flat    bool // the thread is one file of version 1, which has the path at+thread.FileSuffix
}

// findThreads returns the places of the threads in a directory. It looks only at the names and opens no file.
func findThreads(root *os.Root) ([]threadPlace, error) {
	var list []threadPlace
	dirs := []string{"."}
	for _, f := range thread.Folders() {
		dirs = append(dirs, f, "exchange/"+f)
	}
	for _, dir := range dirs {
		d, err := root.Open(dir)
		if err != nil {
			continue
		}
		entries, err := d.ReadDir(-1)
		d.Close()
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			ref, isFile := strings.CutSuffix(e.Name(), thread.FileSuffix)
			first, isFirst := strings.CutPrefix(ref, "000-")
			switch {
			case isFile && dir == "." && isFirst && thread.IsThreadRef(first) && e.Type().IsRegular(): // dir is the folder of a thread
				list = append(list, threadPlace{dir, first, false})
			case thread.IsThreadRef(ref) && (isFile && e.Type().IsRegular() || !isFile && e.IsDir()):
				list = append(list, threadPlace{path.Join(dir, ref), ref, isFile})
			}
		}
	}
	slices.SortFunc(list, func(a, b threadPlace) int { return strings.Compare(a.at, b.at) })
	return list, nil
}

// importAttachments stores the attachments beside a thread, before the messages of the thread name them. It replaces no
// stored file.
func importAttachments(ctx context.Context, x *exchange.Exchange, root *os.Root, f threadPlace, skip func(at string, err error)) error {
	entries, err := fs.ReadDir(root.FS(), f.at)
	if err != nil {
		skip(f.at, err)
		return nil
	}
	existing, err := x.Attachments(ctx, f.ref)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !thread.IsAttachmentName(e.Name()) || slices.Contains(existing, e.Name()) {
			continue
		}
		data, err := ReadAttachment(root, path.Join(f.at, e.Name()))
		if err != nil {
			skip(path.Join(f.at, e.Name()), err)
			continue
		}
		_, mime := thread.Sniff(data)
		err = x.KeepAttachment(ctx, f.ref, exchange.Attachment{Name: e.Name(), Mime: mime, Size: len(data), Data: data})
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return nil
}

// ReadAttachment reads a regular file within the size limit of an upload.
func ReadAttachment(root *os.Root, name string) ([]byte, error) {
	return readRegular(root, name, thread.MaxUpload, thread.Bad("", "is not a regular file, or is larger than 10 MiB"))
}

// ImportCall is the owner's call that imports a directory, or a thread file, of this machine.
type ImportCall struct {
	Path string `json:"path"`
}

// ImportProgress is one line of the answer to an [ImportCall]. Only the last line has Ended set, and the result.
type ImportProgress struct {
	Done int `json:"done"`
	All  int `json:"all"`
	Imported
	Ended bool   `json:"ended,omitempty"`
	Error string `json:"error,omitempty"`
}
