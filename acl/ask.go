package acl

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	AskNamespace = "asks"      // namespace of the records of asks
	nsOpen       = "asks-open" // namespace of the slots that pending asks take

	askLife = 7 * 24 * time.Hour  // lifetime of an ask that sets no end (AM-33)
	keepFor = 30 * 24 * time.Hour // how long an ask can be read after its end

	keepDisplaced = 24 * time.Hour // the same for a displaced ask: strangers decide how many there are
)

// AskState is the state of an ask. Every state except pending is final.
type AskState string

const (
	AskPending   AskState = "pending"
	AskApproved  AskState = "approved"
	AskRejected  AskState = "rejected"
	AskWithdrawn AskState = "withdrawn"
	AskExpired   AskState = "expired" // never stored: computed when the ask is read
)

// Choice is an answer that the owner may give.
type Choice string

const (
	Approve             Choice = "approve"      // only this once
	ApproveConversation Choice = "conversation" // this, and what follows in its conversation
	ApproveAlways       Choice = "always"       // this, and everything from the subject in the future
	Reject              Choice = "reject"
	Block               Choice = "block"
)

// Approves reports whether the choice allows what was asked.
func (c Choice) Approves() bool {
	return c == Approve || c == ApproveConversation || c == ApproveAlways
}

// Ask is a question that the owner must decide: about a held message, an outgoing message, a changed key, or a foreign
// proposal.
type Ask struct {
	ID      string          `json:"id"`      // ids sort in the order of creation
	Kind    string          `json:"kind"`    // selects the resolver
	Subject string          `json:"subject"` // the principal that the ask is about
	Conv    store.ConvKey   `json:"conversation,omitzero"`
	About   string          `json:"about,omitempty"` // a matter of a bridge, in its terms: "mess/2026-11-22-001"
	Title   string          `json:"title"`           // written by us; never text of a peer
	Rule    string          `json:"rule,omitempty"`  // why the owner is asked: "access.mode=approval"
	Body    json.RawMessage `json:"body,omitempty"`
	Hash    string          `json:"hash"` // of all that the owner is shown, see [Chain]; a decision must name it (AM-34)
	Choices []Choice        `json:"choices"`
	Created time.Time       `json:"created"`
	Expires time.Time       `json:"expires"`
	Purge   time.Time       `json:"purge,omitzero"` // when the ask and its body must be gone; zero: 30 days after its end

	// Other asks may be queued behind an ask. They are shown and decided with it; see [Asks.Join].
	Waiting int    `json:"waiting,omitempty"`  // number of asks behind this one
	OwnHash string `json:"own_hash,omitempty"` // hash of this ask alone, if other asks are behind it
	Behind  string `json:"behind,omitempty"`   // id of the ask that this one is behind
	Seq     int    `json:"seq,omitempty"`      // position behind that ask
	Size    int    `json:"size,omitempty"`     // bytes that count against the bound on asks that wait together

	// Displaced is when the slot of the ask went to another sender because all slots were taken. The ask expired then.
	Displaced time.Time `json:"displaced,omitzero"`

	State   AskState  `json:"state"`
	Choice  Choice    `json:"choice,omitempty"`
	Decided time.Time `json:"decided,omitzero"` // also the time of a withdrawal
	By      string    `json:"by,omitempty"`     // which interface the decision came from: "cli", "page"
	Answer  string    `json:"answer,omitempty"` // what the owner wrote with the decision
}

// HashBody returns the hash of an ask that shows only its body.
func HashBody(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// CheckBody returns ErrNotShown unless Hash is the hash of Body, or of its canonical form.
func (a Ask) CheckBody() error {
	if a.Hash == HashBody(a.Body) {
		return nil
	}
	tree, err := wire.ParseObject(a.Body)
	if err != nil {
		return fmt.Errorf("read the question: %w: %w", err, ErrNotShown)
	}
	if sum := signing.Digest(tree); a.Hash != hex.EncodeToString(sum[:]) {
		return fmt.Errorf("the question does not match its hash: %w", ErrNotShown)
	}
	return nil
}

// at returns the ask with its state at now: a pending ask may have expired, to the second (AM-33).
func (a Ask) at(now time.Time) Ask {
	if a.State == AskPending && !now.Before(a.expiry()) {
		a.State = AskExpired
	}
	return a
}

// expiry returns when the ask expires.
func (a Ask) expiry() time.Time {
	if !a.Displaced.IsZero() {
		return a.Displaced
	}
	return a.Expires
}

// Slot bounds the number of open asks. An ask takes its slot when it opens, and frees it when it ends, also by expiry.
// The zero Slot bounds nothing.
type Slot struct {
	Key  string // only one open ask may have it: "sender/<principal>"
	Term string // the asks that Max counts: "sender"
	Max  int
	// Sources are where the ask came from. Proven reports whether the endpoint of its subject is proven. Both are for
	// [Asks.Join].
	Sources []rate.Source
	Proven  bool
}

// SenderSlot allows one open ask per unknown sender, and 200 in total. Further messages of the sender join its ask
// (AM-33).
func SenderSlot(principal string) Slot {
	return Slot{Key: "sender/" + principal, Term: "sender", Max: 200}
}

// ConversationSlot allows 16 open asks per conversation (AM-33).
func ConversationSlot(conv store.ConvKey, askID string) Slot {
	term := convTerm(conv)
	return Slot{Key: term + "/" + askID, Term: term, Max: 16}
}

func convTerm(conv store.ConvKey) string { return "conv/" + conv.Peer + "/" + conv.ID }

// aboutTerm returns the term of the pending asks about a matter. Asks that have ended do not carry it, because a matter
// may have any number of them.
func aboutTerm(about string) string { return "about/" + about }

// termBehind takes the place of the state term of an ask that is behind another, so that lists by state contain each
// question once.
const termBehind = "state:behind"

// behindTerm returns the term of the asks that are behind another.
func behindTerm(id string) string { return "behind/" + id }

// NewAskID returns a unique id that sorts by time.
func NewAskID(now time.Time) string {
	return fmt.Sprintf("ask_%012x%s", now.UnixMilli(), strings.ToLower(rand.Text()[:10]))
}

// place returns the slot of the ask, as it is stored.
func (s storedAsk) place() place { return place{Ask: s.ID, Sources: s.Sources, Proven: s.Proven} }

// storedAsk is an ask with the key of its slot and what the slot contains about it.
type storedAsk struct {
	Ask
	Slot    string        `json:"slot,omitempty"` // key of its slot
	Sources []rate.Source `json:"sources,omitempty"`
	Proven  bool          `json:"proven,omitempty"`

	rev store.Rev
}

func (s storedAsk) record() store.Record {
	end, keep := s.expiry(), keepFor
	if !s.Displaced.IsZero() {
		keep = keepDisplaced
	}
	if s.State != AskPending {
		end = s.Decided
	}
	terms := []string{"state:" + string(s.State), "subject:" + s.Subject}
	if s.Behind != "" {
		terms = []string{termBehind, terms[1], behindTerm(s.Behind)}
	}
	if s.Conv != (store.ConvKey{}) {
		terms = append(terms, convTerm(s.Conv))
	}
	if s.About != "" && s.State == AskPending {
		terms = append(terms, aboutTerm(s.About))
	}
	until := end.Add(keep)
	if s.Behind != "" && s.State == AskPending {
		until = end // otherwise asks that expire one by one would pile up behind the first ask
	}
	if !s.Purge.IsZero() && s.Purge.Before(until) {
		until = s.Purge
	}
	return store.Record{NS: AskNamespace, Key: s.ID, Body: encode(s), Terms: terms, Expires: until}
}

// change returns the change that stores the ask. It fails with store.ErrConflict if the ask changed meanwhile.
func (s storedAsk) change() store.Change { return store.Change{Record: s.record(), IfRev: s.rev} }

// entry returns an entry of the audit log about the ask.
func (a Ask) entry(kind AuditKind, now time.Time) AuditEntry {
	return AuditEntry{
		At: now, Kind: kind, Subject: a.Subject, Rule: a.Rule, By: a.By, Choice: a.Choice, Ask: a.ID, AskKind: a.Kind,
		Conversation: a.Conv.ID, Digest: a.Hash,
	}
}

func freeSlot(slot string) store.Change {
	return store.Change{Record: store.Record{NS: nsOpen, Key: slot}, IfRev: store.Any, Delete: true}
}

func decodeAsk(rec store.Record) (storedAsk, error) {
	s := storedAsk{rev: rec.Rev}
	if err := json.Unmarshal(rec.Body, &s); err != nil {
		return storedAsk{}, fmt.Errorf("decode ask: %w", err)
	}
	return s, nil
}
