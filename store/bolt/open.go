package bolt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// The errors of Open. Check for them with [errors.Is].
var (
	// ErrLocked means that another process has the file open.
	ErrLocked = errors.New("database is in use by another process")
	// ErrNewerSchema means that a newer version of this program wrote the file.
	ErrNewerSchema = errors.New("database was written by a newer version")
	// ErrDamaged is store.ErrDamaged: the file is not a database, or some of its rows or pages are invalid.
	ErrDamaged = store.ErrDamaged
	// ErrFileMode means that users other than the owner can read or write the file.
	ErrFileMode = errors.New("database file mode is wider than 0600")
)

// Config holds the options of Open. The zero value is usable.
type Config struct {
	// Logger gets messages about the engine's own work, such as recovery. Nil discards them.
	Logger *slog.Logger
	// MinFree is the number of free bytes on the disk below which the engine refuses writes with store.ErrUnavailable,
	// so that it stops before the disk is full. 0 means 64 MiB; a negative number disables the check.
	MinFree int64
	// InitialMmapSize is the number of bytes of address space to reserve for the file. While the file is smaller, it
	// can grow without waiting for readers. 0 means 4 GiB, but nothing on 32-bit systems, on Windows (where the file
	// itself would grow), or if the system refuses that much. A negative number reserves nothing.
	InitialMmapSize int
	// LeaseTTL is the time for which a lease lasts without renewal. 0 means that a lease lasts until the Store or
	// [Handle] that took it is closed. That is enough, because no other process can open the file.
	LeaseTTL time.Duration
	// Committed, if set, is called after every group commit, before the callers get their results. It must be fast.
	Committed func(Commit)
}

func (c Config) withDefaults() Config {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.MinFree = cmp.Or(c.MinFree, 64<<20)
	c.InitialMmapSize = cmp.Or(c.InitialMmapSize, mapAhead)
	if c.Committed == nil {
		c.Committed = func(Commit) {}
	}
	return c
}

// Store is an open database. It is safe for concurrent use.
type Store struct {
	cfg  Config
	log  *slog.Logger
	path string

	// mu guards db while the file is reopened: every read holds mu for reading, and the goroutine that commits holds it
	// while it replaces db. Only that goroutine reads db without mu. db is nil while the file is closed.
	mu sync.RWMutex
	db *bbolt.DB

	index   atomic.Pointer[cardindex.Index]
	through atomic.Uint64 // the number of the newest change that the index contains

	damage   *engine.DamageLog
	leases   local.Leases
	watchers local.Watchers
	self     *local.Handle // the handle of this Store; see Handle for others
	writer   *writer
	closing  sync.Once
	closeErr error
}

var _ store.Store = (*Store)(nil)

// Open opens the database at path and loads the card index. If the file does not exist, Open creates it with mode 0600.
// If a sentinel error of this package applies, the error matches it. The caller must close the Store.
func Open(ctx context.Context, path string, cfg Config) (*Store, error) {
	path, err := filepath.Abs(followLink(path))
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Store{cfg: cfg, log: cfg.Logger, damage: engine.NewDamageLog(cfg.Logger, "stop the process and run agentmesh check"), path: path}
	s.leases = local.Leases{TTL: cfg.LeaseTTL, Floor: s.fenceFloor, Barrier: s.afterCommit}
	s.self = s.leases.Handle("this process")
	if err := s.openFile(); err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	err = catchDamage(func() error {
		if err := errors.Join(s.prepare(), s.removeTempCopies()); err != nil {
			return err
		}
		return s.buildIndex(ctx)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", path, err), s.closeFile())
	}
	s.writer = newWriter(s)
	return s, nil
}

// prepare makes the buckets of an empty file. It returns ErrNewerSchema or ErrDamaged if this program cannot use the file.
func (s *Store) prepare() error {
	isEmpty := false
	err := s.db.View(func(tx *bbolt.Tx) error {
		isEmpty = tx.Bucket(bucketMeta.name) == nil
		return checkSchema(tx)
	})
	if err != nil || !isEmpty {
		return err
	}
	return s.db.Update(createBuckets)
}

// openFile checks the file and opens it as s.db.
func (s *Store) openFile() error {
	if err := errors.Join(checkImport(s.path), checkMode(s.path)); err != nil {
		return err
	}
	if err := readAhead(s.path, s.log); err != nil {
		return err
	}
	if err := preflight(s.path); err != nil {
		return err
	}
	opts := &bbolt.Options{InitialMmapSize: max(s.cfg.InitialMmapSize, 0)}
	db, err := openBolt(s.path, opts)
	if errors.Is(err, syscall.ENOMEM) && opts.InitialMmapSize > 0 {
		s.log.Warn("the system reserves no address space for a larger database file", slog.Int("bytes", opts.InitialMmapSize))
		opts.InitialMmapSize = 0
		db, err = openBolt(s.path, opts)
	}
	if err != nil {
		return err
	}
	s.db = db
	return nil
}

// closeFile closes s.db. It may be called more than once.
func (s *Store) closeFile() error {
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	return db.Close()
}

// followLink returns the target of path if path is a symbolic link to a file, for example on another disk, and otherwise
// path. Copies are made beside the target, and replace the target rather than the link.
func followLink(path string) string {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return path
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return target
}

// checkMode returns an error if the file is not a regular file, or if users other than the owner can access it.
func checkMode(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: not a regular file", ErrDamaged)
	}
	if modeTooWide(info.Mode()) {
		return fmt.Errorf("%w: it is %04o", ErrFileMode, info.Mode().Perm())
	}
	return nil
}

// preflightLimit is the size up to which Open reads every row of a file before it trusts the file. This takes at most
// about half a second. Of a larger file, Open only counts the rows; [Check] and Export read it in full.
const preflightLimit = 256 << 20

// leastSize is the size of a new bbolt file: four pages of at least 4 KiB.
const leastSize = 4 * 4096

// preflight refuses a truncated or damaged file before bbolt opens it for writing. When bbolt opens a file for writing,
// it scans all pages in its own goroutine, in which we cannot recover from a panic.
func preflight(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 { // bbolt makes a new database
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() < leastSize { // bbolt does not report this as an error
		return fmt.Errorf("%w: %d bytes are too few for a database", ErrDamaged, info.Size())
	}
	db, err := openBolt(path, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close()
	return catchDamage(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			if tx.Size() > info.Size() {
				return fmt.Errorf("%w: %d of %d bytes are missing", ErrDamaged, tx.Size()-info.Size(), tx.Size())
			}
			quick := info.Size() > preflightLimit
			found, err := checkPages(tx, quick)
			if err != nil {
				return err
			}
			return found.compare(tx, quick)
		})
	})
}

// pageSize is the size of the pages of a new file. With 4 KiB, a page has room for only three or four messages, and
// much of the page stays empty.
const pageSize = 8 << 10

// NoSync makes commits return before they are on the disk. Tests set it: they kill processes, but no machine.
var NoSync bool

// lockWait is how long openBolt waits for another process to close the file.
const lockWait = 200 * time.Millisecond

// openBolt is bbolt.Open with the errors of this package. If another process replaced the file while openBolt waited
// for the lock ([CompactInPlace]), the opened file is no longer the database, and the error is ErrLocked.
func openBolt(path string, opts *bbolt.Options) (db *bbolt.DB, err error) {
	var file *os.File
	settings := *opts
	settings.Timeout, settings.PageSize, settings.FreelistType = lockWait, pageSize, bbolt.FreelistMapType
	settings.NoSync = opts.NoSync || NoSync
	settings.NoFreelistSync = true // each commit would write the whole list; instead, opening the file scans for free pages
	settings.OpenFile = func(name string, flag int, mode fs.FileMode) (_ *os.File, err error) {
		file, err = os.OpenFile(name, flag, mode)
		return file, err
	}
	err = catchDamage(func() (err error) {
		db, err = bbolt.Open(path, 0o600, &settings)
		return err
	})
	if err == nil && !hasName(file, path) {
		return nil, errors.Join(ErrLocked, db.Close())
	}
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, ErrLocked
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum):
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return db, err
}

// hasName reports whether path still names the opened file.
func hasName(file *os.File, path string) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}

// catchDamage calls fn. If fn panics, or reads a mapped page beyond the end of the file, the error is ErrDamaged.
func catchDamage(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return fn()
}

// view calls fn in a read transaction. fn must be fast: while it runs, a file that outgrows its map cannot grow.
func (s *Store) view(ctx context.Context, fn func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return fmt.Errorf("%w: the file is not open", store.ErrUnavailable)
	}
	return catchDamage(func() error { return s.db.View(fn) })
}

// reopenFile closes and opens the file and builds the index again. Only the goroutine that commits calls it.
func (s *Store) reopenFile() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Ignore an error of Close: the commit has failed, so this file handle is abandoned anyway.
	_ = s.closeFile()
	if err := s.openFile(); err != nil {
		return err
	}
	return s.buildIndex(context.Background())
}

func (s *Store) checkWritable() error {
	if err := s.writer.broken.Load(); err != nil {
		return *err
	}
	return s.checkDisk()
}

// checkDisk returns ErrUnavailable if the disk has less than Config.MinFree bytes free.
func (s *Store) checkDisk() error {
	if s.cfg.MinFree < 0 {
		return nil
	}
	free, err := diskFree(filepath.Dir(s.path))
	if err != nil {
		return fmt.Errorf("%w: read free disk space: %w", store.ErrUnavailable, err)
	}
	if free < s.cfg.MinFree {
		return fmt.Errorf("%w: the disk is nearly full: %d MiB are free, at least %d MiB must stay free", store.ErrUnavailable, free>>20, s.cfg.MinFree>>20)
	}
	return nil
}

// Ping implements [store.Store].
func (s *Store) Ping(ctx context.Context) error {
	// A write that writes nothing still waits for its turn, and makes a stopped writer try to reopen the file.
	return s.afterCommit(ctx, func() error { return nil })
}

// Close commits the queued writes and closes the file. Later calls fail with store.ErrUnavailable.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.writer.queue.Close()
		s.watchers.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closeErr = s.closeFile()
	})
	return s.closeErr
}
