package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// rowVersion is the first byte of most rows. The fields follow in a fixed order. Their kinds are:
//
//	u64      8 bytes, big endian
//	uint     unsigned varint
//	time     u64: nanoseconds since 1970 as two's complement; NoTime is the zero time
//	hash     32 bytes
//	bytes    uint length, then the bytes
//	texts    uint length of the rest, uint count, count × uint length, then all texts without separators
//	flags    1 byte; its possible values other than 0 are in parentheses
//	block    the fields in brackets, as packer packs them; at the end of a row without its length
//
// The rows are as follows, each field as its name and its kind. Each engine documents its keys.
//
//	card     rev u64 · expires time · reserved until time · flags (1 withdrawn) · change u64 · registered time ·
//	         updated time · length uint · block [terms texts] · block [owner hash · counts texts · id bytes ·
//	         body bytes · meta bytes]
//	change   seq u64 · at time · flags (1 gone, 2 gone because it was withdrawn) · id bytes
//	conv     rev u64 · expires time · flags (1 open) · updated time · chain hash · entries uint ·
//	         block [peer bytes · id bytes · terms texts · body bytes]
//	entry    flags (1 out) · at time · digest hash · chain hash · block [replay bytes (see EntryRow) ·
//	         message id bytes · raw bytes · key bytes (of a sealed payload) · author bytes]
//	replay   expires time · conv seq u64, or 0 · digest hash · status uint · entry uint, the number of the entry of the
//	         transcript that is the answer, or 0 · block [conv peer bytes · conv id bytes · sender bytes ·
//	         message id bytes · answer bytes]
//	record   rev u64 · expires time · due time · block [party bytes · lane bytes · terms texts · body bytes]
const rowVersion = 1

var errRow = errors.New("row is cut short or has trailing bytes")

// NoTime is the stored form of the zero time.
const NoTime = math.MinInt64

// Nanos returns the stored form of t. A time before 1678 or after 2261 becomes the first or last time that fits.
func Nanos(t time.Time) int64 {
	switch {
	case t.IsZero():
		return NoTime
	case t.Year() < 1678:
		return NoTime + 1
	case t.Year() > 2261:
		return math.MaxInt64
	}
	return t.UnixNano()
}

// toTime returns the time that Nanos stored.
func toTime(n int64) time.Time {
	if n == NoTime {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// Deadline returns the stored form of an expiry time. The zero time becomes Never, which is later than all other times.
func Deadline(t time.Time) int64 {
	if t.IsZero() {
		return Never
	}
	return Nanos(t)
}

// Never is the stored form of an expiry that never comes.
const Never = math.MaxInt64

// AppendU64 appends a number in big-endian order, so that keys sort by it.
func AppendU64(b []byte, v uint64) []byte     { return binary.BigEndian.AppendUint64(b, v) }
func appendTime(b []byte, t time.Time) []byte { return AppendU64(b, uint64(Nanos(t))) }

func appendBytes[T []byte | string](b []byte, v T) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendTexts(b []byte, texts []string) []byte {
	var head []byte
	head = binary.AppendUvarint(head, uint64(len(texts)))
	size := 0
	for _, t := range texts {
		head = binary.AppendUvarint(head, uint64(len(t)))
		size += len(t)
	}
	b = binary.AppendUvarint(b, uint64(len(head)+size))
	b = append(b, head...)
	for _, t := range texts {
		b = append(b, t...)
	}
	return b
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// reader decodes a row. After the first error, further fields have no meaning.
type reader struct {
	b   []byte
	err error
}

// readRow checks the version of row, which may belong to the database.
func readRow(row []byte) reader {
	r := reader{b: row}
	if version := r.byte(); r.err == nil && version != rowVersion {
		r.err = fmt.Errorf("row has version %d, this program supports only %d", version, rowVersion)
	}
	return r
}

// take returns the next n bytes, or nil if the row has fewer.
func (r *reader) take(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.b)) {
		if r.err == nil {
			r.err = errRow
		}
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.take(uint64(len(r.b)) + 1) // more than there is, to set r.err
		return 0
	}
	r.take(uint64(n))
	return v
}

func (r *reader) time() time.Time { return toTime(int64(r.u64())) }

func (r *reader) hash() (h [32]byte) {
	copy(h[:], r.take(32))
	return h
}

// bytes returns nil if the stored value is empty.
func (r *reader) bytes() []byte {
	v := r.take(r.uint())
	if len(v) == 0 {
		return nil
	}
	return v
}

func (r *reader) text() string { return string(r.take(r.uint())) }

// texts copies all texts into one string and slices it, so that a list needs only two allocations.
func (r *reader) texts() []string {
	count, lengths, all := r.list()
	if count == 0 {
		return nil
	}
	texts, remaining := make([]string, count), string(all)
	for i := range texts {
		n := r.length(&lengths, len(remaining))
		texts[i], remaining = remaining[:n], remaining[n:]
	}
	if remaining != "" && r.err == nil {
		r.err = errRow
	}
	if r.err != nil {
		return nil
	}
	return texts
}

// spans appends the texts as slices of the row.
func (r *reader) spans(dst [][]byte) [][]byte {
	count, lengths, all := r.list()
	for range count {
		n := r.length(&lengths, len(all))
		dst, all = append(dst, all[:n:n]), all[n:]
	}
	if len(all) > 0 && r.err == nil {
		r.err = errRow
	}
	return dst
}

// list splits a field of texts into the number of texts, their encoded lengths, and the texts themselves.
func (r *reader) list() (count uint64, lengths, all []byte) {
	b := r.take(r.uint())
	count, head := binary.Uvarint(b)
	if r.err == nil && (head <= 0 || count > uint64(len(b))) {
		r.err = errRow
	}
	if r.err != nil || count == 0 {
		if len(b) > head {
			r.err = errRow
		}
		return 0, nil, nil
	}
	lengths = b[head:]
	end := 0
	for range count {
		for end < len(lengths) && lengths[end] >= 0x80 {
			end++
		}
		end++
	}
	if end > len(lengths) {
		r.err = errRow
		return 0, nil, nil
	}
	return count, lengths[:end], lengths[end:]
}

// length removes the first of lengths and returns it decoded. A length above remaining is an error. After an error,
// length returns 0.
func (r *reader) length(lengths *[]byte, remaining int) int {
	if r.err != nil {
		return 0
	}
	n, used := uint64((*lengths)[0]), 1
	if n >= 0x80 {
		n, used = binary.Uvarint(*lengths)
	}
	if used <= 0 || n > uint64(remaining) {
		r.err = errRow
		return 0
	}
	*lengths = (*lengths)[used:]
	return int(n)
}

// end returns the first error of the row, or an error if bytes are left.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = errRow
	}
	if r.err != nil {
		return fmt.Errorf("%w: %w", store.ErrDamaged, r.err)
	}
	return nil
}
