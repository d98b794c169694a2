package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

// Check reads the whole database at path, which must not be open elsewhere, and returns what it finds wrong with
// it, joined and at most a hundred lines; nil means that it is sound. Of a database of an older schema it reads the
// pages alone.
func Check(ctx context.Context, path string) error {
	db, err := openOffline(path)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	defer db.Close()
	found := &findings{ctx: ctx}
	err = readDamaged(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			schema, err := schemaOf(tx)
			switch {
			case err != nil || schema == 0:
				return err
			case schema > uint64(len(migrations)):
				return fmt.Errorf("%w: it has schema %d", ErrNewerSchema, schema)
			}
			if err := checkPages(tx); err != nil {
				return err
			}
			for err := range tx.Check() {
				found.add(fmt.Errorf("pages: %w", err))
			}
			if schema == uint64(len(migrations)) { // rows of an older one are read by its migration
				found.rows(tx)
			}
			return ctx.Err()
		})
	})
	if err = errors.Join(append(found.errs, err)...); err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	return nil
}

// findings collects what is wrong.
type findings struct {
	ctx  context.Context
	errs []error
}

const maxFindings = 100

func (f *findings) add(err error) {
	if err != nil && len(f.errs) < maxFindings {
		if !errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		f.errs = append(f.errs, err)
	}
}

// expect notes a row of bucket that does not point where it must.
func (f *findings) expect(ok bool, bucket, key []byte) {
	if !ok {
		f.add(fmt.Errorf("%s %x points nowhere", bucket, key))
	}
}

// rows decodes every row and follows every pointer.
func (f *findings) rows(tx *bbolt.Tx) {
	each := func(bucket []byte, fn func(k, v []byte)) {
		n := 0
		for k, v := range keysFrom(tx.Bucket(bucket), nil, nil) {
			if n++; len(f.errs) == maxFindings || n%1024 == 0 && f.ctx.Err() != nil {
				return
			}
			fn(k, v)
		}
	}
	cards, ids, changes := tx.Bucket(bucketCards), tx.Bucket(bucketIDs), tx.Bucket(bucketChanges)
	each(bucketCards, func(k, v []byte) {
		card, err := decodeCard(number(k), v)
		f.add(err)
		if err != nil {
			return
		}
		f.expect(bytes.Equal(ids.Get([]byte(card.ID)), k), bucketIDs, k)
		f.expect(changes.Get(u64(card.change)) != nil, bucketChanges, k)
		for _, count := range card.Counts {
			key := binary.BigEndian.AppendUint64(countKey(count), card.Seq)
			f.expect(has(tx.Bucket(bucketCounts), key), bucketCounts, k)
		}
	})
	each(bucketCounts, func(k, _ []byte) { f.expect(len(k) == 24 && cards.Get(k[16:]) != nil, bucketCounts, k) })
	each(bucketChanges, func(k, v []byte) {
		change, err := decodeChange(number(k), v)
		f.add(err)
		f.expect(err != nil || change.Gone || cards.Get(u64(change.seq)) != nil, bucketChanges, k)
	})
	f.convs(tx, each)
	f.records(tx, each)
}

func (f *findings) convs(tx *bbolt.Tx, each func([]byte, func(k, v []byte))) {
	there := func(seq []byte) bool {
		return len(seq) == 8 && tx.Bucket(bucketConvs).Get(convRowKey(seq, convRow, nil)) != nil
	}
	each(bucketConvs, func(k, v []byte) {
		if len(k) < 9 || !there(k[:8]) {
			f.expect(false, bucketConvs, k)
			return
		}
		seq := k[:8]
		switch k[8] {
		case convEntry:
			_, err := decodeEntry(number(k[9:]), v)
			f.add(err)
		case convRow:
			conv, err := decodeConv(number(seq), v)
			if f.add(err); err != nil {
				return
			}
			f.expect(bytes.Equal(convSeq(tx, conv.Key), seq), bucketConvKeys, k)
			for _, term := range conv.Terms {
				f.expect(has(tx.Bucket(bucketConvTerms), convTermKey(term, conv.Seq)), bucketConvTerms, k)
			}
			if conv.Entries > 0 {
				f.expect(tx.Bucket(bucketConvs).Get(convRowKey(seq, convEntry, u64(conv.Entries))) != nil, bucketConvs, k)
			}
		}
	})
	each(bucketConvKeys, func(k, v []byte) { f.expect(there(v), bucketConvKeys, k) })
	each(bucketConvTerms, func(k, _ []byte) { f.expect(len(k) > 8 && there(k[len(k)-8:]), bucketConvTerms, k) })
	each(bucketReplays, func(k, v []byte) {
		rec, err := decodeReplay(v)
		f.add(err)
		f.expect(err != nil || len(k) == 20 && bytes.Equal(replayHash(rec.Sender, rec.MessageID), k[4:]), bucketReplays, k)
	})
}

func (f *findings) records(tx *bbolt.Tx, each func([]byte, func(k, v []byte))) {
	each(bucketRecords, func(k, v []byte) {
		ns, key, ok := splitRecordKey(k)
		if !ok {
			f.expect(false, bucketRecords, k)
			return
		}
		rec, err := decodeRecord(ns, key, v)
		f.add(err)
		for _, term := range rec.Terms {
			f.expect(has(tx.Bucket(bucketRecordTerms), termKey(ns, term, key)), bucketRecordTerms, k)
		}
	})
	each(bucketRecordTerms, func(k, _ []byte) {
		ns, rest, ok := splitRecordKey(k)
		if !ok || len(rest) < 2 {
			f.expect(false, bucketRecordTerms, k)
			return
		}
		n := 2 + int(binary.BigEndian.Uint16([]byte(rest)))
		f.expect(len(rest) > n && tx.Bucket(bucketRecords).Get(recordKey(ns, rest[n:])) != nil, bucketRecordTerms, k)
	})
	for k := range keysFrom(tx.Bucket(bucketExpiries), nil, nil) {
		f.expect(len(k) > 9, bucketExpiries, k)
	}
}

// has says whether a key with an empty value is there: Get cannot tell.
func has(b *bbolt.Bucket, key []byte) bool {
	k, _ := b.Cursor().Seek(key)
	return bytes.Equal(k, key)
}
