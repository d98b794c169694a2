package folder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

// Mirror keeps the threads of an exchange in a directory that other tools read and append to. The store is
// authoritative: additions of the tools go through the state machine, and then the mirror writes the files again.
type Mirror struct {
	x     *exchange.Exchange
	dir   string
	log   *slog.Logger
	mu    sync.Mutex      // guards dirty
	dirty map[string]bool // refs of the threads that must be written
	wake  chan struct{}   // has a value after [Mirror.Schedule]

	// Used only by the goroutine of Run.
	seen map[string]fileStamp // path of a thread → stamp of its files when they were last read or written
	// path of a thread that could not be read → stamp of its files; the thread is read again when the stamp changes
	unreadable map[string]fileStamp
	due        time.Time     // time of the next poll
	importTime time.Duration // part of the current poll that was spent on imports
	pass       progress      // of the writes; zero when all changed threads are written
}

// NewMirror returns a mirror of the exchange in dir. It starts nothing; see [Mirror.Run].
func NewMirror(x *exchange.Exchange, dir string, log *slog.Logger) *Mirror {
	return &Mirror{
		x: x, dir: dir, log: log, dirty: map[string]bool{}, wake: make(chan struct{}, 1),
		seen: map[string]fileStamp{}, unreadable: map[string]fileStamp{},
	}
}

// markDirty records threads that must be written at the next poll, or earlier.
func (m *Mirror) markDirty(refs ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ref := range refs {
		m.dirty[ref] = true
	}
}

// Schedule records threads that must be written now. It never blocks.
func (m *Mirror) Schedule(refs []string) {
	m.markDirty(refs...)
	waiting.Wake(m.wake)
}

// takeDirty returns the refs of the threads that must be written, and forgets them.
func (m *Mirror) takeDirty() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	refs := slices.Sorted(maps.Keys(m.dirty))
	clear(m.dirty)
	return refs
}

// OpenLayout creates a thread folder with its state folders, and opens it as a root, which the caller closes.
func OpenLayout(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range thread.Folders() {
		if err := root.MkdirAll("exchange/"+f, 0o700); err != nil {
			root.Close()
			return nil, err
		}
	}
	return root, nil
}

// Run writes changed threads and reads what others wrote, until ctx ends.
func (m *Mirror) Run(ctx context.Context) error {
	root, err := OpenLayout(m.dir)
	if err != nil {
		return fmt.Errorf("open the thread directory: %w", err)
	}
	defer root.Close()
	if err := m.catchUp(ctx, root); err != nil && ctx.Err() == nil {
		m.log.Error("the thread directory could not be read", "error", err)
	}
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
			err = m.flush(ctx, root)
		case <-poll.C:
			err = m.sync(ctx, root)
			poll.Reset(time.Until(m.due))
		}
		if err != nil && ctx.Err() == nil {
			m.log.Error("the thread directory could not be synchronized", "error", err)
		}
	}
}

// catchUp reads the whole directory, and schedules the threads that have no files there, for example after a crash.
func (m *Mirror) catchUp(ctx context.Context, root *os.Root) error {
	if err := m.x.Load(); err != nil {
		return err
	}
	if err := m.read(ctx, root); err != nil {
		return err
	}
	hasFiles := make(map[string]bool, len(m.seen))
	for at := range m.seen {
		hasFiles[path.Base(at)] = true
	}
	m.Schedule(m.x.Refs(func(ref string) bool { return !hasFiles[ref] }))
	return nil
}

// sync polls the directory, and then writes changed threads until the next poll is due.
func (m *Mirror) sync(ctx context.Context, root *os.Root) error {
	m.due = time.Now().Add(PollEvery)
	if err := m.x.Load(); err != nil {
		return err
	}
	began := time.Now()
	m.importTime = 0
	err := m.read(ctx, root)
	m.due = time.Now().Add(NextPoll(time.Since(began) - m.importTime))
	return errors.Join(err, m.flush(ctx, root))
}

// writeGrace protects a file that cannot be parsed, because another tool may still be writing it: the mirror overwrites
// the file only if it has not changed for this long.
const writeGrace = 10 * time.Second

// flush writes the changed threads. Before it writes a thread, it reads what others added. A thread that cannot be
// written waits for the next poll and does not delay the others. When the next poll is due, the remaining threads wait
// until that poll has read the directory.
func (m *Mirror) flush(ctx context.Context, root *os.Root) (err error) {
	failed := 0
	refs := m.takeDirty()
	if len(refs) > 0 && m.pass.next.IsZero() {
		m.pass = newProgress(m.log)
	}
	for i, ref := range refs {
		// write at least one thread, even if the next poll is due
		if ctx.Err() != nil || i > 0 && !time.Now().Before(m.due) {
			m.markDirty(refs[i:]...)
			break
		}
		m.pass.report("writing thread files", "left", len(refs)-i)
		if i == len(refs)-1 {
			m.pass = progress{}
		}
		isPartial, e := m.readPlaces(ctx, root, ref)
		if isPartial {
			m.markDirty(ref)
			continue
		}
		if e == nil {
			e = m.write(ctx, root, ref)
		}
		if e != nil {
			m.markDirty(ref)
			failed++
			err = cmp.Or(err, fmt.Errorf("thread %s: %w", ref, e))
		}
	}
	if failed > 1 {
		err = fmt.Errorf("%d threads, the first: %w", failed, err)
	}
	return err
}

// readPlaces reads what others added to a thread. It reads all places of the thread, which may be in several folders,
// because write removes all except one. It returns an error if a place cannot be read now but perhaps later.
// isPartial reports whether another tool may still be writing one of the files.
func (m *Mirror) readPlaces(ctx context.Context, root *os.Root, ref string) (isPartial bool, err error) {
	for at, flat := range findAll(root, ref) {
		if e := m.readThread(ctx, root, at, flat); e != nil && IsRetryable(e) {
			err = cmp.Or(err, e)
		}
		if stamp, ok := m.unreadable[at]; ok && time.Since(stamp.Mod).Abs() < writeGrace {
			return true, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.dirty, ref) // reading marked the thread dirty; the caller writes it
	return false, err
}

// write writes a thread to the folder of its state. Other tools never see a partly written file.
func (m *Mirror) write(ctx context.Context, root *os.Root, ref string) error {
	if !thread.IsThreadRef(ref) { // the ref cannot be the name of a folder
		return nil
	}
	t, err := m.x.Read(ctx, ref, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	messages, err := m.x.MessagesOf(ctx, t)
	if err != nil {
		return err
	}
	at, err := MoveThread(root, thread.FolderOf(t.Status), ref)
	if err == nil {
		err = WriteThread(root, at, thread.ThreadFiles(t, messages))
	}
	if err != nil {
		return err
	}
	for _, f := range thread.Folders() {
		delete(m.seen, path.Join("exchange", f, ref))
		delete(m.unreadable, path.Join("exchange", f, ref))
	}
	names, err := m.x.Attachments(ctx, ref)
	if err != nil {
		return err
	}
	err = writeAttachments(root, at, names, func(name string) ([]byte, error) {
		a, err := m.x.Attachment(ctx, exchange.Owner("file"), ref, name)
		return a.Data, err
	})
	if err == nil {
		m.seen[at] = stampOf(root, at, ref)
	}
	return err
}
