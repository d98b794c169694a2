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
	AskNamespace = "asks"      // the namespace of the records of asks
	nsOpen       = "asks-open" // the slots that pending asks take

	askLife = 7 * 24 * time.Hour  // of an ask that sets no end (AM-33)
	keepFor = 30 * 24 * time.Hour // how long an ask can be read after its end

	keepDisplaced = 24 * time.Hour // the same if it was displaced: strangers decide how many are
)

// AskState is where an ask stands. Every state but pending is final.
type AskState string

const (
	AskPending   AskState = "pending"
	AskApproved  AskState = "approved"
	AskRejected  AskState = "rejected"
	AskWithdrawn AskState = "withdrawn"
	AskExpired   AskState = "expired" // never stored: judged when it is read
)

// Choice is an answer that the owner may give.
type Choice string

const (
	Approve             Choice = "approve"      // this once
	ApproveConversation Choice = "conversation" // this, and what follows in its conversation
	ApproveAlways       Choice = "always"       // this, and remember the subject
	Reject              Choice = "reject"
	Block               Choice = "block"
)

// Approves reports whether the choice lets happen what was asked.
func (c Choice) Approves() bool {
	return c == Approve || c == ApproveConversation || c == ApproveAlways
}

// Ask is one thing that the owner must decide: a held message, an outgoing one, a changed key, a foreign proposal.
type Ask struct {
	ID      string          `json:"id"`      // order of ids is order of creation
	Kind    string          `json:"kind"`    // names the resolver
	Subject string          `json:"subject"` // principal it is about
	Conv    store.ConvKey   `json:"conversation,omitzero"`
	About   string          `json:"about,omitempty"` // a matter of a bridge, in its words: "mess/2026-11-22-001"
	Title   string          `json:"title"`           // ours; nothing that a peer wrote
	Rule    string          `json:"rule,omitempty"`  // why the owner is asked: "access.mode=approval"
	Body    json.RawMessage `json:"body,omitempty"`
	Hash    string          `json:"hash"` // of all that the owner is shown, see [Chain]; a decision names it (AM-34)
	Choices []Choice        `json:"choices"`
	Created time.Time       `json:"created"`
	Expires time.Time       `json:"expires"`
	Purge   time.Time       `json:"purge,omitzero"` // when its body must be gone, and the ask with it; zero: 30 days after its end

	// An ask may have others behind it, which are shown and decided with it; see [Asks.Join].
	Waiting int    `json:"waiting,omitempty"`  // how many there are
	OwnHash string `json:"own_hash,omitempty"` // of this ask alone, if there are any
	Behind  string `json:"behind,omitempty"`   // id of the ask that this one is behind
	Seq     int    `json:"seq,omitempty"`      // order behind it
	Size    int    `json:"size,omitempty"`     // bytes that count against the bound on what waits together

	// Displaced is when another sender got the place of the ask, which was one too many: it expired then.
	Displaced time.Time `json:"displaced,omitzero"`

	State   AskState  `json:"state"`
	Choice  Choice    `json:"choice,omitempty"`
	Decided time.Time `json:"decided,omitzero"` // also the time of a withdrawal
	By      string    `json:"by,omitempty"`     // who decided: "cli", "page"
}

// HashBody returns the hash of an ask that shows its body and nothing else.
func HashBody(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// CheckBody returns ErrNotShown unless Hash is that of Body, or of its canonical form.
func (a Ask) CheckBody() error {
	if a.Hash == HashBody(a.Body) {
		return nil
	}
	tree, err := wire.ParseObject(a.Body)
	if err != nil {
		return fmt.Errorf("read the question: %w: %w", err, ErrNotShown)
	}
	if sum := signing.Digest(tree); a.Hash != hex.EncodeToString(sum[:]) {
		return fmt.Errorf("the question does not fit its hash: %w", ErrNotShown)
	}
	return nil
}

// at judges an ask that may have expired, to the second (AM-33).
func (a Ask) at(now time.Time) Ask {
	if a.State == AskPending && !now.Before(a.ends()) {
		a.State = AskExpired
	}
	return a
}

// ends is when the ask expires.
func (a Ask) ends() time.Time {
	if !a.Displaced.IsZero() {
		return a.Displaced
	}
	return a.Expires
}

// Slot bounds the asks that are open at once: it is taken when an ask opens and freed when it ends, also by expiry.
// The zero Slot bounds nothing.
type Slot struct {
	Key  string // one open ask has it: "sender/<principal>"
	Term string // what Max counts: "sender"
	Max  int
	// Sources is where the ask came from, and Proven whether its subject's endpoint is proven, for [Asks.Join].
	Sources []rate.Source
	Proven  bool
}

// SenderSlot allows one open ask per unknown sender, and 200 in all; what else the sender writes joins it (AM-33).
func SenderSlot(principal string) Slot {
	return Slot{Key: "sender/" + principal, Term: "sender", Max: 200}
}

// ConversationSlot allows 16 open asks per conversation (AM-33).
func ConversationSlot(conv store.ConvKey, askID string) Slot {
	term := convTerm(conv)
	return Slot{Key: term + "/" + askID, Term: term, Max: 16}
}

func convTerm(conv store.ConvKey) string { return "conv/" + conv.Peer + "/" + conv.ID }

// aboutTerm finds the asks about a matter that are pending; of a matter there may be any number that ended.
func aboutTerm(about string) string { return "about/" + about }

// termBehind stands for the state of an ask behind another, so that lists of a state have each question once.
const termBehind = "state:behind"

// behindTerm finds the asks behind another.
func behindTerm(id string) string { return "behind/" + id }

// NewAskID returns a unique id that sorts by time.
func NewAskID(now time.Time) string {
	return fmt.Sprintf("ask_%012x%s", now.UnixMilli(), strings.ToLower(rand.Text()[:10]))
}

// place returns the slot of the ask as it is stored.
func (s stored) place() place { return place{Ask: s.ID, Sources: s.Sources, Proven: s.Proven} }

// stored is an ask with what frees its slot, and what its slot says of it.
type stored struct {
	Ask
	Slot    string        `json:"slot,omitempty"` // key
	Sources []rate.Source `json:"sources,omitempty"`
	Proven  bool          `json:"proven,omitempty"`

	rev store.Rev
}

func (s stored) record() store.Record {
	end, keep := s.ends(), keepFor
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
		until = end // else those that expire one by one would pile up behind the first
	}
	if !s.Purge.IsZero() && s.Purge.Before(until) {
		until = s.Purge
	}
	return store.Record{NS: AskNamespace, Key: s.ID, Body: encode(s), Terms: terms, Expires: until}
}

// change stores the ask, unless it changed meanwhile: that is store.ErrConflict.
func (s stored) change() store.Change { return store.Change{Record: s.record(), IfRev: s.rev} }

// entry is a line of the audit log about the ask.
func (a Ask) entry(kind AuditKind, now time.Time) AuditEntry {
	return AuditEntry{
		At: now, Kind: kind, Subject: a.Subject, Rule: a.Rule, By: a.By, Choice: a.Choice, Ask: a.ID, AskKind: a.Kind,
		Conversation: a.Conv.ID, Digest: a.Hash,
	}
}

func freeing(slot string) store.Change {
	return store.Change{Record: store.Record{NS: nsOpen, Key: slot}, IfRev: store.Any, Delete: true}
}

func decodeAsk(rec store.Record) (stored, error) {
	s := stored{rev: rec.Rev}
	if err := json.Unmarshal(rec.Body, &s); err != nil {
		return stored{}, fmt.Errorf("decode ask: %w", err)
	}
	return s, nil
}
