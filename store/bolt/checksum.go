package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"iter"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store/cardindex"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumSize is the size of the checksum at the end of every stored value: the CRC-32C of the bucket's name, a zero byte,
// the key and the value, big endian. So the checksum detects not only changed bits, but also a row with the wrong key
// or in the wrong bucket. It protects against faults of disk and memory, not against an attacker who can write to the
// file.
const sumSize = 4

// bucket is one of the buckets in schema.go.
type bucket struct {
	name []byte
	sum  uint32 // CRC-32C of the name and the zero byte
	fill float64
}

// newBucket returns a bucket. fill is how full bbolt leaves a page that it splits: more than half if rows are mostly
// appended, at the end of the bucket or of a conversation, because otherwise half of each page would stay empty.
func newBucket(name string, fill float64) bucket {
	return bucket{[]byte(name), crc32.Checksum(append([]byte(name), 0), castagnoli), fill}
}

// seal appends the checksum of a row to its value.
func (b bucket) seal(key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(value, crc32.Update(crc32.Update(b.sum, castagnoli, key), castagnoli, value))
}

// open verifies the checksum of stored and returns the value without the checksum, never nil. If the checksum does not
// match, the error is ErrDamaged with the names of the bucket and the key.
func (b bucket) open(key, stored []byte) ([]byte, error) {
	n := len(stored) - sumSize
	if n < 0 {
		return nil, b.damageError(key, "the checksum is missing")
	}
	sum := crc32.Update(crc32.Update(b.sum, castagnoli, key), castagnoli, stored[:n])
	if sum != binary.BigEndian.Uint32(stored[n:]) {
		return nil, b.damageError(key, "the checksum does not match")
	}
	return stored[:n:n], nil
}

// read works like open, for a row that a cursor found. original is the key under which the row was stored: if the
// checksum does not match key, but matches a key that differs in one bit, original is that other key. Otherwise it is key.
func (b bucket) read(key, stored []byte) (original, value []byte, err error) {
	if value, err = b.open(key, stored); err == nil {
		return key, value, nil
	}
	original = bytes.Clone(key)
	for bit := range 8 * len(original) {
		original[bit/8] ^= 1 << (bit % 8)
		if _, flippedErr := b.open(original, stored); flippedErr == nil {
			return original, nil, err
		}
		original[bit/8] ^= 1 << (bit % 8)
	}
	return key, nil, err
}

func (b bucket) damageError(key []byte, reason string) error {
	return fmt.Errorf("%w: row %q of %s: %s", ErrDamaged, key, b.name, reason)
}

// reader is a *bbolt.Tx or, for writes, a *txn.
type reader interface {
	Bucket(name []byte) *bbolt.Bucket
}

// in returns the rows of b in a transaction. Every read and write of a row goes through them.
func (b bucket) in(tx reader) rows {
	r := rows{bucket: b, raw: tx.Bucket(b.name)}
	if r.raw != nil {
		r.raw.FillPercent = b.fill
	}
	if t, ok := tx.(*txn); ok {
		r.count = t.tally.of(b)
		r.raw.FillPercent = max(b.fill, t.fill)
	}
	return r
}

// rows reads and writes the rows of a bucket. The slices that its methods return are valid until the transaction ends.
type rows struct {
	bucket
	raw   *bbolt.Bucket // its values end with the checksums
	count *count        // what the transaction changes; nil in a transaction that only reads
}

// row is a key and a value whose checksum was verified.
type row struct{ key, value []byte }

// get returns the value under key, or nil if the row does not exist. If the row is damaged, even by a changed bit in
// its key, the error is ErrDamaged, so that a damaged row does not look missing.
func (r rows) get(key []byte) ([]byte, error) { return r.at(r.raw.Cursor(), key) }

// at works like get with a cursor of the caller, so that reading many rows needs only one cursor.
func (r rows) at(c *bbolt.Cursor, key []byte) ([]byte, error) {
	next, stored := c.Seek(key)
	if next != nil && bytes.Equal(next, key) {
		return r.open(key, stored)
	}
	_, _, err := r.before(c, key, key, next, stored, true) // finds out whether damage hides the row; true: exact
	return nil, err
}

// put stores a row. It panics if bbolt fails, because a page is damaged or the row is too large, which no caller can
// handle. [engine.Guard] turns the panic into an error.
func (r rows) put(key, value []byte) {
	sealed := r.seal(key, value)
	r.count.remove(r.bucket, key, r.raw.Get(key))
	r.count.add(r.bucket, key, binary.BigEndian.Uint32(sealed[len(sealed)-sumSize:]))
	if err := r.raw.Put(key, sealed); err != nil {
		panic(err)
	}
}

// delete removes a row, if it exists. It panics like put.
func (r rows) delete(key []byte) {
	r.count.remove(r.bucket, key, r.raw.Get(key))
	if err := r.raw.Delete(key); err != nil {
		panic(err)
	}
}

// next returns the next number of the sequence of the bucket. It panics like put.
func (r rows) next() uint64 {
	n, err := r.raw.NextSequence()
	if err != nil {
		panic(err)
	}
	return n
}

// from yields, in order, the rows whose keys are not before start and begin with prefix. For a damaged row it yields an
// error, and the caller may continue.
func (r rows) from(start, prefix []byte) iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		if len(start) > 0 { // a row just before start may belong after it, if a bit of its key has changed
			c := r.raw.Cursor()
			k, stored := c.Seek(start)
			if _, _, err := r.before(c, start, prefix, k, stored, false); err != nil && !yield(row{}, err) {
				return
			}
		}
		c := r.raw.Cursor()
		k, stored := c.Seek(start)
		r.walk(k, stored, prefix, c.Next, yield)
	}
}

// backward yields, from the last one on, the rows whose keys are before end and begin with prefix. It treats damaged
// rows like from.
func (r rows) backward(end, prefix []byte) iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		c := r.raw.Cursor()
		k, stored := c.Seek(end)
		k, stored, err := r.before(c, end, prefix, k, stored, false)
		if err != nil && !yield(row{}, err) || k == nil {
			return
		}
		if key, value := c.Seek(k); !bytes.Equal(key, k) || !bytes.Equal(value, stored) { // before moved the cursor
			yield(row{}, r.damageError(k, "it is out of order"))
			return
		}
		r.walk(k, stored, prefix, c.Prev, yield)
	}
}

// walk yields the row under k and those that next returns, as long as they begin with prefix.
func (r rows) walk(k, stored, prefix []byte, next func() (key, value []byte), yield func(row, error) bool) {
	for ; k != nil; k, stored = next() {
		original, value, err := r.read(k, stored)
		if !bytes.HasPrefix(k, prefix) && !bytes.HasPrefix(original, prefix) || !yield(row{k, value}, err) {
			return
		}
	}
}

// endOf returns a key after all that begin with prefix.
func endOf(prefix []byte) []byte {
	return append(bytes.Clone(prefix), bytes.Repeat([]byte{0xff}, 513)...) // longer than the rest of a key
}

// last returns the largest key that begins with prefix, or nil.
func (r rows) last(prefix []byte) ([]byte, error) {
	for row, err := range r.backward(endOf(prefix), prefix) {
		return row.key, err
	}
	return nil, nil
}

// replace turns the rows of the sorted set old into those of the sorted set updated. key makes the key of a text's row.
func (r rows) replace(old, updated []string, key func(text string) []byte) {
	for removed, text := range cardindex.Diff(old, updated) {
		if removed {
			r.delete(key(text))
		} else {
			r.put(key(text), nil)
		}
	}
}

// stepBack returns the row before key, at which the cursor stands, or nil. In a transaction that has deleted rows, bbolt
// stops at each leaf that is empty now, and turns around at the first one.
func stepBack(c *bbolt.Cursor, key []byte) (prev, stored []byte) {
	const maxEmpty = 64 // leaves in a row; beyond them the row is not found, so only its damage is not noticed
	for range maxEmpty {
		if prev, stored = c.Prev(); prev != nil {
			break
		}
	}
	if bytes.Equal(prev, key) {
		return nil, nil
	}
	return prev, stored
}

// before returns the row before key as it is stored, or nil. next is the row that c found at or after key. A row whose
// key has a changed bit stays in its old place, so a search for its key, or for a key nearby, can end in the wrong
// place, next to that row. Therefore the error is ErrDamaged if the rows around the place are out of order, or if a
// neighbor is a damaged row whose original key began with prefix (if exact is set: was prefix).
func (r rows) before(c *bbolt.Cursor, key, prefix, next, nextStored []byte, exact bool) (prev, stored []byte, err error) {
	var near [4][]byte // two keys before the place and two after it
	near[2] = next
	if next == nil {
		if first, _ := c.First(); first != nil { // where every leaf is empty, Last of bbolt does not return
			prev, stored = c.Last()
		}
	} else {
		if near[3], _ = c.Next(); near[3] != nil { // at the end, the cursor does not move
			c.Seek(next)
		}
		prev, stored = stepBack(c, next)
	}
	near[1] = prev
	if prev != nil {
		near[0], _ = stepBack(c, prev)
	}
	if !inOrder(near[0], prev, key) || next != nil && bytes.Compare(key, next) > 0 || !inOrder(next, near[3]) {
		return prev, stored, fmt.Errorf("%w: rows of %s beside %q are out of order: %q", ErrDamaged, r.name, key, near)
	}
	for _, neighbor := range [2]row{{prev, stored}, {next, nextStored}} {
		if neighbor.key == nil {
			continue
		}
		original, _, err := r.read(neighbor.key, neighbor.value)
		if err != nil && bytes.HasPrefix(original, prefix) && (!exact || len(original) == len(prefix)) {
			return prev, stored, err
		}
	}
	return prev, stored, nil
}

// inOrder reports whether the keys are in ascending order. It does not compare a nil key.
func inOrder(keys ...[]byte) bool {
	for i, key := range keys[1:] {
		if keys[i] != nil && key != nil && bytes.Compare(keys[i], key) >= 0 {
			return false
		}
	}
	return true
}
