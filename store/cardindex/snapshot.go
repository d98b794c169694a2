package cardindex

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/RoaringBitmap/roaring/v2"
)

// The format of a dump:
//
//	for each listed slot: uint distance to the one before · expires u64;  uint 0 ·
//	for each term: uint length · text · posting;                          uint 0
//
// A posting has the slots that carry the term: uint n and n uint distances, or uint 0, uint size and a serialized roaring
// bitmap.

// ErrSnapshot means that the bytes are not a dump of an index.
var ErrSnapshot = errors.New("index snapshot is not valid")

// Dump passes the index to write, part by part. It locks the index for one block of terms at a time, so the dump may
// contain some of the changes that are made meanwhile.
func (ix *Index) Dump(write func([]byte) error) error {
	ix.setDumping(true) // DropExpired removes no cards meanwhile
	defer ix.setDumping(false)
	var buf []byte
	last := Slot(0)
	for s, expires := range ix.expires.each {
		buf = binary.AppendUvarint(buf, uint64(s-last))
		buf = binary.BigEndian.AppendUint64(buf, uint64(expires))
		last = s
		if len(buf) > 1<<16 {
			if err := write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	buf = append(buf, 0)
	for after, more := "", true; more; {
		var err error
		if buf, after, more, err = ix.dumpTerms(buf, after); err != nil {
			return err
		}
		if err := write(buf); err != nil {
			return err
		}
		buf = buf[:0]
	}
	return write([]byte{0})
}

func (ix *Index) setDumping(on bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.dumping = on
}

// dumpTerms appends to b the terms that sort after previous, at most blockMax of them. It returns the last of these
// terms, and whether more terms follow.
func (ix *Index) dumpTerms(b []byte, previous string) (_ []byte, last string, more bool, err error) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	n := 0
	last = previous
	for term, list := range ix.terms.from(previous) {
		if term == previous {
			continue
		}
		if n++; n > blockMax {
			return b, last, true, nil
		}
		b = appendBytes(b, []byte(term))
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
	last := Slot(0)
	for _, s := range p.few {
		b = binary.AppendUvarint(b, uint64(s-last))
		last = s
	}
	return b, nil
}

func appendBytes(b, data []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

// Read reads an index that Dump wrote. The dump must end where the checksum of the file begins. Read may panic if a
// bitmap in the file is damaged, because it verifies the checksum only at the end.
func Read(in *Reader) (*Index, error) {
	ix := New()
	slot := uint64(0)
	for distance := in.uint(); distance != 0 && in.err == nil; distance = in.uint() {
		slot += distance
		expires := in.Take(8)
		if in.err != nil || slot > uint64(^Slot(0)) {
			return nil, cmp.Or(in.err, ErrSnapshot)
		}
		ix.all.add(Slot(slot))
		ix.expires.set(Slot(slot), int64(binary.BigEndian.Uint64(expires)))
	}
	last := ""
	for n := in.uint(); n != 0 && in.err == nil; n = in.uint() {
		term := string(in.Take(n))
		list, err := in.posting()
		if err != nil {
			return nil, err
		}
		if term <= last {
			return nil, ErrSnapshot
		}
		ix.terms.appendLast(term, list)
		last = term
	}
	return ix, in.end()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewReader returns a reader of a file of this size, whose last four bytes are the CRC-32C of the others.
func NewReader(r io.Reader, size int64) *Reader { return &Reader{r: r, left: size - 4} }

// Reader reads a file with a dump. After the first error, it returns only zero values.
type Reader struct {
	r    io.Reader
	left int64 // bytes before the checksum
	sum  uint32
	buf  []byte
	err  error
}

// Take returns the next n bytes, which are valid until the next call.
func (in *Reader) Take(n uint64) []byte {
	if in.err == nil && n > uint64(max(in.left, 0)) {
		in.err = ErrSnapshot
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
func (in *Reader) ReadByte() (byte, error) {
	if b := in.Take(1); in.err == nil {
		return b[0], nil
	}
	return 0, in.err
}

func (in *Reader) uint() uint64 {
	v, err := binary.ReadUvarint(in)
	if err != nil && in.err == nil {
		in.err = err
	}
	return v
}

func (in *Reader) posting() (*posting, error) {
	n := in.uint()
	if n == 0 {
		many := roaring.New()
		raw := in.Take(in.uint())
		if in.err != nil {
			return nil, in.err
		}
		if err := many.UnmarshalBinary(raw); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		return &posting{many: many}, nil
	}
	if n > fewMax {
		return nil, ErrSnapshot
	}
	list := &posting{few: make([]Slot, n)}
	slot := uint64(0)
	for i := range list.few {
		slot += in.uint()
		list.few[i] = Slot(slot)
	}
	return list, in.err
}

// end returns an error unless the whole file was read and its checksum is right.
func (in *Reader) end() error {
	if in.err != nil {
		return in.err
	}
	var sum [4]byte
	if _, err := io.ReadFull(in.r, sum[:]); err != nil {
		return err
	}
	if in.left != 0 || binary.BigEndian.Uint32(sum[:]) != in.sum {
		return ErrSnapshot
	}
	return nil
}
