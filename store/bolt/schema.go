package bolt

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// The buckets. Numbers in keys are big endian, so that bbolt's byte order is the order of numbers and times; seq (the
// number of a card or conversation) and n are u64. Rows whose keys grow with time are inserted at the end of their
// bucket.
//
//	meta         "schema" → u64 ·
//	             "fences" → u64, added to the fence of every lease ·
//	             "tally" → for each bucket, in the order below, its rows u64 and the sum of their checksums u64, see [tally] ·
//	             The sequence of this bucket is the newest revision.
//	cards        seq → card
//	ids          id → seq, until Sweep removes the last change of the id
//	counts       hash16(text of Card.Counts) seq → nothing
//	changes      number of the change → change; a card has only its newest change
//	convs        seq, a byte 0, hash16(sender, message id) → nothing, for a replay record that no entry names ·
//	             seq, a byte 1, n → entry number n · seq, a byte 2 → conversation, next to its last entry, because
//	             most writes change both
//	convkeys     hash16(peer, id) → seq
//	convterms    hash16(term) seq → nothing
//	replays      part u32 hash16(sender, message id) → replay. A part has the records that expire in the same
//	             four days: inserts stay together, and sweeping deletes a range; a look-up searches each part
//	records      key1(ns) key → record
//	recordterms  key1(ns) hash16(term) key → nothing
//	lanes        key1(ns) hash16(lane) key → nothing, for a record with a Due and a Lane
//	heads        key1(ns) time rev key → expiry u64, then the party; for a record that is the head of its lane
//	expiries     time kind key → nothing: when Sweep must look at a row. Every row that expires has an entry not
//	             later than its end. If it was renewed, Sweep then enters it again, so renewing writes nothing here
//
// key1 is a text preceded by its length in one byte; hash16 is half a SHA-256. Every stored value ends
// with a checksum (checksum.go), even an empty value, because a changed bit in a row that only points to another row
// would hide that other row.
var (
	bucketMeta        = newBucket("meta", bbolt.DefaultFillPercent)
	bucketCards       = newBucket("cards", 0.9)
	bucketIDs         = newBucket("ids", bbolt.DefaultFillPercent)
	bucketCounts      = newBucket("counts", bbolt.DefaultFillPercent)
	bucketChanges     = newBucket("changes", 0.95)
	bucketConvs       = newBucket("convs", 0.9)
	bucketConvKeys    = newBucket("convkeys", bbolt.DefaultFillPercent)
	bucketConvTerms   = newBucket("convterms", fillMixed)
	bucketReplays     = newBucket("replays", bbolt.DefaultFillPercent)
	bucketRecords     = newBucket("records", 0.9)
	bucketRecordTerms = newBucket("recordterms", fillMixed)
	bucketLanes       = newBucket("lanes", fillMixed)
	bucketHeads       = newBucket("heads", bbolt.DefaultFillPercent)
	bucketExpiries    = newBucket("expiries", 0.9)

	buckets = []bucket{
		bucketMeta, bucketCards, bucketIDs, bucketCounts, bucketChanges, bucketConvs, bucketConvKeys, bucketConvTerms,
		bucketReplays, bucketRecords, bucketRecordTerms, bucketLanes, bucketHeads, bucketExpiries,
	}

	keySchema = []byte("schema")
	keyFences = []byte("fences")
	keyTally  = []byte("tally")
)

// fillMixed is for buckets in which most terms list few rows, which come in random order, and a few terms list most rows,
// which are appended at the end of each list.
const fillMixed = 0.7

// schema is the number of this layout of the buckets and rows.
const schema = 1

// createBuckets makes a new database.
func createBuckets(tx *bbolt.Tx) error {
	for _, b := range buckets {
		if _, err := tx.CreateBucket(b.name); err != nil {
			return err
		}
	}
	t := &txn{reads: reads{tx}, tally: make(tally)}
	bucketMeta.in(t).put(keySchema, u64(schema))
	return t.saveTally()
}

// checkSchema returns nil for a database of this schema and for an empty file, ErrNewerSchema for a newer schema, and
// ErrDamaged for everything else, such as a bbolt file of another program.
func checkSchema(tx *bbolt.Tx) error {
	if name, _ := tx.Cursor().First(); name == nil {
		return nil
	}
	meta := bucketMeta.in(tx)
	if meta.raw == nil {
		return fmt.Errorf("%w: it is not an agentmesh database", ErrDamaged)
	}
	stored, err := meta.get(keySchema)
	if err != nil {
		return err
	}
	switch n := number(stored); {
	case n > schema:
		return fmt.Errorf("%w: it has schema %d, this program knows schema %d", ErrNewerSchema, n, schema)
	case n < schema:
		return fmt.Errorf("%w: no schema version", ErrDamaged)
	}
	return nil
}

func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// number decodes a u64. It returns 0 if v does not have eight bytes.
func number(v []byte) uint64 {
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}
