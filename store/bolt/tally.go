package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store/engine"
)

// tally counts the rows of buckets, except its own row in bucketMeta. Each commit stores it. A changed bit in a branch page
// can hide rows without damage to any other row, so only numbers tell that rows are missing.
type tally map[string]*count

// of returns the count of b, which the caller may change.
func (t tally) of(b bucket) *count {
	n := t[string(b.name)]
	if n == nil {
		n = new(count)
		t[string(b.name)] = n
	}
	return n
}

// count is the number of rows of a bucket and the sum of their checksums. In a transaction it is what changes, modulo 2^64.
type count struct{ rows, sum uint64 }

// add counts a row with this checksum.
func (n *count) add(b bucket, key []byte, sum uint32) {
	if !b.isTally(key) {
		n.rows++
		n.sum += uint64(sum)
	}
}

func (n *count) remove(b bucket, key, stored []byte) {
	if stored != nil && !b.isTally(key) {
		n.rows--
		n.sum -= uint64(b.weight(key, stored))
	}
}

func (b bucket) isTally(key []byte) bool {
	return bytes.Equal(key, keyTally) && bytes.Equal(b.name, bucketMeta.name)
}

// weight returns the checksum with which a row was stored, even if one bit of the row has changed since then: a damaged row
// is refused by itself, so it must not make the sum of its bucket wrong.
func (b bucket) weight(key, stored []byte) uint32 {
	n := len(stored) - sumSize
	if n < 0 {
		return 0
	}
	kept := binary.BigEndian.Uint32(stored[n:])
	computed := crc32.Update(crc32.Update(b.sum, castagnoli, key), castagnoli, stored[:n])
	if bits.OnesCount32(kept^computed) == 1 { // the bit is in the checksum; any other bit would change several of its bits
		return computed
	}
	return kept
}

// saveTally adds the changes of the transaction to the stored tally.
func (t *txn) saveTally() error {
	meta := bucketMeta.in(t)
	stored, err := meta.get(keyTally)
	if err != nil {
		return err
	}
	if stored == nil {
		stored = make([]byte, len(buckets)*16)
	}
	updated := make([]byte, 0, len(buckets)*16+sumSize)
	for i, b := range buckets {
		n := t.tally.of(b)
		updated = engine.AppendU64(updated, number(stored[16*i:16*i+8])+n.rows)
		updated = engine.AppendU64(updated, number(stored[16*i+8:16*i+16])+n.sum)
	}
	meta.put(keyTally, updated)
	return nil
}

// compare compares the rows that were found with the stored tally, see [checkPages] for quick.
func (t tally) compare(tx *bbolt.Tx, quick bool) error {
	if len(t) == 0 { // a new file
		return nil
	}
	stored, err := bucketMeta.in(tx).get(keyTally)
	if err != nil {
		return err
	}
	if len(stored) != len(buckets)*16 {
		return fmt.Errorf("%w: the numbers of rows are missing", ErrDamaged)
	}
	var faults []error
	for i, b := range buckets {
		found, want := *t.of(b), count{number(stored[16*i : 16*i+8]), number(stored[16*i+8 : 16*i+16])}
		switch {
		case found.rows != want.rows:
			faults = append(faults, fmt.Errorf("%w: %s has %d rows, but should have %d", ErrDamaged, b.name, found.rows, want.rows))
		case found.sum != want.sum && !quick:
			faults = append(faults, fmt.Errorf("%w: some of the %d rows of %s are not those that were stored", ErrDamaged, found.rows, b.name))
		}
	}
	return errors.Join(faults...)
}
