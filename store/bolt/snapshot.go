package bolt

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// snapshotMagic is the beginning of a snapshot of the card index. The snapshot is not in the database, because replacing
// a hundred megabytes would leave many free pages there.
//
//	magic · tag, 16 random bytes · through u64 · dump of the index (see package cardindex) · CRC-32C of all that u32
//
// The engine writes a snapshot while cards change. So the snapshot has every change up to the number through, and
// perhaps some later ones. That is enough, because catchUp reads the row of every card that changed after through. A
// snapshot is valid only if the database contains its tag: then the database descends from the state of the
// snapshot, even if a backup was restored meanwhile. The engine stores the tag before it renames the snapshot file, and
// keeps the previous tag too, so that the file is valid whenever the process dies.
const snapshotMagic = "agentmesh card index 1\n"

const tagSize = 16

func (s *Store) snapshotPath() string { return s.path + ".index" }

// snapshotEvery returns the number of changes after which a new snapshot is written. Catching up on that many changes
// takes about a second.
func (s *Store) snapshotEvery() int64 { return max(5000, int64(s.index.Len()/8)) }

// snapshotter writes a snapshot whenever the index has changed enough.
type snapshotter struct {
	s       *Store
	writing sync.Mutex   // held while the file is written
	changed atomic.Int64 // index changes since the last snapshot
	wake    chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
}

func newSnapshotter(s *Store) *snapshotter {
	ctx, cancel := context.WithCancel(context.Background())
	return &snapshotter{s: s, wake: make(chan struct{}, 1), ctx: ctx, cancel: cancel, done: make(chan struct{})}
}

// countChanges counts index changes, and starts a snapshot after enough of them.
func (n *snapshotter) countChanges(changes int) {
	if changes > 0 && n.changed.Add(int64(changes)) >= n.s.snapshotEvery() {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
}

func (n *snapshotter) run() {
	defer close(n.done)
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.wake:
		}
		// Reset the counter even if the snapshot fails, so that the next attempt comes after the same number of changes.
		n.changed.Store(0)
		if err := n.s.writeSnapshot(n.ctx); err != nil && n.ctx.Err() == nil {
			n.s.log.Warn("card index snapshot was not written", slog.Any("err", err))
		}
	}
}

// stop cancels a snapshot that is being written, and waits for the goroutine to end.
func (n *snapshotter) stop() {
	n.cancel()
	<-n.done
}

// writeSnapshot writes a snapshot under a new tag, and stores the tag before it renames the file.
func (s *Store) writeSnapshot(ctx context.Context) (err error) {
	s.snapshots.writing.Lock()
	defer s.snapshots.writing.Unlock()
	tmp := s.snapshotPath() + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp))
		}
	}()
	tag := make([]byte, tagSize)
	rand.Read(tag) // never fails: crypto/rand
	err = s.dumpIndex(ctx, f, tag)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	err = s.writer.do(ctx, func(t *txn) (func(store.Rev) error, error) {
		return func(store.Rev) error {
			meta := bucketMeta.in(t)
			known, err := meta.get(keySnapshots)
			if err != nil { // the previous snapshot is no longer valid
				t.damage.Note("replaced", err)
			}
			meta.put(keySnapshots, append(slices.Clone(tag), known[:min(len(known), tagSize)]...))
			return nil
		}, nil
	})
	if err != nil {
		return err
	}
	return os.Rename(tmp, s.snapshotPath())
}

// dumpIndex writes the whole snapshot to f. It locks the index for one block of terms at a time.
func (s *Store) dumpIndex(ctx context.Context, f io.Writer, tag []byte) error {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(f, sum), 1<<20)
	buf := append([]byte(snapshotMagic), tag...)
	buf = engine.AppendU64(buf, s.through.Load())
	write := func(part []byte) error {
		if err := errors.Join(ctx.Err(), s.checkDisk()); err != nil {
			return err
		}
		_, err := out.Write(part)
		return err
	}
	if err := errors.Join(write(buf), s.index.Dump(write), out.Flush()); err != nil {
		return err
	}
	_, err := f.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// loadSnapshot reads the snapshot into s.index and s.through. If the file does not exist, the error is fs.ErrNotExist.
func (s *Store) loadSnapshot() error {
	f, err := os.Open(s.snapshotPath())
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	in := cardindex.NewReader(bufio.NewReaderSize(f, 1<<20), info.Size())
	if !bytes.Equal(in.Take(uint64(len(snapshotMagic))), []byte(snapshotMagic)) {
		return cardindex.ErrSnapshot
	}
	tag := bytes.Clone(in.Take(tagSize))
	through := number(in.Take(8))
	if err := s.db.View(func(tx *bbolt.Tx) error { return checkTag(tx, tag, through) }); err != nil {
		return err
	}
	var ix *cardindex.Index
	if err := engine.Guard(func() (err error) {
		ix, err = cardindex.Read(in)
		return err
	}); err != nil {
		return err
	}
	s.index = ix
	s.through.Store(through)
	return nil
}

// checkTag returns nil if the database descends from the state of the snapshot with this tag, and if the change feed
// still has all later changes.
func checkTag(tx *bbolt.Tx, tag []byte, through uint64) error {
	meta := bucketMeta.in(tx)
	tags, err := meta.get(keySnapshots)
	if err != nil {
		return err
	}
	floor, err := meta.get(keyFloor)
	if err != nil {
		return err
	}
	for known := range slices.Chunk(tags, tagSize) {
		if bytes.Equal(known, tag) {
			if through < number(floor) {
				return errors.New("index snapshot is too old to catch up")
			}
			return nil
		}
	}
	return errors.New("index snapshot is of another state of the database")
}
