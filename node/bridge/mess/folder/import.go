package folder

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// importBatch is how many threads one commit takes in.
const importBatch = 100

// maxLeft is how many of the files that were left alone are named.
const maxLeft = 20

// Imported is what came of the import of a directory.
type Imported struct {
	Imported int      `json:"imported"`
	Here     int      `json:"here,omitempty"` // found, and here already
	Left     int      `json:"left,omitempty"` // files that could not be read
	Reasons  []string `json:"reasons,omitempty"`
}

// errNoThreadFile says what an import looks for.
var errNoThreadFile = thread.Bad("", "no thread file is there; looked for exchange/state={received,executing,finished,canceled}/REF/000-REF"+thread.FileSuffix+
	" and …/REF"+thread.FileSuffix+", where REF is like 2026-02-01-001")

// ImportDirectory takes over every thread of a directory of files that is not here yet, in one pass, with its attachments.
// The directory holds exchange/, or is that, one of its folders, or the folder of a thread. progress is called as it goes.
// A file that is no thread is left alone.
func ImportDirectory(ctx context.Context, x *exchange.Exchange, log *slog.Logger, dir string, progress func(done, all int)) (Imported, error) {
	var res Imported
	if err := x.Load(); err != nil {
		return res, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return res, thread.Bad("dir", "cannot be opened")
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
		res.Imported += len(threads)
		batch = nil
		return err
	}
	left := func(at string, err error) {
		log.Warn("a file was left alone", "file", at, "error", err)
		if res.Left++; len(res.Reasons) < maxLeft {
			res.Reasons = append(res.Reasons, at+": "+leftBecause(err))
		}
	}
	seen := make(map[string]bool, len(list))
	for i, f := range list {
		if i%importBatch == 0 || i == len(list)-1 {
			progress(i+1, len(list))
		}
		if seen[f.ref] {
			continue // it lies in two folders
		}
		if x.Has(f.ref) {
			seen[f.ref] = true
			res.Here++
			continue
		}
		files, err := readFiles(root, f.at, f.ref, f.flat)
		var parsed thread.ParsedFile
		if err == nil {
			if parsed, err = thread.ParseFiles(files...); err == nil && parsed.Thread.Ref != f.ref {
				err = thread.Bad("envelope.ref", "differs from the name of the file")
			}
		}
		if err != nil {
			left(f.at, err)
			continue
		}
		seen[f.ref] = true
		if !f.flat {
			if err := importAttachments(ctx, x, root, f, left); err != nil {
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
		return res, flush()
	}
	return res, nil
}

// leftBecause is the owner's to read: it may name what the file system said.
func leftBecause(err error) string {
	switch _, refused := errors.AsType[*wire.Error](err); {
	case refused:
		return thread.PublicText(err)
	case errors.Is(err, fs.ErrNotExist):
		return "holds no 000-REF" + thread.FileSuffix + " of its name"
	}
	return err.Error()
}

// threadPlace is where a thread lies below a root.
type threadPlace struct {
	at, ref string
	flat    bool // version 1: a file, whose name begins with at
}

// findThreads lists the threads of a directory by their names.
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
			ref, file := strings.CutSuffix(e.Name(), thread.FileSuffix)
			first, isFirst := strings.CutPrefix(ref, "000-")
			switch {
			case file && dir == "." && isFirst && thread.IsThreadRef(first) && e.Type().IsRegular():
				list = append(list, threadPlace{dir, first, false})
			case thread.IsThreadRef(ref) && (file && e.Type().IsRegular() || !file && e.IsDir()):
				list = append(list, threadPlace{path.Join(dir, ref), ref, file})
			}
		}
	}
	slices.SortFunc(list, func(a, b threadPlace) int { return strings.Compare(a.at, b.at) })
	return list, nil
}

// importAttachments stores the attachments that lie with a thread, before what names them is taken in. One that is there
// already stays as it is.
func importAttachments(ctx context.Context, x *exchange.Exchange, root *os.Root, f threadPlace, left func(at string, err error)) error {
	entries, err := fs.ReadDir(root.FS(), f.at)
	if err != nil {
		left(f.at, err)
		return nil
	}
	here, err := x.Attachments(ctx, f.ref)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !thread.AttachmentName.MatchString(e.Name()) || slices.Contains(here, e.Name()) {
			continue
		}
		data, err := ReadAttachment(root, path.Join(f.at, e.Name()))
		if err != nil {
			left(path.Join(f.at, e.Name()), err)
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

// ReadAttachment reads a regular file of the size that an upload may have.
func ReadAttachment(root *os.Root, name string) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > thread.MaxUpload {
		return nil, thread.Bad("", "is no regular file, or larger than 10 MiB")
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, thread.MaxUpload))
}

// ImportCall asks for the import of a directory of this machine. It is the owner's.
type ImportCall struct {
	Dir string `json:"dir"`
}

// ImportProgress is one line of the answer; the last one has Ended.
type ImportProgress struct {
	Done int `json:"done"`
	All  int `json:"all"`
	Imported
	Ended bool   `json:"ended,omitempty"`
	Error string `json:"error,omitempty"`
}
