package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"go.etcd.io/bbolt"
)

// The format of bbolt's pages, in the byte order of the machine: id u64, flags u16, number of elements u16, number of
// further pages u32, elements, keys and values. An element of a branch is: position of its key from the element u32, length
// of the key u32, page u64. An element of a leaf is: flags u32, position u32, lengths of key and value u32. The value of a
// bucket is: root page u64, sequence u64 and, if the root page is 0, the page itself.
const (
	pageHead    = 16
	elementSize = 16
	bucketHead  = 16

	flagBranch = 1
	flagLeaf   = 2
)

// pageReader reads the trees of a database from its file, and trusts no page. bbolt trusts them all: at a damaged page,
// its scans in Open and Tx.Check panic or go on after their transaction has ended, in goroutines in which nobody recovers.
type pageReader struct {
	file io.ReaderAt
	size int
	seen []bool // by number of page
	leaf []byte // a buffer
}

// visitor gets the rows of a tree in order or, if row is nil, only their number.
type visitor struct {
	row  func(isBucket bool, key, stored []byte) error
	rows uint64
}

// checkPages reads every page and row, and counts the rows. It refuses trees that bbolt's scan would panic at, rows that are
// out of order and rows whose key has changed. If quick is set, it reads no rows, and their checksums are not summed.
func checkPages(tx *bbolt.Tx, quick bool) (tally, error) {
	if err := checkSchema(tx); err != nil {
		return nil, err
	}
	f, err := os.Open(tx.DB().Path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := tx.DB().Info().PageSize
	r := &pageReader{file: f, size: size, seen: make([]bool, tx.Size()/int64(size))}
	found := make(tally)
	err = r.tree(uint64(tx.Cursor().Bucket().Root()), nil, nil, &visitor{row: func(isBucket bool, name, value []byte) error {
		if !isBucket || len(value) < bucketHead {
			return fmt.Errorf("%q is not a bucket", name)
		}
		b := newBucket(string(name), bbolt.DefaultFillPercent)
		n := found.of(b)
		if !quick || bytes.Equal(name, bucketMeta.name) { // the tally does not count its own row
			return r.bucket(value, b, &visitor{row: func(isBucket bool, k, v []byte) error { return checkRow(isBucket, b, n, k, v) }})
		}
		var counted visitor
		err := r.bucket(value, b, &counted)
		n.rows = counted.rows
		return err
	}})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return found, nil
}

// checkRow checks the key of a row, and counts the row.
func checkRow(isBucket bool, b bucket, n *count, key, stored []byte) error {
	if isBucket {
		return fmt.Errorf("row %q is a bucket", key)
	}
	if _, err := b.open(key, stored); err == nil {
		n.add(b, key, binary.BigEndian.Uint32(stored[len(stored)-sumSize:]))
		return nil
	}
	if original, _, _ := b.read(key, stored); !bytes.Equal(original, key) {
		return fmt.Errorf("a bit changed in the key of row %q", key)
	}
	n.add(b, key, b.weight(key, stored))
	return nil
}

// bucket visits the rows of the bucket with this value.
func (r *pageReader) bucket(value []byte, b bucket, v *visitor) error {
	var err error
	if id := binary.NativeEndian.Uint64(value); id != 0 {
		err = r.tree(id, nil, nil, v)
	} else {
		err = r.page(value[bucketHead:], nil, nil, v)
	}
	if err != nil {
		return fmt.Errorf("pages of %s: %w", b.name, err)
	}
	return nil
}

// tree visits the rows below a page. Their keys must not be before low and, unless end is nil, be before end.
func (r *pageReader) tree(id uint64, low, end []byte, v *visitor) error {
	if id < 2 || id >= uint64(len(r.seen)) { // the first two pages describe the file
		return fmt.Errorf("there is no page %d", id)
	}
	page := r.leaf
	r.leaf = nil
	if page == nil {
		page = make([]byte, r.size)
	}
	if _, err := r.file.ReadAt(page, int64(id)*int64(r.size)); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	further := uint64(binary.NativeEndian.Uint32(page[12:]))
	if binary.NativeEndian.Uint64(page) != id || further >= uint64(len(r.seen))-id {
		return fmt.Errorf("page %d does not describe itself", id)
	}
	for n := id; n <= id+further; n++ {
		if r.seen[n] {
			return fmt.Errorf("page %d is used twice", n)
		}
		r.seen[n] = true
	}
	whole := page
	if further > 0 {
		whole = make([]byte, (1+further)*uint64(r.size))
		if _, err := r.file.ReadAt(whole, int64(id)*int64(r.size)); err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
	}
	if err := r.page(whole, low, end, v); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	r.leaf = page // nothing refers to its keys any more
	return nil
}

// page visits the rows of a page and of the pages below it.
func (r *pageReader) page(page, low, end []byte, v *visitor) error {
	if len(page) < pageHead {
		return errors.New("the page is too short")
	}
	flags, n := binary.NativeEndian.Uint16(page[8:]), int(binary.NativeEndian.Uint16(page[10:]))
	isLeaf := flags == flagLeaf
	if !isLeaf && (flags != flagBranch || n == 0) || pageHead+n*elementSize > len(page) {
		return errors.New("neither a branch nor a leaf")
	}
	if isLeaf {
		v.rows += uint64(n)
		if v.row == nil {
			return nil
		}
	}
	var last, element []byte // the element before element i, and its key
	for i := range n + 1 {
		key, at := end, []byte(nil)
		if i < n {
			at = page[pageHead+i*elementSize:]
			pos, length := binary.NativeEndian.Uint32(at), binary.NativeEndian.Uint32(at[4:])
			if isLeaf {
				pos, length = length, binary.NativeEndian.Uint32(at[8:])
			}
			if uint64(pos)+uint64(length) > uint64(len(at)) {
				return fmt.Errorf("element %d is outside the page", i)
			}
			key = at[pos : pos+length]
			if i == 0 && bytes.Compare(key, low) < 0 || i > 0 && bytes.Compare(last, key) >= 0 || end != nil && bytes.Compare(key, end) >= 0 {
				return fmt.Errorf("row %d, %q, is out of order", i, key)
			}
		}
		if i > 0 {
			if err := r.element(element, last, key, isLeaf, v); err != nil {
				return err
			}
		}
		last, element = key, at
	}
	return nil
}

// element visits a row, or the rows below an element of a branch, whose keys are before end.
func (r *pageReader) element(at, key, end []byte, isLeaf bool, v *visitor) error {
	if !isLeaf {
		return r.tree(binary.NativeEndian.Uint64(at[8:]), key, end, v)
	}
	pos := uint64(binary.NativeEndian.Uint32(at[4:])) + uint64(len(key))
	length := uint64(binary.NativeEndian.Uint32(at[12:]))
	if pos+length > uint64(len(at)) {
		return fmt.Errorf("the value of %q is outside the page", key)
	}
	return v.row(binary.NativeEndian.Uint32(at) == 1, key, at[pos:pos+length])
}
