package engine

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Call is what one caller changes, all or nothing. The calls of several callers may share a transaction.
type Call struct {
	// Needs adds what the call touches besides Records. Nil: nothing.
	Needs func(*Needs)
	// Check checks every precondition except those of Records. It returns a function that then writes under a revision,
	// or nil if there is nothing to write. It may run again in another transaction, so it must set its results and not
	// add to them.
	Check   func(tx Tx) (write func(rev store.Rev) error, err error)
	Records []store.Change
	Now     time.Time
}

// Touches returns what the call touches.
func (c Call) Touches() (n Needs) {
	if c.Needs != nil {
		c.Needs(&n)
	}
	n.addRecords(c.Records)
	return n
}

// Plan checks every precondition and returns a function that then writes, or nil if there is nothing to write.
func (c Call) Plan(tx Tx) (write func() error, err error) {
	checked, err := c.Check(tx)
	if checked == nil || err != nil {
		return nil, err
	}
	records, err := planRecords(tx, c.Records, c.Now)
	if err != nil {
		return nil, err
	}
	return func() error {
		rev := tx.NextRev()
		if err := checked(rev); err != nil {
			return err
		}
		return writeRecords(tx, records, rev)
	}, nil
}

// Needs names what a call touches, for an engine that locks and reads it at once. Check may ask for further rows.
type Needs struct {
	Rows   []RowName
	Lanes  [][]byte // prefixes of the keys of lanes; until the commit, no other process may change them
	Counts [][]byte // keys of counts that limit the call; until the commit, no other process may count them
	Leases []string
}

// RowName names a row. The key is the id of a card, or comes from ConvKey, EntryKey, ReplayHash or RecordKey.
type RowName struct {
	Kind Kind
	Key  []byte
}

// Add adds a row.
func (n *Needs) Add(kind Kind, key []byte) { n.Rows = append(n.Rows, RowName{kind, key}) }

func (n *Needs) addLease(held *store.Lease) {
	if held != nil {
		n.Leases = append(n.Leases, held.Name)
	}
}

func (n *Needs) addRecords(changes []store.Change) {
	for _, c := range changes {
		n.addLease(c.Held)
		if !c.HasRecord() {
			continue
		}
		n.Add(KindRecord, RecordKey(c.Record.NS, c.Record.Key))
		if c.Max > 0 && !c.Delete {
			n.Counts = append(n.Counts, LimitedSet(c).Prefix())
		}
		if c.Record.Lane != "" {
			n.Lanes = append(n.Lanes, LanePrefix(c.Record))
		}
	}
}

// Driver executes the calls of an engine in its database.
type Driver interface {
	// Do executes a call in the next group of calls, see [Queue.Do].
	Do(ctx context.Context, call Call) error
	// View calls fn with a reader of committed rows. If fn reads several rows, they may be of different moments.
	View(ctx context.Context, fn func(Reader) error) error
}

// Reader reads rows, even those that have expired.
type Reader interface {
	// Row returns a row, or a Row without a Value if it does not exist. See RowName for the key.
	Row(kind Kind, key []byte) (Row, error)
}

// findRow returns a decoded row, or nil if it does not exist.
func findRow[T any](r Reader, kind Kind, key []byte, decode func(Row) (T, error)) (*T, error) {
	row, err := r.Row(kind, key)
	if row.Value == nil || err != nil {
		return nil, err
	}
	found, err := decode(row)
	return &found, err
}

func findCard(r Reader, id string) (*CardRow, error) {
	return findRow(r, KindCard, []byte(id), func(row Row) (CardRow, error) { return DecodeCard(row.Num, row.Value) })
}

func findConv(r Reader, key store.ConvKey) (*store.Conversation, error) {
	return findRow(r, KindConv, ConvKey(key), func(row Row) (store.Conversation, error) { return DecodeConv(row.Num, row.Value) })
}

// FindRecord returns a record, even if it has expired, or nil.
func FindRecord(r Reader, ns, key string) (*store.Record, error) {
	return findRow(r, KindRecord, RecordKey(ns, key), func(row Row) (store.Record, error) { return DecodeRecord(ns, key, row.Value) })
}

// findReplay returns the record of an accepted message.
func findReplay(r Reader, sender, messageID string) (*StoredReplay, error) {
	return findRow(r, KindReplay, ReplayHash(sender, messageID), func(row Row) (StoredReplay, error) {
		rec, err := DecodeReplay(row.Value)
		return StoredReplay{rec, row.Key}, err
	})
}

// StoredReplay is a replay record with the key of its row, as the Row of the engine returns it.
type StoredReplay struct {
	ReplayRow
	RowKey []byte
}

// Tx is the transaction of a group of calls. A call sees the writes of the earlier ones. The methods that write are
// called only by the function that [Call.Check] returns.
type Tx interface {
	Reader
	// CheckLease returns ErrLeaseLost if the lease is lost. A nil lease passes.
	CheckLease(held *store.Lease) error
	// CountRecords returns the number of records in set that are live at now.
	CountRecords(set RecordSet, now int64) (int, error)
	// FirstInLane and LastInLane return the smallest and the largest key of a record in a lane (see [store.Record]), or "".
	FirstInLane(ns, lane string) (string, error)
	LastInLane(ns, lane string) (string, error)
	// LaneRecord returns the record with the smallest key in a lane, perhaps without its body and terms.
	LaneRecord(ns, lane, key string) (store.Record, error)
	// CountCards returns the number of live cards that have key in their Counts. It may stop at limit.
	CountCards(key string, limit int, now time.Time) (int, error)
	// ReplaysOf returns the replay records of a conversation.
	ReplaysOf(conv store.Conversation) ([]StoredReplay, error)

	// NextRev returns a new revision. Each call that writes uses one.
	NextRev() store.Rev
	// NextCard returns the number of a new card, and NextChange that of a change in the feed.
	NextCard() (uint64, error)
	NextChange() (uint64, error)
	// NextConv returns the number of a new conversation, which gets the revision rev.
	NextConv(rev store.Rev) uint64
	// Note adds a hint for other handles about an entry that the call writes.
	Note(ns, key string)
	// Put stores a row in place of old, and lists it by its Terms. old has no Value, and is zero if the row is new. Its
	// Due is NoTime if a sweep may have come to the row since it was due.
	Put(r, old Row)
	Drop(r Row)
	// DropEntries removes a transcript, or limit entries of a long one. It returns how many it removed.
	DropEntries(seq uint64, limit int) (removed int, err error)
	// PutReplay stores a replay record in place of old, or nil. named reports whether an entry of the transcript names it.
	PutReplay(rec ReplayRow, old *StoredReplay, named bool)
	// PutChange stores the last change of card in place of that of old (nil for a new card), and changes the index of cards.
	PutChange(change ChangeRow, card, old *CardRow) error
	// UnlistCard removes a card from the index that has expired, and whose id is still reserved.
	UnlistCard(card CardRow)
	// EndChange makes a sweep remove the last change of a card that is gone, at the time due.
	EndChange(card CardRow, due int64) error
	// PutInLane stores the row that lists a record in its lane. The row may exist.
	PutInLane(rec store.Record)
	DropFromLane(rec store.Record)
	// PutHead stores the row that lists the head of a lane in the order of Due.
	PutHead(rec store.Record)
	DropHead(rec store.Record)
}

// isConvLive reports whether a conversation, which may be nil, has not expired at now.
func isConvLive(conv *store.Conversation, now time.Time) bool {
	return conv != nil && IsLive(conv.Expires, now)
}
