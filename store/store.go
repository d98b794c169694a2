// Package store is the persistence seam: what the services keep, in terms that any engine can keep.
//
// store/bolt is the embedded engine. A second one for several instances comes later, so nothing above this
// package may know which engine it runs on. The contract is executable: store/storetest.Run is the suite that
// every engine passes.
//
// The rules that keep engines interchangeable:
//
//   - Every method is one atomic unit. No transaction handle crosses the seam; what must happen together
//     travels together (a [Step], or the Records of a [PutCard]).
//   - A unit checks every precondition before its first write. A refusal fails that unit alone, never the
//     units that happen to share a commit with it.
//   - A method that writes returns nil only after the write is durable.
//   - The caller passes now. An entry whose Expires is not after now is absent at once, whether or not
//     [Store.Sweep] has run; Sweep only reclaims space. A zero Expires means never, and an absent entry leaves
//     nothing behind: what takes its place is new.
//   - Revisions are opaque and grow. A failed compare-and-set is [ErrConflict]: read again, decide again.
//   - After [ErrUnavailable] the outcome is unknown and the same call may be repeated.
//   - Pages are keyset pages: a cursor names a position, not a snapshot, and never ages. Except where a type says
//     more, a limit is 1 or more.
//   - Cards are found by terms that the caller made, so results never depend on the engine.
//   - Byte slices passed in are not kept, byte slices handed out belong to the caller. Times come back in UTC.
//   - What breaks a bound named here (a fifth term, an empty key, one record twice in a unit) is a mistake of the
//     caller: it gets an error that is none of the sentinels, and nothing is written.
package store

import (
	"context"
	"errors"
	"io"
	"math"
	"time"
)

// The errors a caller branches on; check them with [errors.Is].
var (
	// ErrNotFound: there is no such live entry.
	ErrNotFound = errors.New("store: not found")
	// ErrConflict: the revision moved, or an entry that must be absent is there.
	ErrConflict = errors.New("store: conflict")
	// ErrMismatch: the same identity was stored before with other content.
	ErrMismatch = errors.New("store: same id, other content")
	// ErrReserved: the id belongs to somebody else until its reservation ends.
	ErrReserved = errors.New("store: id is reserved")
	// ErrQuota: a [Quota] or a [Change.Max] is used up.
	ErrQuota = errors.New("store: quota is used up")
	// ErrUnavailable: the engine cannot take the unit now (queue full, disk nearly full, commit failed).
	// The outcome is unknown; the same call may be repeated.
	ErrUnavailable = errors.New("store: unavailable")
	// ErrDamaged: what is stored is not what was written. An entry that is damaged is never served and never looks
	// absent: a call that needs it fails with this error. [Cards.List] and [Steps.Conversations] leave it out.
	ErrDamaged = errors.New("database is damaged")
)

// Rev is the revision of an entry, given by the engine. As a precondition it must equal the revision that is
// stored; two values are special.
type Rev uint64

const (
	Absent Rev = 0              // the entry must not exist (an expired one does not)
	Any    Rev = math.MaxUint64 // no precondition
)

// Store is a whole database.
type Store interface {
	Cards() Cards
	Steps() Steps
	Records() Records

	// Sweep reclaims the space of about limit entries that are absent at now and says how many it looked at:
	// fewer than limit means that nothing is left for this now. It changes no answer (but for the line that
	// [Cards.Changes] gets when a reservation ends), so any instance may run it at any time.
	Sweep(ctx context.Context, now time.Time, limit int) (int, error)
	// Ping says whether the store takes writes now: nil, or ErrUnavailable with the reason.
	Ping(ctx context.Context) error
	// Backup writes a consistent copy that the engine can open. Writers do not wait for w. It is
	// ErrUnavailable where there is no room for the local copy it makes first.
	Backup(ctx context.Context, w io.Writer) (int64, error)
	io.Closer
}

// ---- directory ----

// Card is a registered card with what the directory must know beside it.
type Card struct {
	ID  string
	Seq uint64 // registration order: given at first registration, kept on renewal and while the id is reserved
	Rev Rev

	Body []byte // the card as it is served
	Meta []byte // what the directory keeps beside the card (proofs, retired keys); opaque here

	Owner  [32]byte // hash of the credential that may change it
	Terms  []string // what it is found by: "cap:translate", "intent:book", "word:sarah"; at most [MaxTerms]
	Counts []string // what it counts against: "token:…", "host:…"; at most 4

	Registered time.Time
	Updated    time.Time
	Expires    time.Time // not listed, not got, from this instant on; zero means never
	// ReservedUntil ends the time in which the id of an expired or withdrawn card stays its owner's. Zero, or an
	// instant before that end, means that the id is free at once.
	ReservedUntil time.Time
	Withdrawn     bool // deregistered: absent although Expires may lie ahead
}

// MaxTerms bounds [Card.Terms].
const MaxTerms = 512

// Live says whether the card is listed at now.
func (c Card) Live(now time.Time) bool {
	return !c.Withdrawn && (c.Expires.IsZero() || now.Before(c.Expires))
}

// Held says whether the id is taken at now: by a live card, or by the reservation it left.
func (c Card) Held(now time.Time) bool { return c.Live(now) || now.Before(c.ReservedUntil) }

// PutCard is one registration or renewal.
type PutCard struct {
	Card   Card // Seq, Rev, Withdrawn (false) and, where a card or reservation exists, Registered are set by the engine
	IfRev  Rev  // Absent: no card and no reservation by another owner; see [Cards.Put]
	Quotas []Quota
	// Records change in the same unit: the invite that pays for it, its line in an audit log.
	Records []Change
	Now     time.Time
}

// Quota refuses a put with [ErrQuota] when Max other live cards already carry Key in their Counts.
// Max 0 means no limit.
type Quota struct {
	Key string
	Max int
}

// CardQuery asks for a page of live cards. A card matches when it carries every term of All, for each of Prefixes
// a term that begins with it and, where there are Tiers, matches at least one tier; it is listed once, in the first
// tier that it matches. The order is by tier, then by Seq.
type CardQuery struct {
	All      []string
	Prefixes []string // at most 4, none of them empty
	Tiers    []Tier
	After    Position // of the last card of the previous page; zero for the first page
	Limit    int      // 1 to 1000
	Now      time.Time
}

// Tier is one way to match: every term of All and, where Prefix is not empty, at least one term that begins with it.
type Tier struct {
	All    []string
	Prefix string
}

// Position is a place in the order of a [CardQuery]. It stays good however old it is.
type Position struct {
	Tier int
	Seq  uint64
}

// CardPage is one page; Next is nil on the last one, which is never an empty page behind a full one. Terms and
// Counts of its cards are left out: what a list is made of need not be read for it.
type CardPage struct {
	Cards []Card
	Next  *Position
}

// TermCount is a term and the number of live cards that carry it.
type TermCount struct {
	Term  string
	Count int
}

// CardChange is the newest change of one id. An older change of the same id gives way to it, so the feed is
// as long as there are ids, tombstones included; Sweep drops a tombstone that is a year old.
type CardChange struct {
	Change uint64 // position in the feed
	ID     string
	Gone   bool // withdrawn, or its reservation ended
	// Withdrawn tells the two apart, also when the reservation of a withdrawn id has ended since.
	Withdrawn bool
	At        time.Time
}

// Cards keeps the directory's cards and finds them by their terms.
type Cards interface {
	// Put stores a card in one unit with its quotas and records and returns it with Seq and Rev.
	// With IfRev Absent it takes a free id, or one that is reserved for the same Owner (Seq and Registered
	// are kept). It is ErrQuota where a quota is used up, ErrConflict where a live card has the id, ErrReserved
	// where the id is reserved for another Owner, and the error of a record that refuses; checked in this order. With a revision it replaces the card that is held, live or not, whoever its owner is: that is for
	// the caller to judge.
	Put(ctx context.Context, put PutCard) (Card, error)
	// Get returns the card of id if it is live.
	Get(ctx context.Context, id string, now time.Time) (Card, error)
	// Held returns the card of id if it is live or reserved.
	Held(ctx context.Context, id string, now time.Time) (Card, error)
	// Withdraw removes a live card from every answer but Held and reserves its id until reservedUntil.
	Withdraw(ctx context.Context, id string, ifRev Rev, reservedUntil time.Time, records []Change, now time.Time) error
	// List returns a page of live cards.
	List(ctx context.Context, q CardQuery) (CardPage, error)
	// Count returns the number of live cards. Its cost grows with them.
	Count(ctx context.Context, now time.Time) (int, error)
	// HasCount reports whether a live card carries key in its Counts.
	HasCount(ctx context.Context, key string, now time.Time) (bool, error)
	// Terms lists terms of live cards that begin with prefix, after the term named after, in byte order, with
	// their counts. Its cost grows with the counts.
	Terms(ctx context.Context, prefix, after string, limit int, now time.Time) ([]TermCount, error)
	// Changes returns at most limit changes after the position, in commit order.
	Changes(ctx context.Context, after uint64, limit int) ([]CardChange, error)
}

// ---- conversations ----

// ConvKey names a conversation: ids are chosen by peers, so they mean something only beside the peer.
type ConvKey struct {
	Peer string `json:"peer"` // agent id or pseudonym of the other side
	ID   string `json:"id"`
}

// Conversation is the row of a conversation. Body is its state in the encoding of package conversations.
type Conversation struct {
	Key     ConvKey
	Seq     uint64 // order of creation, given by the engine
	Rev     Rev
	Body    []byte
	Terms   []string // to list it by, at most 4
	Chain   [32]byte // chain hash of the last entry
	Entries uint64   // entries in the transcript
	Open    bool     // while true, the replay records stored for it live on; closing is for good
	Updated time.Time
	Expires time.Time // when row and transcript may go; of an open one, that long after it expires by silence
}

// Entry is one message of a transcript.
type Entry struct {
	N         uint64 // 1 for the first; given by the engine
	Out       bool   // sent by this node
	MessageID string
	At        time.Time
	Raw       []byte   // the bytes as received or sent
	Digest    [32]byte // SHA-256 of the canonical bytes
	Chain     [32]byte // see conversations.Link
	Key       []byte   // opens what is sealed in Raw (AM-85), and no other message; nil where nothing is, or nothing can
}

// Replay remembers an accepted message and the answer it got.
type Replay struct {
	Sender    string
	MessageID string
	Digest    [32]byte // SHA-256 of the canonical bytes
	Conv      ConvKey
	Status    int    // HTTP status of the answer; 0: the conversation was removed, and the answer with it
	Answer    []byte // the answer, byte for byte
	Expires   time.Time
}

// Step is one unit: what happens to a conversation, and everything that must happen with it.
type Step struct {
	// Conv is the row to write; its Rev is the precondition (Absent creates). Nil leaves conversations alone.
	Conv *Conversation
	// Append goes to the transcript of Conv, which must be set.
	Append []Entry
	// Replay is the record of an accepted message. Where one with the same Sender and MessageID lives, the
	// step is not applied: same Digest is Dup with the stored record, another is ErrMismatch.
	Replay *Replay
	// Answer replaces status and answer of a record that is there; its Digest must match (ErrMismatch).
	// A record that is gone is ignored.
	Answer  *Replay
	Records []Change
	Now     time.Time
}

// Applied says what a step did.
type Applied struct {
	Rev    Rev     // of Conv
	Dup    bool    // nothing was applied: the message was accepted before
	Replay *Replay // with Dup, the stored record
}

// ConvPage is a page of conversations, newest first; Next is 0 on the last page.
type ConvPage struct {
	Conversations []Conversation
	Next          uint64
}

// Steps keeps conversations, transcripts and replay records.
type Steps interface {
	// Apply applies a whole step or nothing. Preconditions are checked in this order: Replay, Answer, Conv.Rev
	// (ErrConflict), Records (ErrConflict, ErrQuota). Seq, Rev and Entries of Conv are kept by the engine.
	Apply(ctx context.Context, step Step) (Applied, error)
	// Replayed returns the record of a message that was accepted before: live, or of a conversation that is open.
	Replayed(ctx context.Context, sender, messageID string, now time.Time) (Replay, error)
	// Conversation returns a row.
	Conversation(ctx context.Context, key ConvKey, now time.Time) (Conversation, error)
	// Conversations lists rows that carry term (all where it is empty), newest first, from before the Seq named
	// before (0: from the newest).
	Conversations(ctx context.Context, term string, before uint64, limit int, now time.Time) (ConvPage, error)
	// Transcript returns at most limit entries after number after; none where there is no such conversation.
	// It takes no now: who reads it has seen the row.
	Transcript(ctx context.Context, key ConvKey, after uint64, limit int) ([]Entry, error)
	// Forget removes a conversation with its transcript and the answers in the replay records that were stored for
	// it. The records stay, with Status 0, until they expire, so that its messages are not accepted a second time.
	Forget(ctx context.Context, key ConvKey, ifRev Rev, records []Change, now time.Time) error
}

// ---- everything else that is a small document ----

// Record is a document under a namespace ("inbox", "asks", "outbox", "rules", "mew/space") with a few terms to list it by.
type Record struct {
	NS, Key string // neither empty, at most 64 and 512 bytes
	Rev     Rev
	Body    []byte
	Terms   []string // at most 4
	Expires time.Time
}

// Change creates, replaces or deletes one record.
type Change struct {
	Record Record // Rev is ignored: IfRev is the precondition
	IfRev  Rev    // the zero value creates
	Delete bool   // deleting what is absent is no error with Any, ErrConflict with a revision
	// Max refuses a new record with ErrQuota when its namespace already holds Max live records that carry its
	// first term (any record where it has none). 0 means no limit; at most 10,000.
	Max int
}

// RecordPage is a page in key order; Next is empty on the last page.
type RecordPage struct {
	Records []Record
	Next    string
}

// Records keeps small documents.
type Records interface {
	// Apply applies all changes or none.
	Apply(ctx context.Context, changes []Change, now time.Time) error
	// Get returns a live record.
	Get(ctx context.Context, ns, key string, now time.Time) (Record, error)
	// List returns live records of ns that carry term (all where it is empty), after the key named after.
	List(ctx context.Context, ns, term, after string, limit int, now time.Time) (RecordPage, error)
}
