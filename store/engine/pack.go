package engine

import (
	"sync"

	"github.com/klauspost/compress/s2"
)

// Rows hold short JSON texts and terms that repeat each other and are alike from row to row, so all but the head of a row
// is stored packed: as a block of S2 with a dictionary.
var rowDictionary = s2.MakeDict([]byte(dictionary), nil)

// maxFields is the size of the largest value that PostgreSQL stores. It bounds what a damaged row can make a reader
// allocate.
const maxFields = 1 << 30

// packer packs fields. Start with newPacker and end with free.
type packer struct {
	fields []byte // collected since the last pack
	block  []byte
}

var packers = sync.Pool{New: func() any { return new(packer) }}

func newPacker() *packer { return packers.Get().(*packer) }

// pack returns the collected fields as a block, which is valid until the next pack, and begins to collect others.
func (p *packer) pack() []byte {
	p.block = rowDictionary.Encode(p.block, p.fields)
	p.fields = p.fields[:0]
	return p.block
}

func (p *packer) free() {
	const maxKept = 64 << 10
	if cap(p.fields) <= maxKept {
		packers.Put(p)
	}
}

// unpackedLen returns the length of the fields in the block that is the rest of the row.
func (r *reader) unpackedLen() int {
	n, err := s2.DecodedLen(r.b)
	if r.err == nil && (err != nil || n > maxFields) {
		r.err = errRow
	}
	if r.err != nil {
		return 0
	}
	return n
}

// unpack replaces the rest of the row, a block, by its fields: in buf or, if it is too small, in an array of their own, so
// that the results of the reader may outlive the transaction.
func (r *reader) unpack(buf []byte) {
	r.unpackedLen()
	if r.err != nil {
		return
	}
	fields, err := rowDictionary.Decode(buf, r.b)
	if err != nil {
		r.err = errRow
	}
	r.b = fields
}
