package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/store"
)

// The errors of a copy from one engine to another.
var (
	// ErrUnfinished means that a copy into the database was interrupted, so that the database must not be used.
	ErrUnfinished = errors.New("the import into this database is not finished")
	// ErrNotEmpty means that a database cannot take a copy, because it has data.
	ErrNotEmpty = errors.New("the database is not empty")
)

// Kind is a kind of rows that engines export. Rows that can be derived from these, such as the index of search terms, are
// not exported.
type Kind byte

// The kinds of rows, in the order in which engines export them.
const (
	KindCard   Kind = iota // Num is the sequence number
	KindChange             // Num is the position in the feed of changes, and Due is when Sweep removes the change
	KindEntry              // Num is the sequence number of the conversation, and N is the number of the entry
	KindConv               // Num is the sequence number
	KindReplay
	KindRecord // Key comes from RecordKey
	kinds
)

var kindNames = [kinds]string{"cards", "changes", "messages", "conversations", "replays", "records"}

// Row is a row of a database in the form that all engines share. Value is encoded by a function of this package.
type Row struct {
	Kind   Kind
	Num, N uint64
	Due    int64
	Key    []byte
	Value  []byte
	Terms  []string // the sorted texts by which an engine lists the row; exports leave them out
}

// Decode returns the CardRow, ChangeRow, EntryRow, Conversation, ReplayRow or Record that the row holds, and the row with
// its Key, Due and Terms. If the row cannot be decoded, the error is ErrDamaged with the name of the row.
func (r Row) Decode() (Row, any, error) {
	switch r.Kind {
	case KindCard:
		c, err := DecodeCard(r.Num, r.Value)
		return cardRow(c, r.Value), c, err
	case KindChange:
		c, err := DecodeChange(r.Num, r.Value)
		r.Key = []byte(c.ID)
		return r, c, err
	case KindEntry:
		e, err := DecodeEntry(r.N, r.Value)
		if err != nil {
			err = fmt.Errorf("conversation %d: %w", r.Num, err)
		}
		r.Key = EntryKey(r.Num, r.N)
		return r, e, err
	case KindConv:
		c, err := DecodeConv(r.Num, r.Value)
		return convRow(c, r.Value), c, err
	case KindReplay:
		p, err := DecodeReplay(r.Value)
		return ReplayToRow(p, r.Value), p, err
	case KindRecord:
		ns, key, ok := SplitRecordKey(r.Key)
		if !ok {
			return r, nil, fmt.Errorf("%w: the record key %x is malformed", store.ErrDamaged, r.Key)
		}
		rec, err := DecodeRecord(ns, key, r.Value)
		return recordRow(rec, r.Value), rec, err
	}
	return r, nil, fmt.Errorf("%w: a row has the unknown kind %d", store.ErrDamaged, r.Kind)
}

// cardRow, convRow and recordRow return a row with its encoded value.

func cardRow(c CardRow, value []byte) Row {
	r := Row{Kind: KindCard, Num: c.Seq, Due: CardDue(c.Card), Key: []byte(c.ID), Value: value}
	if !c.Withdrawn { // quotas count only live cards
		r.Terms = c.Counts
	}
	return r
}

func convRow(c store.Conversation, value []byte) Row {
	return Row{Kind: KindConv, Num: c.Seq, Due: Deadline(c.Expires), Key: ConvKey(c.Key), Value: value, Terms: c.Terms}
}

// ReplayToRow works like cardRow.
func ReplayToRow(p ReplayRow, value []byte) Row {
	return Row{Kind: KindReplay, Num: p.ConvSeq, Due: Deadline(p.Expires), Key: ReplayHash(p.Sender, p.MessageID), Value: value}
}

func recordRow(rec store.Record, value []byte) Row {
	return Row{Kind: KindRecord, Due: Deadline(rec.Expires), Key: RecordKey(rec.NS, rec.Key), Value: value, Terms: SortedSet(rec.Terms)}
}

// Numbers are the counters by which a database numbers new rows. Each is at least as large as every number that the
// database ever assigned, because something may still refer to the number of a deleted row.
type Numbers struct {
	Rev    uint64
	Card   uint64 // sequence number of a card
	Change uint64 // position in the feed
	Conv   uint64 // sequence number of a conversation
	Fence  uint64 // number that each new holder of a lease gets
}

// Tally counts rows and sums their hashes, to compare two databases whose rows come in different orders.
type Tally struct {
	Rows [kinds]uint64
	sums [kinds]uint64
}

// Add adds a row.
func (t *Tally) Add(r Row) {
	b := AppendU64(AppendU64(AppendU64(nil, r.Num), r.N), uint64(r.Due))
	b = binary.AppendUvarint(b, uint64(len(r.Key)))
	sum := sha256.Sum256(append(append(b, r.Key...), r.Value...))
	t.Rows[r.Kind]++
	t.sums[r.Kind] += binary.BigEndian.Uint64(sum[:])
}

// Compare returns an error if other is the tally of different rows.
func (t *Tally) Compare(other Tally) error {
	var faults []error
	for kind, name := range kindNames {
		switch {
		case t.Rows[kind] != other.Rows[kind]:
			faults = append(faults, fmt.Errorf("%w: the original has %d %s, but the copy has %d", store.ErrDamaged, t.Rows[kind], name, other.Rows[kind]))
		case t.sums[kind] != other.sums[kind]:
			faults = append(faults, fmt.Errorf("%w: %s differ in the copy", store.ErrDamaged, name))
		}
	}
	return errors.Join(faults...)
}

// Counts returns the numbers of rows by the names of their kinds.
func (t *Tally) Counts() map[string]uint64 {
	counts := make(map[string]uint64)
	for kind, name := range kindNames {
		counts[name] = t.Rows[kind]
	}
	return counts
}

// String lists the numbers of rows.
func (t *Tally) String() string {
	var texts []string
	for kind, name := range kindNames {
		texts = append(texts, fmt.Sprintf("%d %s", t.Rows[kind], name))
	}
	return strings.Join(texts, ", ")
}

// Fill passes all rows of another database to put, and returns the Numbers of that database.
type Fill func(put func(Row) error) (Numbers, error)

// FenceOffset returns what an engine must add to its fences after an import, so that no fence is assigned twice. own is
// the fence from which the engine would continue without an offset.
func (n Numbers) FenceOffset(own uint64) uint64 {
	if own >= n.Fence {
		return 0
	}
	return n.Fence - own
}
