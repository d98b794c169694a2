package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
)

// Check reads the whole database at path, which must not be open elsewhere, and returns the faults that it finds as one
// joined error with at most a hundred lines, or nil if the database is sound.
func Check(ctx context.Context, path string) error {
	db, err := openOffline(path)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	defer db.Close()
	found := &findings{ctx: ctx}
	err = catchDamage(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			if tx.Bucket(bucketMeta.name) == nil {
				return checkSchema(tx)
			}
			if err := found.checkPages(tx); err != nil {
				return err
			}
			found.checkRows(tx)
			return ctx.Err()
		})
	})
	if err = errors.Join(append(found.errs, err)...); err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	return nil
}

// findings collects the faults of a database.
type findings struct {
	ctx  context.Context
	errs []error
}

const maxFindings = 100

// add adds a fault as ErrDamaged, unless err is nil or maxFindings is reached.
func (f *findings) add(err error) {
	if err != nil && len(f.errs) < maxFindings {
		if !errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		f.errs = append(f.errs, err)
	}
}

// expect adds a fault about the row with this key in b if ok is false.
func (f *findings) expect(ok bool, b bucket, key []byte) {
	if !ok {
		f.add(fmt.Errorf("%s %x does not match the rows that it belongs to", b.name, key))
	}
}

// checkPages checks the structure of the file and the number of rows. Its error means that the rows cannot be read.
func (f *findings) checkPages(tx *bbolt.Tx) error {
	rows, err := checkPages(tx, false)
	if err != nil {
		return err
	}
	f.add(rows.compare(tx, false))
	return f.ctx.Err()
}

// checkRows decodes the rows and follows the pointers from one row to another.
func (f *findings) checkRows(tx *bbolt.Tx) {
	// each verifies the checksums of a bucket and calls fn for each row that is not damaged.
	each := func(b bucket, fn func(k, v []byte)) {
		n := 0
		for row, err := range b.in(tx).from(nil, nil) {
			if n++; len(f.errs) == maxFindings || n%1024 == 0 && f.ctx.Err() != nil {
				return
			}
			if f.add(err); err == nil {
				fn(row.key, row.value)
			}
		}
	}
	each(bucketMeta, func([]byte, []byte) {})
	f.checkCards(tx, each)
	f.checkConvs(tx, each)
	f.checkRecords(tx, each)
	each(bucketExpiries, func(k, _ []byte) { f.expect(len(k) > 9, bucketExpiries, k) })
	// A new row takes the next number of the sequence, so no existing row may have a higher number.
	for _, b := range []bucket{bucketCards, bucketChanges, bucketConvs} {
		last, _ := b.in(tx).raw.Cursor().Last()
		f.expect(len(last) < 8 || number(last[:8]) <= b.in(tx).raw.Sequence(), b, last)
	}
}

// rowExists reports whether b has a row under key, sound or damaged.
func rowExists(tx *bbolt.Tx, b bucket, key []byte) bool { return b.in(tx).raw.Get(key) != nil }

// decode decodes a row of b, and checks that the rows by which it is found exist. It returns nil if the row is damaged.
func (f *findings) decode(tx *bbolt.Tx, b bucket, key []byte, r engine.Row) any {
	r, decoded, err := r.Decode()
	if f.add(err); err != nil {
		return nil
	}
	if p := placeOf(r); p.kind != 0 {
		if p.numbers.name != nil {
			num, err := p.numbers.in(tx).get(r.Key)
			f.expect(err != nil || bytes.Equal(num, u64(r.Num)), b, key)
		}
		for _, term := range r.Terms {
			f.expect(rowExists(tx, p.terms, p.termKey(term)), b, key)
		}
	}
	return decoded
}

func (f *findings) checkCards(tx *bbolt.Tx, each func(bucket, func(k, v []byte))) {
	each(bucketCards, func(k, v []byte) {
		card, ok := f.decode(tx, bucketCards, k, engine.Row{Kind: engine.KindCard, Num: number(k), Value: v}).(engine.CardRow)
		f.expect(!ok || rowExists(tx, bucketChanges, u64(card.Change)), bucketCards, k)
	})
	each(bucketIDs, func([]byte, []byte) {})
	each(bucketCounts, func(k, _ []byte) { f.expect(len(k) == 24 && rowExists(tx, bucketCards, k[16:]), bucketCounts, k) })
	each(bucketChanges, func(k, v []byte) {
		change, err := engine.DecodeChange(number(k), v)
		f.add(err)
		f.expect(err != nil || change.Gone || rowExists(tx, bucketCards, u64(change.Seq)), bucketChanges, k)
	})
}

func (f *findings) checkConvs(tx *bbolt.Tx, each func(bucket, func(k, v []byte))) {
	hasConv := func(seq []byte) bool {
		return len(seq) == 8 && rowExists(tx, bucketConvs, convRowKey(seq, convRow, nil))
	}
	each(bucketConvs, func(k, v []byte) {
		if len(k) < 9 || !hasConv(k[:8]) {
			f.expect(false, bucketConvs, k)
			return
		}
		seq := k[:8]
		switch k[8] {
		case convEntry:
			f.decode(tx, bucketConvs, k, engine.Row{Kind: engine.KindEntry, Num: number(seq), N: number(k[9:]), Value: v})
		case convRow:
			conv, _ := f.decode(tx, bucketConvs, k, engine.Row{Kind: engine.KindConv, Num: number(seq), Value: v}).(store.Conversation)
			if conv.Entries > 0 {
				f.expect(rowExists(tx, bucketConvs, convRowKey(seq, convEntry, u64(conv.Entries))), bucketConvs, k)
			}
		}
	})
	each(bucketConvKeys, func(k, v []byte) { f.expect(hasConv(v), bucketConvKeys, k) })
	each(bucketConvTerms, func(k, _ []byte) { f.expect(len(k) > 8 && hasConv(k[len(k)-8:]), bucketConvTerms, k) })
	each(bucketReplays, func(k, v []byte) {
		rec, err := engine.DecodeReplay(v)
		f.add(err)
		f.expect(err != nil || len(k) == 20 && bytes.Equal(engine.ReplayHash(rec.Sender, rec.MessageID), k[4:]), bucketReplays, k)
		seq := u64(rec.ConvSeq)
		f.expect(rec.Entry == 0 || !hasConv(seq) || rowExists(tx, bucketConvs, convRowKey(seq, convEntry, u64(rec.Entry))), bucketReplays, k)
	})
}

func (f *findings) checkRecords(tx *bbolt.Tx, each func(bucket, func(k, v []byte))) {
	each(bucketRecords, func(k, v []byte) {
		rec, ok := f.decode(tx, bucketRecords, k, engine.Row{Kind: engine.KindRecord, Key: k, Value: v}).(store.Record)
		if !ok {
			return
		}
		isHead := !rec.Due.IsZero()
		if engine.InLane(rec) {
			f.expect(rowExists(tx, bucketLanes, engine.LaneKey(rec)), bucketRecords, k)
			first, err := firstInLane(tx, rec.NS, rec.Lane)
			f.add(err)
			isHead = first == rec.Key
		}
		f.expect(rowExists(tx, bucketHeads, engine.HeadKey(rec)) == isHead, bucketRecords, k)
	})
	each(bucketLanes, func(k, _ []byte) {
		ns, key, _ := splitTermKey(k)
		rec, err := engine.FindRecord(reads{tx}, ns, key)
		f.add(err)
		f.expect(err != nil || rec != nil && engine.InLane(*rec) && bytes.Equal(engine.LaneKey(*rec), k), bucketLanes, k)
	})
	each(bucketHeads, func(k, v []byte) {
		head, err := engine.ReadHeadKey(k)
		if err == nil {
			head, err = headRecord(tx, head)
		}
		f.add(err)
		f.expect(err != nil || bytes.Equal(v, headValue(head)), bucketHeads, k)
	})
	each(bucketRecordTerms, func(k, _ []byte) {
		ns, key, ok := splitTermKey(k)
		f.expect(ok && rowExists(tx, bucketRecords, engine.RecordKey(ns, key)), bucketRecordTerms, k)
	})
}

// splitTermKey returns the namespace and the key of a record that is listed under a term or in a lane.
func splitTermKey(k []byte) (ns, key string, ok bool) {
	ns, rest, ok := engine.SplitRecordKey(k)
	if !ok || len(rest) <= 16 {
		return "", "", false
	}
	return ns, rest[16:], true
}
