package engine

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// moveDue changes the rows that find what is due when rec takes the place of old: for each record in a lane a row of the
// lane, and for each head (see [store.Record]) a row in the order of Due. One of the two records may be zero.
func moveDue(tx Tx, old, rec store.Record) error {
	wasHead, err := isHead(tx, old)
	if err != nil {
		return err
	}
	if wasHead {
		tx.DropHead(old)
	}
	if InLane(old) && !sameLane(old, rec) {
		tx.DropFromLane(old)
		if wasHead {
			if err := putFirst(tx, old.NS, old.Lane); err != nil {
				return err
			}
		}
	}
	if InLane(rec) {
		tx.PutInLane(rec)
	}
	becomesHead, err := isHead(tx, rec)
	if becomesHead {
		tx.PutHead(rec)
	}
	return err
}

// isHead reports whether a record whose rows are written is a head.
func isHead(tx Tx, rec store.Record) (bool, error) {
	if !InLane(rec) {
		return !rec.Due.IsZero(), nil
	}
	first, err := tx.FirstInLane(rec.NS, rec.Lane)
	return first == rec.Key, err
}

// putFirst makes the first record of a lane the head.
func putFirst(tx Tx, ns, lane string) error {
	key, err := tx.FirstInLane(ns, lane)
	if key == "" || err != nil {
		return err
	}
	rec, err := tx.LaneRecord(ns, lane, key)
	if err == nil {
		tx.PutHead(rec)
	}
	return err
}

// InLane reports whether a record is in a lane, perhaps with others.
func InLane(rec store.Record) bool { return rec.Lane != "" && !rec.Due.IsZero() }

// sameLane reports whether old is in the lane of rec.
func sameLane(old, rec store.Record) bool { return InLane(old) && InLane(rec) && old.Lane == rec.Lane }

// LaneKey returns the key of the row of a record in its lane.
func LaneKey(rec store.Record) []byte { return TermKey(rec.NS, rec.Lane, rec.Key) }

// LanePrefix returns the prefix of the keys of the rows in the lane of a record.
func LanePrefix(rec store.Record) []byte { return TermKey(rec.NS, rec.Lane, "") }

// HeadKey returns the key of the row of a head.
func HeadKey(rec store.Record) []byte {
	b := AppendU64(headKey(rec.NS, Nanos(rec.Due)), uint64(rec.Rev))
	return append(b, rec.Key...)
}

// HeadsEnd returns the key before which the rows of heads of ns are that are due at until.
func HeadsEnd(ns string, until time.Time) []byte { return headKey(ns, min(Nanos(until), Never-1)+1) }

func headKey(ns string, due int64) []byte { return AppendOrdered(RecordKey(ns, ""), due) }

// AppendOrdered appends a time so that keys sort by it, even before 1970.
func AppendOrdered(b []byte, at int64) []byte { return AppendU64(b, uint64(at)^1<<63) }

// ReadHeadKey reads a key that HeadKey made into the NS, Key, Rev and Due of a record.
func ReadHeadKey(key []byte) (rec store.Record, err error) {
	ns, rest, ok := SplitRecordKey(key)
	if !ok || len(rest) <= 16 {
		return rec, fmt.Errorf("%w: the key %x of a head is malformed", store.ErrDamaged, key)
	}
	due := int64(binary.BigEndian.Uint64([]byte(rest)) ^ 1<<63)
	rev := binary.BigEndian.Uint64([]byte(rest[8:]))
	return store.Record{NS: ns, Key: rest[16:], Rev: store.Rev(rev), Due: toTime(due)}, nil
}

// DecodeHead decodes the record of a head. If it is not the record that the head names, the error is ErrDamaged.
func DecodeHead(head store.Record, row []byte) (store.Record, error) {
	rec, err := DecodeRecord(head.NS, head.Key, row)
	if err == nil && (rec.Rev != head.Rev || !rec.Due.Equal(head.Due)) {
		err = fmt.Errorf("%w: record %q %q is not the one that its head names", store.ErrDamaged, head.NS, head.Key)
	}
	return rec, err
}

// CheckDue checks the bounds of a call of Due.
func CheckDue(ns string, skip []string, limit int) error {
	if len(skip) > maxSkip {
		return fmt.Errorf("due records: %d parties to skip, more than %d", len(skip), maxSkip)
	}
	return CheckList(ns, limit)
}

// LaneHeads finds the heads among records that come in the order of their keys.
type LaneHeads map[string]bool

// Is reports whether rec is a head.
func (h LaneHeads) Is(rec store.Record) bool {
	if !InLane(rec) {
		return !rec.Due.IsZero()
	}
	lane := string(TermKey(rec.NS, rec.Lane, ""))
	if h[lane] {
		return false
	}
	h[lane] = true
	return true
}
