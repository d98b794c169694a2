package folder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// fileStamp is compared with an older one to detect a change of the files of a thread.
type fileStamp struct {
	Mod   time.Time // of the file that changed last
	Size  int64     // of all files
	Files int
}

func (s fileStamp) add(info fs.FileInfo) fileStamp {
	s.Size += info.Size()
	s.Files++
	if info.ModTime().After(s.Mod) {
		s.Mod = info.ModTime()
	}
	return s
}

// stampOf returns the stamp of the files of a thread. dir is the folder of the thread, as a path below root.
func stampOf(root *os.Root, dir, ref string) (s fileStamp) {
	for n := range maxThreadFiles {
		info, err := root.Lstat(path.Join(dir, ThreadFileName(n, ref)))
		if err != nil {
			break
		}
		s = s.add(info)
	}
	return s
}

// stampAt returns the stamp of the thread at a place: at is its path without the suffix of a file, and flat means that
// it is a file of version 1.
func stampAt(root *os.Root, at string, flat bool) fileStamp {
	sub, err := root.OpenRoot(path.Dir(at))
	if err != nil {
		return fileStamp{}
	}
	defer sub.Close()
	return Place{path.Base(at), flat}.Stamp(sub)
}

// WasJustWritten reports whether another tool may still be writing the files of the thread at a place.
func WasJustWritten(root *os.Root, at string, flat bool) bool {
	return time.Since(stampAt(root, at, flat).Mod).Abs() < writeGrace
}

const maxThreadFiles = 100

// ThreadFileName returns the name of file number n of a thread.
func ThreadFileName(n int, ref string) string {
	return fmt.Sprintf("%03d-%s%s", n, ref, thread.FileSuffix)
}

// Place is the place of a thread in a state folder.
type Place struct {
	Ref  string
	flat bool // a file of version 1 rather than a folder
}

// places returns the places in a folder whose names are those of threads.
func places(sub *os.Root) ([]Place, error) {
	dir, err := sub.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	var out []Place
	for _, name := range names {
		if ref, flat := strings.CutSuffix(name, thread.FileSuffix); thread.IsThreadRef(ref) {
			out = append(out, Place{ref, flat})
		}
	}
	return out, err
}

// Walk calls visit for every place of a thread in a directory until visit returns an error. sub is the state folder,
// and the place is number i of n in it.
func Walk(root *os.Root, visit func(folder string, sub *os.Root, p Place, i, n int) error) error {
	for _, f := range thread.Folders() {
		sub, err := root.OpenRoot("exchange/" + f)
		if err != nil {
			return err
		}
		list, err := places(sub)
		for i := 0; i < len(list) && err == nil; i++ {
			err = visit(f, sub, list[i], i, len(list))
		}
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Stamp returns the stamp of the files of a thread, or the zero value for a symbolic link or an empty place.
func (p Place) Stamp(sub *os.Root) (s fileStamp) {
	name := p.Ref
	if p.flat {
		name += thread.FileSuffix
	}
	switch info, err := sub.Lstat(name); {
	case err != nil:
	case p.flat && info.Mode().IsRegular():
		return s.add(info)
	case !p.flat && info.IsDir():
		return stampOf(sub, p.Ref, p.Ref)
	}
	return s
}

// read applies what others wrote.
func (m *Mirror) read(ctx context.Context, root *os.Root) error {
	pass := newProgress(m.log)
	return Walk(root, func(folder string, sub *os.Root, p Place, i, n int) error {
		pass.report("reading thread files", "folder", folder, "read", i, "of", n)
		at := path.Join("exchange", folder, p.Ref)
		before, known := m.seen[at]
		stamp := p.Stamp(sub)
		if known && stamp == before || stamp == m.unreadable[at] || stamp.Files == 0 {
			return ctx.Err() // nothing new
		}
		began := time.Now()
		if err := m.readThread(ctx, root, at, p.flat); err != nil {
			m.log.Warn("a thread file was skipped", "thread", p.Ref, "error", err)
		}
		m.importTime += time.Since(began)
		return ctx.Err()
	})
}

// readThread applies the changes in the files of a thread. A file that cannot be parsed is skipped until it changes. If
// the result could not be stored, the file is read again.
func (m *Mirror) readThread(ctx context.Context, root *os.Root, at string, flat bool) error {
	stamp := stampAt(root, at, flat)
	if stamp.Files == 0 {
		return nil
	}
	if before, known := m.seen[at]; known && before == stamp {
		return nil
	}
	parsed, err := ReadThread(root, at, path.Base(at), flat)
	if err == nil && !flat {
		err = importAttachments(ctx, m.x, root, threadPlace{at: at, ref: parsed.Thread.Ref}, func(name string, err error) {
			m.log.Warn("an attachment was skipped", "file", name, "error", err)
		})
	}
	if err == nil {
		err = m.x.ImportUpdate(ctx, parsed)
	}
	switch {
	case err == nil:
		m.seen[at] = stamp
		delete(m.unreadable, at)
	case !IsRetryable(err):
		m.unreadable[at] = stamp
	}
	return err
}

// IsRetryable reports whether a read or import failed because of the disk, the store or a limit, and may succeed later.
func IsRetryable(err error) bool {
	if e, refused := errors.AsType[*wire.Error](err); refused {
		return e.Retry
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// ReadThread reads and parses the files of the thread ref at a place.
func ReadThread(root *os.Root, at, ref string, flat bool) (thread.ParsedFile, error) {
	files, err := readFiles(root, at, ref, flat)
	if err != nil {
		return thread.ParsedFile{}, err
	}
	f, err := thread.ParseFiles(files...)
	if err == nil && f.Thread.Ref != ref {
		err = thread.Bad("envelope.ref", "differs from the name of the file")
	}
	return f, err
}

// readFiles reads the files of a thread, each within the size limit.
func readFiles(root *os.Root, at, ref string, flat bool) ([][]byte, error) {
	errRefused := thread.Bad("", "the file is not a regular file, or is too large")
	if flat {
		data, err := readRegular(root, at+thread.FileSuffix, thread.MaxDocument, errRefused)
		return [][]byte{data}, err
	}
	var out [][]byte
	for n := range maxThreadFiles {
		data, err := readRegular(root, path.Join(at, ThreadFileName(n, ref)), thread.MaxDocument, errRefused)
		if errors.Is(err, fs.ErrNotExist) && n > 0 {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return out, nil
}

// readRegular reads a regular file of at most limit bytes. It opens nothing else, and refuses a file that grows beyond
// the limit meanwhile. errRefused is the error for any other file.
func readRegular(root *os.Root, name string, limit int64, errRefused error) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, errRefused
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readLimited(f, limit, errRefused)
}

// readLimited reads r. If it has more than limit bytes, readLimited returns errTooLarge.
func readLimited(r io.Reader, limit int64, errTooLarge error) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if int64(len(data)) > limit {
		return nil, errTooLarge
	}
	return data, err
}

// Find returns the first place of a thread, or "" if the directory does not have the thread.
func Find(root *os.Root, ref string) (at string, flat bool) {
	for at, flat := range findAll(root, ref) {
		return at, flat
	}
	return "", false
}

// findAll returns all places of a thread. A thread has several places, for example, after a git merge, or while another
// tool moves the thread.
func findAll(root *os.Root, ref string) iter.Seq2[string, bool] {
	return func(yield func(at string, flat bool) bool) {
		for _, f := range thread.Folders() {
			at := path.Join("exchange", f, ref)
			if info, err := root.Lstat(at); err == nil && info.IsDir() && !yield(at, false) {
				return
			}
			if info, err := root.Lstat(at + thread.FileSuffix); err == nil && info.Mode().IsRegular() && !yield(at, true) {
				return
			}
		}
	}
}
