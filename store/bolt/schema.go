package bolt

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"
)

// The buckets. Keys are big endian, so that bbolt's byte order is the order of numbers and times; seq, change and
// n are u64, and what grows with time is inserted at the end of its bucket.
//
//	meta         "schema" → u64 · "snapshots" → tags of the last two index snapshots · "floor" → change u64.
//	             Its sequence numbers the revisions.
//	cards        seq → card
//	ids          id → seq, until the tombstone of the id goes
//	counts       hash16(count) seq → nothing
//	changes      change → change; one per seq, so one per id that matters
//	convs        seq 0 hash16(sender, message id) → nothing, for a replay that came without an entry ·
//	             seq 1 n → entry · seq 2 → conv. A step writes the last entry and the row: that is mostly one page
//	convkeys     key2(peer) id → seq
//	convterms    key2(term) seq → nothing
//	replays      part u32 hash16(sender, message id) → replay. A part is four days of expiry, so that inserts
//	             stay together and sweeping deletes a range; a look-up asks each part that there is
//	records      key1(ns) key → record
//	recordterms  key1(ns) key2(term) key → nothing
//	expiries     time kind key → nothing: when Sweep must look at a row. A row has an entry no later than its
//	             end; one that lives longer by then is entered anew, so that renewing writes nothing here
//
// key1 and key2 are a text behind its length in one or two bytes.
var (
	bucketMeta        = []byte("meta")
	bucketCards       = []byte("cards")
	bucketIDs         = []byte("ids")
	bucketCounts      = []byte("counts")
	bucketChanges     = []byte("changes")
	bucketConvs       = []byte("convs")
	bucketConvKeys    = []byte("convkeys")
	bucketConvTerms   = []byte("convterms")
	bucketReplays     = []byte("replays")
	bucketRecords     = []byte("records")
	bucketRecordTerms = []byte("recordterms")
	bucketExpiries    = []byte("expiries")

	keySchema    = []byte("schema")
	keySnapshots = []byte("snapshots")
	keyFloor     = []byte("floor")
)

// migrations[i] takes a database from schema i to i+1. All that are due run in one transaction with the new number. One
// that changes cards deletes keySnapshots as well. A new one comes with testdata/schema-N.db.gz, the database of the
// schema before it.
var migrations = []func(*bbolt.Tx) error{
	createBuckets,
}

func createBuckets(tx *bbolt.Tx) error {
	for _, name := range [][]byte{
		bucketMeta, bucketCards, bucketIDs, bucketCounts, bucketChanges, bucketConvs, bucketConvKeys, bucketConvTerms,
		bucketReplays, bucketRecords, bucketRecordTerms, bucketExpiries,
	} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return nil
}

// schemaOf is 0 for an empty file, ErrDamaged for a bbolt file that is not ours.
func schemaOf(tx *bbolt.Tx) (uint64, error) {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		if name, _ := tx.Cursor().First(); name != nil {
			return 0, fmt.Errorf("%w: it holds no agentmesh data", ErrDamaged)
		}
		return 0, nil
	}
	v := meta.Get(keySchema)
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: no schema version", ErrDamaged)
	}
	return binary.BigEndian.Uint64(v), nil
}

// migrate brings the schema up to date by steps or says ErrNewerSchema. A database of an older schema is copied first,
// to the file that [OlderCopy] names.
func (s *Store) migrate(steps []func(*bbolt.Tx) error) error {
	var have uint64
	if err := s.db.View(func(tx *bbolt.Tx) (err error) {
		have, err = schemaOf(tx)
		return err
	}); err != nil {
		return err
	}
	want := uint64(len(steps))
	if have > want {
		return fmt.Errorf("%w: it has schema %d, this program knows %d", ErrNewerSchema, have, want)
	}
	if have == want {
		return nil
	}
	if have > 0 {
		if err := s.copyTo(OlderCopy(s.path, have)); err != nil {
			return fmt.Errorf("keep a copy before the migration from schema %d: %w", have, err)
		}
		s.log.Info("migrating the database", "from", have, "to", want, "copy", OlderCopy(s.path, have))
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		for ; have < want; have++ {
			if err := steps[have](tx); err != nil {
				return fmt.Errorf("migrate from schema %d: %w", have, err)
			}
		}
		return tx.Bucket(bucketMeta).Put(keySchema, u64(want))
	})
}

// OlderCopy is where the database at path is kept as it was, before it is migrated from an older schema. A week later it
// goes: what was purged since still stands in it.
func OlderCopy(path string, schema uint64) string { return fmt.Sprintf("%s.schema-%d", path, schema) }

const keepOlder = 7 * 24 * time.Hour

// dropOlder removes the copies of [OlderCopy] that are as old at now. What it cannot remove it tries again next time.
func (s *Store) dropOlder(now time.Time) {
	dir, prefix := filepath.Dir(s.path), filepath.Base(s.path)+".schema-"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		schema, is := strings.CutPrefix(e.Name(), prefix)
		if _, err := strconv.ParseUint(schema, 10, 64); !is || err != nil || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) < keepOlder {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err == nil {
			s.log.Info("the copy from before the migration is removed", "copy", e.Name())
		}
	}
}

func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// number reads a u64 that stands where one must.
func number(v []byte) uint64 {
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

func key1(b []byte, text string) []byte { return append(append(b, byte(len(text))), text...) }

func key2(b []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(text))), text...)
}
