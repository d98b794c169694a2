package bolt

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/RoaringBitmap/roaring/v2"
	"go.etcd.io/bbolt"
)

// snapshotMagic begins a snapshot file. The snapshot is not part of the database: a hundred megabytes that change as a
// whole would fill the database with free pages, and every backup with data that can be rebuilt.
//
//	magic · tag 16 · through u64 ·
//	for each listed slot: uint distance to the one before · expires u64;  uint 0 ·
//	for each term: uint length · text · posting;                          uint 0 ·
//	CRC-32C of all that u32
//
// A posting is a uint n and n uint distances, or uint 0, uint size and a serialized roaring bitmap.
//
// The engine writes a snapshot while cards change, so the snapshot may contain changes that follow the change named
// through, but never lacks an earlier one. That is enough, because catchUp lists every card that changed later again by
// its row. A snapshot is valid only if the database contains its tag: then the database descends from the state of the
// snapshot, whatever was restored in between. The engine stores the tag before it renames the snapshot file, and keeps
// the previous tag as well, so that the old and the new file are both valid whenever the process dies.
const snapshotMagic = "agentmesh card index 1\n"

const tagSize = 16

func (s *Store) snapshotPath() string { return s.path + ".index" }

// snapshotEvery returns the number of changes after which a new snapshot is written. To catch up on so many changes
// takes about a second. Only the writer calls it.
func (s *Store) snapshotEvery() int64 { return max(5000, int64(s.index.all.len()/8)) }

// snapshotter writes snapshots in its own goroutine.
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

// note counts index changes, and starts a snapshot after enough of them.
func (n *snapshotter) note(changes int) {
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
			n.take()
		}
	}
}

func (n *snapshotter) take() {
	// Reset the counter even if the snapshot fails: the next attempt comes after the same number of changes.
	n.changed.Store(0)
	err := n.s.writeSnapshot(n.ctx)
	if err != nil && n.ctx.Err() == nil {
		n.s.log.Warn("card index snapshot was not written", slog.Any("err", err))
	}
}

// stop cancels a snapshot that is being written, and waits for the goroutine to end.
func (n *snapshotter) stop() {
	n.cancel()
	<-n.done
}

// writeSnapshot writes a snapshot of the current index.
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
	if _, err = rand.Read(tag); err != nil {
		return errors.Join(err, f.Close())
	}
	err = s.dumpIndex(ctx, f, tag)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	err = s.writer.do(ctx, func(t *txn) (func() error, error) {
		return func() error {
			meta := bucketMeta.in(t.Tx)
			known, err := meta.get(keySnapshots)
			if err != nil { // then the previous snapshot is no longer valid
				t.damage.note("replaced", err)
			}
			return meta.put(keySnapshots, append(slices.Clone(tag), known[:min(len(known), tagSize)]...))
		}, nil
	})
	if err != nil {
		return err
	}
	return os.Rename(tmp, s.snapshotPath())
}

// dumpIndex writes the whole file. It locks the index for one block of terms at a time.
func (s *Store) dumpIndex(ctx context.Context, f io.Writer, tag []byte) error {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(f, sum), 1<<20)
	buf := append([]byte(snapshotMagic), tag...)
	buf = appendU64(buf, s.through.Load())
	last := slot(0)
	for at, expires := range s.index.expires.each {
		buf = binary.AppendUvarint(buf, uint64(at-last))
		buf = appendU64(buf, uint64(expires))
		last = at
		if len(buf) > 1<<16 {
			if _, err := out.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	buf = append(buf, 0)
	for after, more := "", true; more; {
		if err := errors.Join(ctx.Err(), s.checkDisk()); err != nil {
			return err
		}
		var err error
		if buf, after, more, err = s.index.dumpTerms(buf, after); err != nil {
			return err
		}
		if _, err := out.Write(buf); err != nil {
			return err
		}
		buf = buf[:0]
	}
	if err := errors.Join(out.WriteByte(0), out.Flush()); err != nil {
		return err
	}
	_, err := f.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// dumpTerms appends some terms that follow after. It returns the last of them, and whether there are more.
func (ix *index) dumpTerms(b []byte, after string) (_ []byte, last string, more bool, err error) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	n := 0
	last = after
	for term, list := range ix.terms.from(after) {
		if term == after {
			continue
		}
		if n++; n > blockMax {
			return b, last, true, nil
		}
		b = appendBytes(b, term)
		if b, err = appendPosting(b, list); err != nil {
			return nil, "", false, err
		}
		last = term
	}
	return b, last, false, nil
}

func appendPosting(b []byte, p *posting) ([]byte, error) {
	if p.many != nil {
		raw, err := p.many.ToBytes()
		if err != nil {
			return nil, err
		}
		return appendBytes(append(b, 0), raw), nil
	}
	b = binary.AppendUvarint(b, uint64(len(p.few)))
	last := slot(0)
	for _, at := range p.few {
		b = binary.AppendUvarint(b, uint64(at-last))
		last = at
	}
	return b, nil
}

var errSnapshot = errors.New("index snapshot is not valid")

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
	in := &snapshotReader{left: info.Size() - 4, r: bufio.NewReaderSize(f, 1<<20)}
	if !bytes.Equal(in.take(uint64(len(snapshotMagic))), []byte(snapshotMagic)) {
		return errSnapshot
	}
	tag := bytes.Clone(in.take(tagSize))
	through := number(in.take(8))
	if err := s.db.View(func(tx *bbolt.Tx) error { return checkTag(tx, tag, through) }); err != nil {
		return err
	}
	var ix *index
	if err := guard(func() (err error) {
		ix, err = readIndex(in)
		return err
	}); err != nil {
		return err
	}
	s.index = ix
	s.through.Store(through)
	return nil
}

// checkTag returns nil if the database descends from the state of the snapshot with this tag, and can catch it up.
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

func readIndex(in *snapshotReader) (*index, error) {
	ix := newIndex()
	at := uint64(0)
	for step := in.uint(); step != 0 && in.err == nil; step = in.uint() {
		at += step
		if at > uint64(^slot(0)) {
			return nil, errSnapshot
		}
		ix.all.add(slot(at))
		ix.expires.set(slot(at), int64(number(in.take(8))))
	}
	last := ""
	for n := in.uint(); n != 0 && in.err == nil; n = in.uint() {
		term := string(in.take(n))
		list, err := in.posting()
		if err != nil {
			return nil, err
		}
		if term <= last {
			return nil, errSnapshot
		}
		ix.terms.appendLast(term, list)
		last = term
	}
	return ix, in.end()
}

// snapshotReader reads a file that dumpIndex wrote. After the first error, it returns only zero values.
type snapshotReader struct {
	r    *bufio.Reader
	left int64 // bytes before the checksum
	sum  uint32
	buf  []byte
	err  error
}

// take returns the next n bytes, which are valid until the next call.
func (in *snapshotReader) take(n uint64) []byte {
	if in.err == nil && n > uint64(max(in.left, 0)) {
		in.err = errSnapshot
	}
	if in.err != nil {
		return nil
	}
	in.buf = slices.Grow(in.buf[:0], int(n))[:n]
	_, in.err = io.ReadFull(in.r, in.buf)
	in.left -= int64(n)
	in.sum = crc32.Update(in.sum, castagnoli, in.buf)
	return in.buf
}

// ReadByte implements [io.ByteReader].
func (in *snapshotReader) ReadByte() (byte, error) {
	if b := in.take(1); in.err == nil {
		return b[0], nil
	}
	return 0, in.err
}

func (in *snapshotReader) uint() uint64 {
	v, err := binary.ReadUvarint(in)
	if err != nil && in.err == nil {
		in.err = err
	}
	return v
}

func (in *snapshotReader) posting() (*posting, error) {
	n := in.uint()
	if n == 0 {
		many := roaring.New()
		raw := in.take(in.uint())
		if in.err != nil {
			return nil, in.err
		}
		if err := many.UnmarshalBinary(raw); err != nil {
			return nil, fmt.Errorf("%w: %w", errSnapshot, err)
		}
		return &posting{many: many}, nil
	}
	if n > fewMax {
		return nil, errSnapshot
	}
	list := &posting{few: make([]slot, n)}
	at := uint64(0)
	for i := range list.few {
		at += in.uint()
		list.few[i] = slot(at)
	}
	return list, in.err
}

// end returns an error unless the whole file was read and its checksum is right.
func (in *snapshotReader) end() error {
	if in.err != nil {
		return in.err
	}
	var sum [4]byte
	if _, err := io.ReadFull(in.r, sum[:]); err != nil {
		return err
	}
	if in.left != 0 || binary.BigEndian.Uint32(sum[:]) != in.sum {
		return errSnapshot
	}
	return nil
}
