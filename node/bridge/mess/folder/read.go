package folder

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// fileStamp tells whether the files of a thread are others than before.
type fileStamp struct {
	Mod   time.Time
	Size  int64
	Files int
}

func (s fileStamp) and(info fs.FileInfo) fileStamp {
	s.Size += info.Size()
	s.Files++
	if info.ModTime().After(s.Mod) {
		s.Mod = info.ModTime()
	}
	return s
}

// stampOf looks at the files of a thread. dir is below root; the fewer folders lie between, the less it costs.
func stampOf(root *os.Root, dir, ref string) (s fileStamp) {
	for n := range maxThreadFiles {
		info, err := root.Lstat(path.Join(dir, ThreadFileName(n, ref)))
		if err != nil {
			break
		}
		s = s.and(info)
	}
	return s
}

// maxThreadFiles bounds the files of one thread.
const maxThreadFiles = 100

func ThreadFileName(n int, ref string) string {
	return fmt.Sprintf("%03d-%s%s", n, ref, thread.FileSuffix)
}

// Place is where a thread lies, by its name: a folder, or a file of version 1.
type Place struct {
	Ref  string
	flat bool
}

// Places lists the names of a folder that are those of threads. What they name is not looked at.
func Places(sub *os.Root) ([]Place, error) {
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

// Stamp looks at the files of a thread. Its zero value is a link, or what holds no thread.
func (p Place) Stamp(sub *os.Root) (s fileStamp) {
	name := p.Ref
	if p.flat {
		name += thread.FileSuffix
	}
	switch info, err := sub.Lstat(name); {
	case err != nil:
	case p.flat && info.Mode().IsRegular():
		return s.and(info)
	case !p.flat && info.IsDir():
		return stampOf(sub, p.Ref, p.Ref)
	}
	return s
}

// How many threads of one folder are looked at in one poll, where nothing says that they changed: open ones, and those that
// have ended, where little happens. Of more than that some are, in turn. What is new in a folder is seen at once.
const (
	openLooks  = 1000
	endedLooks = 250
)

// IsDue says whether a thread is looked at in this round, as one of n in its folder.
func IsDue(ref, folder string, n, round int) bool {
	looks := openLooks
	if folder == endedFolders[0] || folder == endedFolders[1] {
		looks = endedLooks
	}
	turns := (n + looks - 1) / looks
	return turns < 2 || int(crc32.ChecksumIEEE([]byte(ref))%uint32(turns)) == round%turns
}

var endedFolders = [2]string{thread.FolderOf(thread.Completed), thread.FolderOf(thread.Cancelled)}

// read takes in what others wrote. all looks at every thread.
func (m *Mirror) read(ctx context.Context, root *os.Root, all bool) error {
	m.polls++
	pass := newProgress(m.log)
	for _, f := range thread.Folders() {
		if err := m.readFolder(ctx, root, f, all, &pass); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mirror) readFolder(ctx context.Context, root *os.Root, folder string, all bool, pass *progress) error {
	dir := "exchange/" + folder
	sub, err := root.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer sub.Close()
	list, err := Places(sub)
	if err != nil {
		return err
	}
	for i, p := range list {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pass.say("thread files are read", "folder", folder, "read", i, "of", len(list))
		at := path.Join(dir, p.Ref)
		before, known := m.seen[at]
		if known && !all && !IsDue(p.Ref, folder, len(list), m.polls) {
			continue
		}
		now := p.Stamp(sub)
		if known && now == before || now == m.left[at] || now.Files == 0 {
			continue
		}
		began := time.Now()
		if err := m.readThread(ctx, root, at, p.flat); err != nil {
			m.log.Warn("a thread file was left alone", "thread", p.Ref, "error", err)
		}
		m.apart += time.Since(began)
	}
	return nil
}

// readThread takes in what is new in the files of a thread, where they changed. What cannot be read is left alone until it
// changes; what could not be stored is read again.
func (m *Mirror) readThread(ctx context.Context, root *os.Root, at string, flat bool) error {
	stamp := fileStamp{}
	if sub, err := root.OpenRoot(path.Dir(at)); err == nil {
		stamp = Place{path.Base(at), flat}.Stamp(sub)
		sub.Close()
	}
	if stamp.Files == 0 {
		return nil
	}
	if before, known := m.seen[at]; known && before == stamp {
		return nil
	}
	parsed, err := ReadParsed(root, at, flat)
	if err == nil && !flat {
		err = importAttachments(ctx, m.x, root, threadPlace{at: at, ref: parsed.Thread.Ref}, func(name string, err error) {
			m.log.Warn("an attachment was left alone", "file", name, "error", err)
		})
	}
	if err == nil {
		err = m.x.TakeIn(ctx, parsed)
	}
	switch {
	case err == nil:
		m.seen[at] = stamp
		delete(m.left, at)
	case !retryable(err):
		m.left[at] = stamp
	}
	return err
}

// retryable says whether the same may work later: the store did not, or a limit is used up.
func retryable(err error) bool {
	if e, refused := errors.AsType[*wire.Error](err); refused {
		return e.Retry
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// ReadParsed reads the files of a thread whose folder, or file of version 1, is named by at.
func ReadParsed(root *os.Root, at string, flat bool) (thread.ParsedFile, error) {
	ref := path.Base(at)
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

// readFiles reads the files of a thread, each bounded.
func readFiles(root *os.Root, at, ref string, flat bool) ([][]byte, error) {
	if flat {
		data, err := readBounded(root, at+thread.FileSuffix)
		return [][]byte{data}, err
	}
	var out [][]byte
	for n := range maxThreadFiles {
		data, err := readBounded(root, path.Join(at, ThreadFileName(n, ref)))
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

// readBounded reads a regular file. What is no such file is not opened, and one that grows meanwhile is not followed.
func readBounded(root *os.Root, name string) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	refused := thread.Bad("", "the file is no regular one, or too large")
	if !info.Mode().IsRegular() || info.Size() > thread.MaxDocument {
		return nil, refused
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, thread.MaxDocument+1))
	if len(data) > thread.MaxDocument {
		return nil, refused
	}
	return data, err
}

// Find returns where a thread lies, "" where it is not there.
func Find(root *os.Root, ref string) (at string, flat bool) {
	for _, f := range thread.Folders() {
		at := path.Join("exchange", f, ref)
		if info, err := root.Lstat(at); err == nil && info.IsDir() {
			return at, false
		}
		if info, err := root.Lstat(at + thread.FileSuffix); err == nil && info.Mode().IsRegular() {
			return at, true
		}
	}
	return "", false
}
