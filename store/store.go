// Package store defines the interface between the services and their database, in terms that any engine can provide.
//
// store/bolt is the embedded engine, for one process. store/postgres is the engine for several processes on one
// database. No service may know which engine it runs on. The contract is executable: store/storetest.Run is the test
// suite that every engine passes.
//
// The rules that make engines interchangeable:
//
//   - Every method is one atomic unit. No transaction handle leaves the engine. Changes that must happen together
//     are passed together (in a [Step], or in the Records of a [PutCard]).
//   - A unit checks every precondition before its first write. A refusal fails that unit alone, never another unit
//     that shares a commit with it.
//   - A method that writes returns nil only after the write is durable.
//   - The caller passes the time as now. From its Expires on, an entry is absent, whether or not [Store.Sweep] has
//     run; Sweep only reclaims space. A zero Expires means never. An entry that takes the place of an expired one
//     inherits nothing from it.
//   - Revisions are opaque and grow. If a compare-and-set fails with [ErrConflict], read again and decide again.
//   - After [ErrUnavailable] the outcome is unknown, and the caller may repeat the same call.
//   - Pages are keyset pages. A cursor names a position, not a snapshot, and never becomes invalid. A limit is at
//     least 1; the limit of a [CardQuery] is at most 1000.
//   - Cards are found by terms that the caller made, so all engines find the same cards.
//   - The engine keeps no byte slice that the caller passed in. Byte slices that it returns belong to the caller.
//     Times come back in UTC.
//   - A call that breaks a bound named here (a fifth term, an empty key, the same record twice in a unit) is a
//     mistake of the caller. It fails with an error that matches no sentinel of this package, and writes nothing.
//
// This package is a part of the program, not an API for other modules: it may change with every commit.
package store

import (
	"context"
	"errors"
	"io"
	"math"
	"time"
)

// The errors by which callers branch. Check for them with [errors.Is].
var (
	// ErrNotFound means that the entry does not exist or has expired.
	ErrNotFound = errors.New("store: not found")
	// ErrConflict means that the revision has changed, or that an entry exists that must be absent.
	ErrConflict = errors.New("store: conflict")
	// ErrMismatch means that the same id was stored before with other content.
	ErrMismatch = errors.New("store: same id, other content")
	// ErrReserved means that the id is reserved for another owner.
	ErrReserved = errors.New("store: id is reserved")
	// ErrQuota means that a [Quota] or a [Change.Max] is used up.
	ErrQuota = errors.New("store: quota is used up")
	// ErrUnavailable means that the engine cannot take the unit now (queue full, disk nearly full, commit failed). The
	// outcome is unknown, and the caller may repeat the same call.
	ErrUnavailable = errors.New("store: unavailable")
	// ErrDamaged means that the stored bytes differ from the bytes that were written. A damaged entry is never returned
	// and never looks absent: a call that needs the entry fails with this error. [Cards.List] and [Steps.Conversations]
	// leave damaged entries out.
	ErrDamaged = errors.New("database is damaged")
)

// Rev is the revision of an entry, assigned by the engine. As a precondition, it must equal the stored revision.
type Rev uint64

const (
	Absent Rev = 0              // the entry must not exist (an expired entry does not exist)
	Any    Rev = math.MaxUint64 // no precondition
)

// Store is a whole database. Its methods are safe for concurrent use.
type Store interface {
	Cards() Cards
	Steps() Steps
	Records() Records
	Leases() Leases
	Watcher

	// Sweep reclaims the space of up to about limit entries that are absent at now, and returns how many entries it
	// looked at. A result below limit means that nothing more can be swept at now. Sweep changes the results of no
	// other method except [Cards.Changes], which gets a line when a reservation ends and loses old tombstones. So any
	// instance may call Sweep at any time.
	Sweep(ctx context.Context, now time.Time, limit int) (int, error)
	// Ping reports whether the store accepts writes now: it returns nil, or ErrUnavailable with the reason.
	Ping(ctx context.Context) error
	// Backup writes to w a consistent copy from which the database can be restored, and returns its size in bytes.
	// Writers do not wait for w. An engine that first makes a local copy returns ErrUnavailable if the disk has no room
	// for it, and an engine whose server has its own tools returns [errors.ErrUnsupported].
	Backup(ctx context.Context, w io.Writer) (int64, error)
	io.Closer
}

// ---- directory ----

// Card is a registered card with the data that the directory keeps about it.
type Card struct {
	ID  string
	Seq uint64 // registration order: assigned at the first registration, kept on renewal and while the id is reserved
	Rev Rev

	Body []byte // the card as the directory serves it
	Meta []byte // what the directory keeps with the card (proofs, retired keys); opaque to the store

	Owner  [32]byte // hash of the credential that may change the card
	Terms  []string // the terms by which the card is found: "cap:translate", "intent:book", "word:sarah"; at most [MaxTerms]
	Counts []string // the keys of the quotas that count the card: "token:…", "host:…"; at most 4

	Registered time.Time
	Updated    time.Time
	Expires    time.Time // from this instant on, the card is absent; zero means never
	// ReservedUntil is the instant until which the id of an expired or withdrawn card stays reserved for its owner. If
	// it is zero, or not later than the end of the card, the id becomes free when the card ends.
	ReservedUntil time.Time
	Withdrawn     bool // the card was withdrawn: it is absent even if Expires is in the future
}

// MaxTerms is the largest number of [Card.Terms].
const MaxTerms = 512

// Live reports whether the card is listed at now.
func (c Card) Live(now time.Time) bool {
	return !c.Withdrawn && (c.Expires.IsZero() || now.Before(c.Expires))
}

// Held reports whether the id is taken at now, because the card is live or its reservation has not ended.
func (c Card) Held(now time.Time) bool { return c.Live(now) || now.Before(c.ReservedUntil) }

// PutCard is one registration or renewal.
type PutCard struct {
	Card   Card // the engine sets Seq, Rev, Withdrawn (to false) and, if a card or reservation exists, Registered
	IfRev  Rev  // Absent: the id has no live card and no reservation of another owner; see [Cards.Put]
	Quotas []Quota
	// Records are changes in the same unit, such as the end of the invite that pays for the registration, or a line in
	// an audit log.
	Records []Change
	Now     time.Time
}

// Quota refuses a put with [ErrQuota] if Max other live cards already have Key in their Counts. Max 0 means no limit.
type Quota struct {
	Key string
	Max int
}

// CardQuery asks for a page of live cards. A card matches if it carries every term of All, has for each of Prefixes a
// term that begins with that prefix, and, if Tiers is not empty, matches at least one tier. A card is listed once, in
// the first tier that it matches. The order is by tier, then by Seq.
type CardQuery struct {
	All      []string
	Prefixes []string // at most 4, none of them empty
	Tiers    []Tier
	After    Position // the position of the last card on the previous page; zero for the first page
	Limit    int      // 1 to 1000
	Now      time.Time
	Reuse    *CardPage // an earlier page whose memory the new one takes over; nil for none
}

// Tier is one way to match: a card carries every term of All and, if Prefix is not empty, a term that begins with it.
type Tier struct {
	All    []string
	Prefix string
}

// Position is a place in the order of a [CardQuery]. It never becomes invalid.
type Position struct {
	Tier int
	Seq  uint64
}

// CardPage is one page of cards. Next is nil if no card follows now. The cards come without Terms and Counts, so that
// the engine need not read them for a list.
type CardPage struct {
	Cards  []Card
	Next   *Position
	Memory []byte // of bodies and metadata, for CardQuery.Reuse
}

// TermCount is a term and the number of live cards that carry it.
type TermCount struct {
	Term  string
	Count int
}

// CardChange is the newest change of one id. It replaces older changes of the same id, so the feed has one line per id,
// including tombstones. Sweep drops a tombstone after a year.
type CardChange struct {
	Change uint64 // position in the feed
	ID     string
	Gone   bool // the card was withdrawn, or its reservation ended
	// Withdrawn is true if Gone means a withdrawal, even if the reservation of the withdrawn id has ended since.
	Withdrawn bool
	At        time.Time
}

// Cards stores the directory's cards and finds them by their terms.
type Cards interface {
	// Put stores a card in one unit with its quotas and records, and returns it with Seq and Rev.
	//
	// With IfRev Absent, Put takes a free id, or an id that is reserved for the same Owner (and then keeps Seq and
	// Registered). It returns, checked in this order, ErrQuota if a quota is used up, ErrConflict if a live card has
	// the id, ErrReserved if the id is reserved for another Owner, and the error of a record that is refused.
	//
	// With a revision, Put replaces the card that holds the id, live or not. It does not compare the Owner: the caller
	// decides who may replace a card.
	Put(ctx context.Context, put PutCard) (Card, error)
	// Get returns the card of id if it is live.
	Get(ctx context.Context, id string, now time.Time) (Card, error)
	// Held returns the card of id if it is live or reserved.
	Held(ctx context.Context, id string, now time.Time) (Card, error)
	// HeldAll returns the cards of ids that Held finds, in the same order, without Terms and Counts. For another id, the
	// Card is zero.
	HeldAll(ctx context.Context, ids []string, now time.Time) ([]Card, error)
	// Withdraw removes a live card from every answer except Held, and reserves its id until reservedUntil.
	Withdraw(ctx context.Context, id string, ifRev Rev, reservedUntil time.Time, records []Change, now time.Time) error
	// List returns a page of live cards.
	List(ctx context.Context, q CardQuery) (CardPage, error)
	// Count returns the number of live cards. Its cost grows with that number.
	Count(ctx context.Context, now time.Time) (int, error)
	// HasCount reports whether a live card carries key in its Counts.
	HasCount(ctx context.Context, key string, now time.Time) (bool, error)
	// Terms returns at most limit terms of live cards that begin with prefix, in byte order, with their counts. after
	// is the last term of the previous page, or "". The cost of Terms grows with the counts.
	Terms(ctx context.Context, prefix, after string, limit int, now time.Time) ([]TermCount, error)
	// Changes returns at most limit changes in the order of their commits. after is the position of the last change
	// that the caller has read, or 0.
	Changes(ctx context.Context, after uint64, limit int) ([]CardChange, error)
	// LatestChanges returns the newest changes, at most limit, newest first.
	LatestChanges(ctx context.Context, limit int) ([]CardChange, error)
}

// ---- conversations ----

// ConvKey names a conversation. Peers choose the ids, so an id identifies a conversation only together with the peer.
type ConvKey struct {
	Peer string `json:"peer"` // agent id or pseudonym of the other side
	ID   string `json:"id"`
}

// Conversation is the row of a conversation. Package conversations encodes its state in Body.
type Conversation struct {
	Key     ConvKey
	Seq     uint64 // order of creation, assigned by the engine
	Rev     Rev
	Body    []byte
	Terms   []string // the terms by which the row is listed, at most 4
	Chain   [32]byte // chain hash of the last entry of the transcript
	Entries uint64   // number of entries in the transcript
	Open    bool     // while true, the conversation's [Replay] records do not expire; once false, it stays false
	Updated time.Time
	// Expires is the time from which row and transcript may be swept. For an open conversation, it assumes that no
	// message follows, so that the conversation ends by itself after its idle time.
	Expires time.Time
}

// Entry is one message of a transcript.
type Entry struct {
	N         uint64 // 1 for the first entry; assigned by the engine
	Out       bool   // sent by this node
	Author    string // with Out: who wrote it, for example "owner" or "hook"
	MessageID string
	At        time.Time
	Raw       []byte   // the bytes as received or sent
	Digest    [32]byte // SHA-256 of the canonical bytes
	Chain     [32]byte // see conversations.Link
	Key       []byte   // the key of the sealed payload in Raw (AM-85); nil if the payload is not sealed or we cannot open it
}

// Replay is the record of an accepted message and of the answer to it.
type Replay struct {
	Sender    string
	MessageID string
	Digest    [32]byte // SHA-256 of the canonical bytes
	Conv      ConvKey
	Status    int    // HTTP status of the answer; 0: the conversation was removed or has expired, together with the answer
	Answer    []byte // the answer, byte for byte
	Expires   time.Time
}

// Step is one unit: a change of a conversation, and everything that must happen with it.
type Step struct {
	// Conv is the row to write; its Rev is the precondition (Absent creates). A nil Conv changes no conversation.
	Conv *Conversation
	// Append adds these entries to the transcript of Conv, which must be set.
	Append []Entry
	// Replay is the record of an accepted message. If a live record has the same Sender and MessageID, the step is not
	// applied: if the Digest is the same too, Apply returns Dup with the stored record, otherwise ErrMismatch.
	Replay *Replay
	// Answer replaces the status and the answer of an existing record, whose Digest must match (or ErrMismatch). If the
	// record does not exist, Answer is ignored.
	Answer  *Replay
	Records []Change
	// Held is a lease of the caller. If it is lost, the step fails with ErrLeaseLost. Nil: the step needs no lease.
	Held *Lease
	Now  time.Time
}

// Applied is the result of a step.
type Applied struct {
	Rev    Rev     // new revision of Conv
	Dup    bool    // nothing was applied, because the message was accepted before
	Replay *Replay // if Dup, the stored record
}

// ConvPage is a page of conversations, newest first; Next is 0 on the last page.
type ConvPage struct {
	Conversations []Conversation
	Next          uint64
}

// Steps stores conversations, transcripts and replay records.
type Steps interface {
	// Apply applies a whole step or nothing. It checks preconditions in this order: Held, Replay, Answer, Conv.Rev
	// (ErrConflict), Records (ErrConflict, ErrQuota). The engine maintains Seq, Rev and Entries of Conv.
	Apply(ctx context.Context, step Step) (Applied, error)
	// FindReplay returns the record of an accepted message if the record is live or its conversation is open.
	FindReplay(ctx context.Context, sender, messageID string, now time.Time) (Replay, error)
	// Conversation returns the row of a conversation.
	Conversation(ctx context.Context, key ConvKey, now time.Time) (Conversation, error)
	// Conversations returns a page of the rows that carry term (all rows if term is empty), newest first. before is the
	// Next of the previous page, or 0 for the first page.
	Conversations(ctx context.Context, term string, before uint64, limit int, now time.Time) (ConvPage, error)
	// Transcript returns at most limit entries, or no entries if the conversation does not exist. after is the number
	// of the last entry that the caller has read, or 0. Transcript does not check whether the conversation has
	// expired, because its callers have read the row.
	Transcript(ctx context.Context, key ConvKey, after uint64, limit int) ([]Entry, error)
	// Forget removes a conversation, its transcript, and the answers in its replay records. The records themselves
	// stay, with Status 0, until they expire, so that no message of the conversation is accepted a second time.
	Forget(ctx context.Context, key ConvKey, ifRev Rev, records []Change, now time.Time) error
}

// ---- everything else that is a small document ----

// Record is a document in a namespace ("inbox", "asks", "outbox", "rules", "mew/space") with a few terms to list it by.
type Record struct {
	NS, Key string // neither empty, at most 64 and 512 bytes
	Rev     Rev
	Body    []byte
	Terms   []string // at most 4
	Expires time.Time

	// Due makes the record work: from then on, somebody must do something about it. The zero time means no work. If a
	// record waits for several times, Due is the earliest. An expired record is not due.
	Due time.Time
	// Party is whose work it is, such as a peer or a link; the work of one party must not hold up that of others. It has
	// at most 512 bytes.
	Party string
	// Lane keeps order: of the records of a namespace with a Due and the same Lane, only the one with the smallest key,
	// the head, can be due. A record that joins a lane must have a larger key than all that were in the lane before the
	// unit, and no Expires. If Lane is empty, the record has a lane of its own. It has at most 512 bytes.
	Lane string
}

// DueNow is a [Record.Due] that is earlier than every clock, for work that is due at once, so that neither two clocks that
// differ nor a clock that is set delays it.
var DueNow = time.Unix(0, math.MinInt64+1).UTC()

// Change creates, replaces or deletes one record.
type Change struct {
	Record Record // Rev is ignored: IfRev is the precondition
	IfRev  Rev    // the zero value creates
	Delete bool   // deleting an absent record succeeds if IfRev is Any, and fails with ErrConflict if IfRev is a revision
	// Max refuses a new record with ErrQuota if the namespace already has Max live records that carry the first term of
	// the new record (any record if it has no terms). 0 means no limit; at most 10,000.
	Max int
	// Held is a lease of the caller. If it is lost, the unit fails with ErrLeaseLost. Nil: the change needs no lease.
	// A change that sets only Held changes no record; it makes the whole unit depend on the lease.
	Held *Lease
}

// HasRecord reports whether c changes a record.
func (c Change) HasRecord() bool { return c.Record.NS != "" || c.Record.Key != "" }

// RecordPage is a page of a list of records; Next is empty on the last page.
type RecordPage struct {
	Records []Record
	Next    string
}

// Records stores small documents.
type Records interface {
	// Apply applies all changes or none.
	Apply(ctx context.Context, changes []Change, now time.Time) error
	// Get returns a live record, or ErrNotFound.
	Get(ctx context.Context, ns, key string, now time.Time) (Record, error)
	// List returns a page of the live records of ns that carry term (all records if term is empty), in the order of
	// their keys. If term is longer than a term may be, the page is empty. after is the Next of the previous page, or
	// "".
	List(ctx context.Context, ns, term, after string, limit int, now time.Time) (RecordPage, error)
	// ListBackward is List in the reverse order: the first page has the largest keys, and before is the Next of the
	// previous page, or "".
	ListBackward(ctx context.Context, ns, term, before string, limit int, now time.Time) (RecordPage, error)
	// Due returns at most limit heads (see [Record.Lane]) of ns whose Due is not after until, in the order of Due, then
	// Rev, without those of the parties in skip, which are at most 32, and without damaged ones. next is the Due of the
	// first head that it did not return, or zero; it does not consider the parties in skip. What has expired at until is
	// left out. Due claims nothing: two callers get the same records. Its cost grows with the records that it returns and
	// the due heads that it skips, not with the records that wait behind heads or are not due.
	Due(ctx context.Context, ns string, until time.Time, skip []string, limit int) (due []Record, next time.Time, err error)
	// Count returns how many live records of ns carry term (all records if term is empty), at most limit. It reads no
	// bodies.
	Count(ctx context.Context, ns, term string, limit int, now time.Time) (int, error)
}
