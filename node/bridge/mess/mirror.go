package mess

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// pollEvery is how often a directory is looked at (MESS-51).
const pollEvery = 5 * time.Second

// mirror keeps the threads of the exchange in a directory that other tools read and append to. The store is the truth:
// what the tools add is taken in through the state machine, and then the files are written anew.
//
// Everything goes through one os.Root, so no name leads out of the directory.
type mirror struct {
	x     *Exchange
	dir   string
	log   *slog.Logger
	mu    sync.Mutex
	dirty map[string]bool
	wake  chan struct{}
	seen  map[string]fileStamp // thread directory → what it looked like when it was read or written last
}

// fileStamp tells whether a file is another one than before.
type fileStamp struct {
	mod  time.Time
	size int64
	at   string // folder
}

func newMirror(x *Exchange, dir string, log *slog.Logger) *mirror {
	return &mirror{x: x, dir: dir, log: log, dirty: map[string]bool{}, wake: make(chan struct{}, 1), seen: map[string]fileStamp{}}
}

// changed notes threads that must be written.
func (m *mirror) changed(refs []string) {
	m.mu.Lock()
	for _, ref := range refs {
		m.dirty[ref] = true
	}
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mirror) take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var refs []string
	for ref := range m.dirty {
		refs = append(refs, ref)
	}
	clear(m.dirty)
	slices.Sort(refs)
	return refs
}

// openLayout makes the folders of a thread directory and returns it as a root, beyond which nothing is opened.
func openLayout(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range folders() {
		if err := root.MkdirAll("exchange/"+f, 0o700); err != nil {
			root.Close()
			return nil, err
		}
	}
	return root, nil
}

// run writes what changed and reads what others wrote, until ctx ends.
func (m *mirror) run(ctx context.Context) error {
	root, err := openLayout(m.dir)
	if err != nil {
		return fmt.Errorf("open the thread directory: %w", err)
	}
	defer root.Close()
	if err := m.missed(ctx, root); err != nil && ctx.Err() == nil {
		m.log.Error("the thread directory could not be read", "error", err)
	}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		if err := m.sync(ctx, root); err != nil && ctx.Err() == nil {
			m.log.Error("the thread directory could not be kept", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-poll.C:
		}
	}
}

// missed reads everything that is there, and notes the threads that have no files: a crash came before they were written.
func (m *mirror) missed(ctx context.Context, root *os.Root) error {
	if err := m.x.load(); err != nil {
		return err
	}
	if err := m.read(ctx, root); err != nil {
		return err
	}
	refs, _ := m.x.index.page(allThreads, position{}, math.MaxInt, func(e *entry) bool {
		_, there := m.seen[e.ref]
		return !there
	})
	m.changed(refs)
	return nil
}

// sync reads, then writes.
func (m *mirror) sync(ctx context.Context, root *os.Root) error {
	if err := m.x.load(); err != nil {
		return err
	}
	if err := m.read(ctx, root); err != nil {
		return err
	}
	for _, ref := range m.take() {
		if err := m.write(ctx, root, ref); err != nil {
			m.changed([]string{ref})
			return err
		}
	}
	return nil
}

// write puts a thread where its state says, in files that are whole at every moment.
func (m *mirror) write(ctx context.Context, root *os.Root, ref string) error {
	if !validThreadRef(ref) {
		return nil
	}
	t, err := m.x.read(ctx, ref, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	messages, err := m.x.Messages(ctx, ref)
	if err != nil {
		return err
	}
	at := path.Join("exchange", folder(t.Status), ref)
	for _, f := range folders() {
		old := path.Join("exchange", f, ref)
		if old == at {
			continue
		}
		if _, err := root.Lstat(old); err == nil {
			if err := root.Rename(old, at); err != nil {
				return err
			}
		}
		if err := root.Remove(old + fileEnd); err != nil && !errors.Is(err, fs.ErrNotExist) { // version 1
			return err
		}
	}
	if err := root.MkdirAll(at, 0o700); err != nil {
		return err
	}
	for _, f := range ThreadFiles(t, messages) {
		if err := writeWhole(root, path.Join(at, f.Name), []byte(f.Content)); err != nil {
			return err
		}
	}
	if err := root.Remove(at + fileEnd); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := m.writeAttachments(ctx, root, at, ref); err != nil {
		return err
	}
	m.seen[ref] = stampOf(root, at, ref)
	return nil
}

func (m *mirror) writeAttachments(ctx context.Context, root *os.Root, at, ref string) error {
	names, err := m.x.attachments(ctx, ref)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := root.Lstat(path.Join(at, name)); err == nil {
			continue
		}
		a, err := m.x.Attachment(ctx, Owner("file"), ref, name)
		if err != nil {
			return err
		}
		if err := writeWhole(root, path.Join(at, name), a.Data); err != nil {
			return err
		}
	}
	return nil
}

// writeWhole writes to a temporary name, syncs and renames (MESS-50).
func writeWhole(root *os.Root, name string, data []byte) error {
	tmp := path.Join(path.Dir(name), "."+path.Base(name)+".tmp")
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return root.Rename(tmp, name)
}

func stampOf(root *os.Root, dir, ref string) fileStamp {
	s := fileStamp{at: dir}
	for n := range 100 {
		info, err := root.Lstat(path.Join(dir, fmt.Sprintf("%03d-%s%s", n, ref, fileEnd)))
		if err != nil {
			break
		}
		s.size += info.Size()
		if info.ModTime().After(s.mod) {
			s.mod = info.ModTime()
		}
	}
	return s
}

// read takes in what others wrote.
func (m *mirror) read(ctx context.Context, root *os.Root) error {
	for _, f := range folders() {
		dir, err := root.Open("exchange/" + f)
		if err != nil {
			return err
		}
		entries, err := dir.ReadDir(-1)
		dir.Close()
		if err != nil {
			return err
		}
		for _, e := range entries {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := m.readThread(ctx, root, "exchange/"+f, e); err != nil {
				m.log.Warn("a thread file was left alone", "file", e.Name(), "error", err)
			}
		}
	}
	return nil
}

// readThread reads one entry of a folder, where it is a thread that changed. Links are no threads.
func (m *mirror) readThread(ctx context.Context, root *os.Root, dir string, e fs.DirEntry) error {
	ref, flat := strings.CutSuffix(e.Name(), fileEnd)
	if !validThreadRef(ref) || flat && !e.Type().IsRegular() || !flat && !e.IsDir() {
		return nil
	}
	at := path.Join(dir, ref)
	stamp := fileStamp{at: dir}
	if flat {
		if info, err := e.Info(); err == nil {
			stamp.mod, stamp.size = info.ModTime(), info.Size()
		}
	} else {
		stamp = stampOf(root, at, ref)
	}
	if m.seen[ref] == stamp {
		return nil
	}
	files, err := readFiles(root, at, ref, flat)
	if err != nil {
		return err
	}
	parsed, err := parseThread(files...)
	if err != nil {
		return err // half written, or no thread: it is read again when it changes
	}
	if parsed.thread.Ref != ref {
		return bad("envelope.ref", "differs from the name of the file")
	}
	m.seen[ref] = stamp
	return m.x.takeIn(ctx, parsed)
}

// readFiles reads the files of a thread, each bounded.
func readFiles(root *os.Root, at, ref string, flat bool) ([][]byte, error) {
	if flat {
		data, err := readBounded(root, at+fileEnd)
		return [][]byte{data}, err
	}
	var out [][]byte
	for n := range 100 {
		data, err := readBounded(root, path.Join(at, fmt.Sprintf("%03d-%s%s", n, ref, fileEnd)))
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

func readBounded(root *os.Root, name string) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > MaxDocument {
		return nil, bad("", "the file is no regular one, or too large")
	}
	return root.ReadFile(name)
}
