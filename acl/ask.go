package acl

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	AskNamespace = "asks"      // namespace of the records of asks
	nsOpen       = "asks-open" // namespace of the records of taken slots

	askLife = 7 * 24 * time.Hour  // lifetime of an ask without Expires (AM-33)
	keepFor = 30 * 24 * time.Hour // how long an ask can be read after its end

	keepDisplaced = 24 * time.Hour // how long a displaced ask can be read; shorter, because strangers can cause many
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
	Approve             Choice = "approve"      // this; if [Ask.LetsIn], also what its sender writes later
	ApproveOnce         Choice = "once"         // only this; offered where Approve covers more
	ApproveConversation Choice = "conversation" // this, and later messages of its conversation with the same intent
	ApproveAlways       Choice = "always"       // this, and later messages of the subject unless the policy makes them wait
	AskAgain            Choice = "ask_again"    // this, if the guard lets it through now; offered after a guard that failed
	Reject              Choice = "reject"
	Block               Choice = "block"
)

// Approves reports whether the choice allows what was asked.
func (c Choice) Approves() bool {
	return c == Approve || c == ApproveOnce || c == ApproveConversation || c == ApproveAlways || c == AskAgain
}

// Ask is a question for the owner: about a held message, an outgoing message, a changed key, a foreign proposal, or a
// question of the owner's agent.
type Ask struct {
	ID      string          `json:"id"`      // see [NewAskID]
	Kind    string          `json:"kind"`    // selects the [Resolver], which carries out the decision
	Subject string          `json:"subject"` // the peer about which the owner is asked: an agent id, or the name of a foreign peer
	Conv    store.ConvKey   `json:"conversation,omitzero"`
	About   string          `json:"about,omitempty"` // the matter within a bridge, such as "mess/2026-11-22-001"
	Title   string          `json:"title"`           // written by us; never text of a peer
	Rule    string          `json:"rule,omitempty"`  // why the owner is asked: "access.mode=approval"
	Body    json.RawMessage `json:"body,omitempty"`
	Hash    string          `json:"hash"` // hash of everything that the owner sees, see [Chain]; a decision must name it (AM-34)
	Choices []Choice        `json:"choices"`
	Lasting bool            `json:"lasting,omitempty"` // even a one-time approval applies to later messages
	Created time.Time       `json:"created"`
	Expires time.Time       `json:"expires"`
	Purge   time.Time       `json:"purge,omitzero"` // time by which the ask must be deleted; zero means no deadline

	// An ask can have other asks queued behind it, which the owner sees and decides together with it; see [Asks.Join].
	Waiting int    `json:"waiting,omitempty"`  // number of asks behind this one
	OwnHash string `json:"own_hash,omitempty"` // hash of this ask alone, if other asks are behind it
	Behind  string `json:"behind,omitempty"`   // id of the ask behind which this one is queued
	Seq     int    `json:"seq,omitempty"`      // position in that queue
	Size    int    `json:"size,omitempty"`     // bytes that count toward the bound on asks that are decided together

	// Displaced is the time at which the ask lost its slot to another ask, and so expired.
	Displaced time.Time `json:"displaced,omitzero"`

	State   AskState  `json:"state"`
	Choice  Choice    `json:"choice,omitempty"`
	Decided time.Time `json:"decided,omitzero"` // also the time of a withdrawal
	By      string    `json:"by,omitempty"`     // the interface that the owner used: "cli", "page"
	Answer  string    `json:"answer,omitempty"` // what the owner wrote with the decision
}

// LetsIn reports whether the choice also lets the subject write from now on (AM-97).
func (a Ask) LetsIn(c Choice) bool { return c == Approve && slices.Contains(a.Choices, ApproveOnce) }

// HashBody returns the Hash of an ask whose body is all that the owner sees.
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

// at returns the ask with its state at now. An ask expires exactly on time, without waiting for a sweep (AM-33).
func (a Ask) at(now time.Time) Ask {
	if a.State == AskPending && !now.Before(a.expiry()) {
		a.State = AskExpired
	}
	return a
}

// expiry returns the time at which the ask expires if it is still pending.
func (a Ask) expiry() time.Time {
	if !a.Displaced.IsZero() {
		return a.Displaced
	}
	return a.Expires
}

// Slot is a place for one open ask; each kind has a bounded number of slots. An ask takes its slot when it opens and
// frees it when it ends. Asks with the zero Slot are not bounded.
type Slot struct {
	Key  string // only one open ask may have this key, such as "sender/<principal>"
	Term string // the kind of slots of which at most Max may be taken, such as "sender"
	Max  int
	// Sources are the address from which the message that caused the ask came, the networks around it, and the like.
	// Proven reports whether its sender's endpoint is proven. [Asks.Join] uses both.
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

// KeyChangeSlot allows one open ask about the changed key of an agent. The asks about agents that the owner knows have
// 1,000 slots, and all others share 200, so that strangers cannot take the slots of known agents.
func KeyChangeSlot(agent string, known bool) Slot {
	s := Slot{Key: "key/" + agent, Term: "key", Max: 1000}
	if !known {
		s.Term, s.Max = "stranger-key", 200
	}
	return s
}

// slotTerm returns the Term of a slot in which asks queue ([Asks.Join]), from its key.
func slotTerm(key string) string {
	kind, _, _ := strings.Cut(key, "/")
	if kind == "conv" {
		return key[:strings.LastIndexByte(key, '/')] // without the id of the ask
	}
	return kind
}

func convTerm(conv store.ConvKey) string { return "conv/" + conv.Peer + "/" + conv.ID }

// aboutTerm returns the index term of the pending asks about a matter. Ended asks lose the term, because their number
// is not bounded.
func aboutTerm(about string) string { return "about/" + about }

// TermPending is the index term of the asks that wait, except those that are queued behind another one. Until its expiry
// is noticed, an expired ask has it too.
const TermPending = "state:" + string(AskPending)

// termBehind replaces the index term of the state of an ask that is queued behind another, so that lists by state
// contain only the first ask.
const termBehind = "state:behind"

func behindTerm(id string) string { return "behind/" + id }

// NewAskID returns a unique id that sorts by time.
func NewAskID(now time.Time) string {
	return fmt.Sprintf("ask_%012x%s", now.UnixMilli(), strings.ToLower(rand.Text()[:10]))
}

// storedAsk is an ask with its slot.
type storedAsk struct {
	Ask
	Slot    string        `json:"slot,omitempty"`    // key of its slot
	Sources []rate.Source `json:"sources,omitempty"` // see [Slot]
	Proven  bool          `json:"proven,omitempty"`  // see [Slot]
	Warned  bool          `json:"warned,omitempty"`  // the owner was warned that it will expire
	Settled bool          `json:"settled,omitempty"` // its expiry was noticed, or its decision carried out

	rev store.Rev
}

// warnBefore is how long before the end of an ask the owner is warned, unless a seventh of its life is shorter.
const warnBefore = 24 * time.Hour

// due returns when the ask is due, or the zero time; see [Asks.Due].
func (s storedAsk) due() time.Time {
	switch {
	case s.Settled || s.Behind != "": // the ask in front speaks for those behind it
		return time.Time{}
	case s.State == AskApproved || s.State == AskRejected:
		if s.Waiting == 0 {
			return time.Time{}
		}
		return store.DueNow // the decision is carried out one after the other
	case s.State != AskPending:
		return time.Time{}
	case !s.Displaced.IsZero():
		return store.DueNow
	case !s.Warned:
		return s.Expires.Add(-min(warnBefore, s.Expires.Sub(s.Created)/7))
	}
	return s.Expires
}

// takenSlot returns what is stored for the slot that the ask takes.
func (s storedAsk) takenSlot() takenSlot {
	return takenSlot{Ask: s.ID, Sources: s.Sources, Proven: s.Proven}
}

// record returns the ask in its stored form, with the index terms by which lists find it.
func (s storedAsk) record() store.Record {
	end, keep := s.expiry(), keepFor
	if !s.Displaced.IsZero() {
		keep = keepDisplaced
	}
	if s.State != AskPending {
		end = s.Decided
	}
	terms := []string{"state:" + string(s.State), "subject:" + s.Subject}
	if s.Settled && s.State == AskPending {
		terms[0] = "state:" + string(AskExpired)
	}
	if s.Behind != "" {
		terms = []string{termBehind, terms[1], behindTerm(s.Behind)} // terms[1]: the subject
	}
	if s.Conv != (store.ConvKey{}) {
		terms = append(terms, convTerm(s.Conv))
	}
	if s.About != "" && s.State == AskPending {
		terms = append(terms, aboutTerm(s.About))
	}
	until := end.Add(keep)
	if s.Behind != "" && s.State == AskPending {
		until = end // otherwise expired asks would accumulate behind the first ask
	}
	if !s.Purge.IsZero() && s.Purge.Before(until) {
		until = s.Purge
	}
	return store.Record{NS: AskNamespace, Key: s.ID, Body: wire.MustMarshal(s), Terms: terms, Expires: until, Due: s.due()}
}

// change returns the change that stores the ask. It fails with store.ErrConflict if the stored ask changed meanwhile.
func (s storedAsk) change() store.Change { return store.Change{Record: s.record(), IfRev: s.rev} }

func (a Ask) auditEntry(kind AuditKind, now time.Time) AuditEntry {
	e := AuditEntry{
		At: now, Kind: kind, Subject: a.Subject, Rule: a.Rule, By: a.By, Choice: a.Choice, Ask: a.ID, AskKind: a.Kind,
		Conversation: a.Conv.ID, Digest: a.Hash,
	}
	if a.LetsIn(a.Choice) {
		e.Note = "the sender is let in"
	}
	return e
}

func decodeAsk(rec store.Record) (storedAsk, error) {
	s, err := store.Decode[storedAsk](rec)
	s.rev = rec.Rev
	return s, err
}
