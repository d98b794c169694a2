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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/node/atomicfile"
)

// migration writes the database of the next schema, row by row, from a database that it must not change. A migration
// that changes cards does not copy the row of keySnapshots, so that Open builds the index again.
type migration func(from *bbolt.Tx, to *copier) error

// migrations holds at index i the migration from schema i+1 to i+2. A new migration comes with testdata/schema-N.db.gz,
// a database of the schema before it.
//
// Schema 2 is not released yet. Until its release, add every other change of stored bytes to its migration, so that an
// upgrade rewrites the database once. At the release, delete this paragraph; any later change needs schema 3.
var migrations = []migration{addChecksums}

// newestSchema returns the schema to which steps lead.
func newestSchema(steps []migration) uint64 { return uint64(len(steps)) + 1 }

// addChecksums migrates from schema 1, which had no checksums. It cannot detect bits that changed before.
func addChecksums(from *bbolt.Tx, to *copier) error {
	for _, b := range buckets {
		old := from.Bucket(b.name)
		if old == nil {
			return fmt.Errorf("%w: it has no bucket %s", ErrDamaged, b.name)
		}
		to.create(b, old.Sequence())
		if err := old.ForEach(func(k, v []byte) error { to.put(b, k, v); return to.err }); err != nil {
			return err
		}
	}
	return to.err
}

// migrate brings the database to the newest schema with steps, or returns ErrNewerSchema. It keeps the database of the
// older schema under the name that [OlderCopy] returns.
func (s *Store) migrate(ctx context.Context, steps []migration) error {
	var have uint64
	if err := s.db.View(func(tx *bbolt.Tx) (err error) {
		have, err = schemaOf(tx)
		return err
	}); err != nil {
		return err
	}
	want := newestSchema(steps)
	if have > want {
		return fmt.Errorf("%w: it has schema %d, this program supports up to %d", ErrNewerSchema, have, want)
	}
	if have == 0 {
		return s.db.Update(func(tx *bbolt.Tx) error {
			for _, b := range buckets {
				if _, err := tx.CreateBucket(b.name); err != nil {
					return err
				}
			}
			return setSchema(tx, want)
		})
	}
	for ; have < want; have++ {
		s.log.Info("migrating the database", "from", have, "to", have+1, "copy", OlderCopy(s.path, have))
		start := time.Now()
		if err := s.rewrite(ctx, steps[have-1], have); err != nil {
			return fmt.Errorf("migrate from schema %d: %w", have, err)
		}
		s.log.Info("the database is migrated", "to", have+1, slog.Duration("took", time.Since(start)))
	}
	return nil
}

// rewrite replaces the file with a database of the next schema. One transaction over all rows would hold all of them in
// memory and double the size of the file. So step fills a new file in small transactions, and the old file stays as a
// copy. If the process dies, s.path names either the old or the new file, and the next Open continues from there.
func (s *Store) rewrite(ctx context.Context, step migration, have uint64) error {
	dst := s.path + ".backup-migrate" // the next Open removes what a killed process left
	if err := removeIfThere(dst); err != nil {
		return err
	}
	// NoSync is safe, because nothing uses the new file before the Sync in finish.
	to, err := openBolt(dst, &bbolt.Options{NoSync: true})
	if err != nil {
		return err
	}
	err = s.db.View(func(from *bbolt.Tx) error {
		if err := s.checkRoom(from.Size() + from.Size()/8); err != nil { // the new file may be somewhat larger
			return err
		}
		c := &copier{ctx: ctx, db: to, log: s.log, lastLog: time.Now()}
		err := step(from, c)
		if err == nil {
			err = c.finish(have + 1)
		}
		return errors.Join(err, c.rollback())
	})
	if err = errors.Join(err, to.Close()); err == nil {
		err = s.replaceFile(dst, have)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(dst))
	}
	return s.openFile()
}

// replaceFile keeps the old file under the name of [OlderCopy], renames dst to the name of the database, and closes the
// old file. Except on Windows, the lock of the old file keeps other processes out until the rename.
func (s *Store) replaceFile(dst string, have uint64) error {
	if err := s.keepFile(OlderCopy(s.path, have)); err != nil {
		return fmt.Errorf("keep a copy of the old database: %w", err)
	}
	if runtime.GOOS == "windows" { // Windows cannot rename over an open file
		if err := s.closeFile(); err != nil {
			return err
		}
	}
	if err := os.Rename(dst, s.path); err != nil {
		return err
	}
	atomicfile.SyncDir(filepath.Dir(s.path))
	return s.closeFile()
}

// keepFile links the file to another name, or copies it if the file system has no links.
func (s *Store) keepFile(name string) error {
	if err := removeIfThere(name); err != nil {
		return err
	}
	if err := os.Link(s.path, name); err != nil {
		return s.copyTo(name)
	}
	return os.Chtimes(name, time.Time{}, time.Now()) // so that the copy is kept for a week from now
}

func removeIfThere(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// copier fills a new database, a few MiB in each transaction. After the first error, it does nothing.
type copier struct {
	ctx     context.Context
	db      *bbolt.DB
	tx      *bbolt.Tx // nil between two transactions
	err     error
	log     *slog.Logger
	size    int // size of the rows in tx
	rows    int
	lastLog time.Time
}

const (
	copyBatch    = 4 << 20          // bytes of rows in one transaction
	copyLogEvery = 10 * time.Second // between two log lines about the progress
)

// create makes a bucket. sequence is the last number that the bucket has assigned.
func (c *copier) create(b bucket, sequence uint64) {
	if !c.begin() {
		return
	}
	var made *bbolt.Bucket
	if made, c.err = c.tx.CreateBucket(b.name); c.err == nil {
		c.err = made.SetSequence(sequence)
	}
}

// put stores a row. It is fastest if the rows come in the order of their keys. It does not keep key or value.
func (c *copier) put(b bucket, key, value []byte) {
	if c.size >= copyBatch {
		c.commit()
	}
	if !c.begin() {
		return
	}
	c.size += len(key) + len(value)
	c.rows++
	rows := b.in(c.tx)
	rows.raw.FillPercent = 1                                      // most rows come in the order of their keys
	c.err = rows.raw.Put(key, rows.seal(key, slices.Clip(value))) // rows.put would panic if an imported row has an empty key
}

// begin begins a transaction unless one has begun. It returns false after an error.
func (c *copier) begin() bool {
	if c.tx == nil && c.err == nil {
		c.tx, c.err = c.db.Begin(true)
	}
	return c.err == nil
}

// commit commits the transaction, unless the copy has failed or was canceled.
func (c *copier) commit() {
	if time.Since(c.lastLog) >= copyLogEvery {
		c.lastLog = time.Now()
		c.log.Info("still migrating the database", slog.Int("rows", c.rows))
	}
	if c.err = cmp.Or(c.err, c.ctx.Err()); c.err != nil {
		return
	}
	tx := c.tx
	c.tx, c.size = nil, 0
	c.err = tx.Commit()
}

// finish stores the schema, commits the rest, and syncs the file.
func (c *copier) finish(schema uint64) error {
	if c.begin() {
		c.err = setSchema(c.tx, schema)
	}
	if c.commit(); c.err != nil {
		return c.err
	}
	return c.db.Sync()
}

func (c *copier) rollback() error {
	if c.tx == nil {
		return nil
	}
	return c.tx.Rollback()
}

// OlderCopy returns the name of the copy of the database at path that a migration from an older schema keeps. The store
// removes the copy after a week, because it still contains data that was deleted from the database meanwhile.
func OlderCopy(path string, schema uint64) string { return fmt.Sprintf("%s.schema-%d", path, schema) }

const keepOlder = 7 * 24 * time.Hour

// removeOlderCopies removes the copies of [OlderCopy] that are a week old. It ignores errors: the next sweep tries again.
func (s *Store) removeOlderCopies(now time.Time) {
	dir, prefix := filepath.Dir(s.path), filepath.Base(s.path)+".schema-"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		schema, isCopy := strings.CutPrefix(e.Name(), prefix)
		if _, err := strconv.ParseUint(schema, 10, 64); !isCopy || err != nil || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) < keepOlder {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err == nil {
			s.log.Info("removed the copy from before the migration", "copy", e.Name())
		}
	}
}
