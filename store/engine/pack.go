package engine

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync"
)

// Rows hold short JSON texts and terms that repeat each other and are alike from row to row, so all but the head of a row
// is stored packed: texts that occurred before are replaced by references. The format is that of LZ4 blocks: a token with
// the length of literal bytes in its upper and of a match minus minMatch in its lower four bits, the rest of the first
// length if it is 15 or more, the literal bytes, the distance of the match in two bytes, and the rest of the second
// length. The last sequence ends after its literal bytes. A match may begin in the dictionary, which precedes every row.
const (
	minMatch = 4
	maxBack  = 1<<16 - 1 // the largest distance

	hashBits = 11
)

// primed has the last position in the dictionary of each hash, modulo 2^16.
var primed = func() (t [1 << hashBits]uint16) {
	for i := range len(dictionary) - minMatch {
		t[hash4(dictionary[i:])] = uint16(i)
	}
	return t
}()

func hash4[T string | ~[]byte](b T) uint32 {
	return (uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24) * 2654435761 >> (32 - hashBits)
}

// packer collects the fields of a row that are packed. Start with newPacker and end with appendTo.
type packer struct{ b []byte }

var packers = sync.Pool{New: func() any { return &packer{[]byte(dictionary)} }}

func newPacker() *packer { return packers.Get().(*packer) }

// len returns the length of the fields.
func (p *packer) len() int { return len(p.b) - len(dictionary) }

// appendTo appends the length of the fields and the packed fields to head.
func (p *packer) appendTo(head []byte) []byte {
	b := make([]byte, 0, len(head)+p.len()/2+64)
	b = binary.AppendUvarint(append(b, head...), uint64(p.len()))
	b = pack(b, p.b)
	if cap(p.b) <= maxBack {
		p.b = p.b[:len(dictionary)]
		packers.Put(p)
	}
	return b
}

// pack appends what follows the dictionary in p to b, in packed form.
func pack(b, p []byte) []byte {
	const base = len(dictionary)
	table := primed
	literal, at := base, base // where the literal bytes begin, and the position
	for at+minMatch <= len(p) {
		slot := &table[hash4(p[at:])]
		from := at - int(uint16(at)-*slot)
		*slot = uint16(at)
		if from == at || from < 0 || binary.LittleEndian.Uint32(p[from:]) != binary.LittleEndian.Uint32(p[at:]) {
			at += 1 + (at-literal)>>6 // faster through bytes that do not repeat
			continue
		}
		end := len(p)
		if from < base { // a match does not go on from the dictionary to the row
			end = min(end, at+base-from)
		}
		n := minMatch + matching(p[from+minMatch:], p[at+minMatch:end])
		b = appendSequence(b, p[literal:at], n)
		b = binary.LittleEndian.AppendUint16(b, uint16(at-from))
		b = appendLength(b, n-minMatch)
		at += n
		literal = at
		if at+2 <= len(p) && at-2 >= base {
			table[hash4(p[at-2:])] = uint16(at - 2)
		}
	}
	if literal < len(p) {
		b = appendSequence(b, p[literal:], minMatch)
	}
	return b
}

// matching returns how many bytes from the beginning of b on are the same in a, which is longer.
func matching(a, b []byte) (n int) {
	for ; n+8 <= len(b); n += 8 {
		if diff := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); diff != 0 {
			return n + bits.TrailingZeros64(diff)/8
		}
	}
	for n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func appendSequence(b, literal []byte, match int) []byte {
	b = append(b, byte(min(len(literal), 15)<<4|min(match-minMatch, 15)))
	return append(appendLength(b, len(literal)), literal...)
}

// appendLength appends what a token cannot hold of a length.
func appendLength(b []byte, n int) []byte {
	if n -= 15; n < 0 {
		return b
	}
	for ; n >= 255; n -= 255 {
		b = append(b, 255)
	}
	return append(b, byte(n))
}

// packed returns the length of the fields that packer collected.
func (r *reader) packed() int {
	size := r.uint()
	if r.err == nil && size > 255*uint64(len(r.b)) { // more than packed bytes can become
		r.err = errRow
	}
	if r.err != nil {
		return 0
	}
	return int(size)
}

// slack is the number of bytes after the fields into which unpack may write, because it copies in steps.
const slack = 16

// dictionaryBytes is the dictionary with as many bytes after it as unpack may read beyond a match.
var dictionaryBytes = append([]byte(dictionary), make([]byte, slack)...)

// unpack replaces the rest of the row by the size bytes of fields that packer collected, or by at least the first of them
// if enough is less than size. It writes them into buf, which has at least slack bytes more.
func (r *reader) unpack(buf []byte, size, enough int) {
	if r.err != nil {
		return
	}
	src, at := r.b, 0
	r.err = errRow
	for at < enough && len(src) > 0 {
		n, m := int(src[0]>>4), int(src[0]&15)
		if src = src[1:]; n < 15 && len(src) >= 16 && n <= size-at {
			*(*[16]byte)(buf[at:]) = *(*[16]byte)(src)
		} else {
			if n, src = longer(n, src); n > len(src) || n > size-at {
				return
			}
			copy(buf[at:], src[:n])
		}
		at += n
		if src = src[n:]; len(src) == 0 {
			break
		}
		if len(src) < 2 {
			return
		}
		from := at - int(binary.LittleEndian.Uint16(src))
		m, src = longer(m, src[2:])
		m += minMatch
		old := buf
		switch {
		case from == at || m > size-at || from < 0 && (-from > len(dictionary) || m > -from):
			return
		case from < 0:
			old, from = dictionaryBytes, len(dictionary)+from
		case at-from < 8: // the match overlaps itself within a step
			for i := range m {
				buf[at+i] = buf[from+i]
			}
			at += m
			continue
		}
		for i := 0; i < m; i += 8 {
			*(*[8]byte)(buf[at+i:]) = *(*[8]byte)(old[from+i:])
		}
		at += m
	}
	if at >= enough && (enough < size || len(src) == 0 && at == size) {
		r.b, r.err = buf[:at:at], nil
	}
}

// fields replaces the rest of the row by the fields that packer collected, in an array of their own, so that the results of
// the reader may outlive the transaction.
func (r *reader) fields() {
	size := r.packed()
	r.unpack(make([]byte, size+slack), size, size)
}

// longer returns the length that begins with n in a token and may continue in b, and the rest of b. If b is cut short, the
// length is too large.
func longer(n int, b []byte) (length int, rest []byte) {
	if n < 15 {
		return n, b
	}
	for i, more := range b {
		n += int(more)
		if more < 255 {
			return n, b[i+1:]
		}
	}
	return math.MaxInt32 / 2, nil
}
