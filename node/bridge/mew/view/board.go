package view

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Board holds what the owner may decide about in a space: proposals that nobody has fulfilled or withdrawn, and
// reasoning that has not ended. It is built from the envelopes in the space, and is lost when the process
// ends or, behind a link, when the connection ends.
type Board struct {
	proposals []Proposal
	reasoning []Reasoning
	named     []naming // oldest first, at most maxNamed
}

// naming is the id that a proposal has or had.
type naming struct{ id, key string }

// maxNamed bounds the namings that a board remembers.
const maxNamed = 1000

// Proposal is a pending proposal. Its contents are text of a stranger.
type Proposal struct {
	// Key identifies the proposal with all its contents. Envelope ids may repeat, but a decision by key can only be
	// about the contents that were shown.
	Key      string          `json:"key"`
	ID       string          `json:"id"`
	From     string          `json:"from"`
	To       []string        `json:"to,omitempty"`
	Payload  json.RawMessage `json:"payload"`
	At       time.Time       `json:"at"`
	Rejected []string        `json:"rejected_by,omitempty"`

	Conv    wire.ConversationID `json:"-"` // conversation with the question to the owner; empty if the proposal is not for this node
	Decided bool                `json:"-"` // the owner has decided, or the question in that conversation has ended
}

// Reasoning is a reasoning sequence that has not ended. The board keeps only ids and times (MEW-L7).
type Reasoning struct {
	ID    string    `json:"id"` // id of the start, which is the context of the following envelopes
	From  string    `json:"from"`
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
}

// These are the bounds of a board. Beyond them, the oldest entries are dropped.
const (
	maxBoard      = 500      // proposals, and as many reasoning sequences
	MaxBoardBytes = 32 << 20 // of the payloads of all proposals
	MaxOwnBoard   = 100      // like maxBoard, for one participant, which cannot fill the board alone
	MaxOwnBytes   = 2 << 20  // of the payloads of one participant
	maxRejected   = 32       // participants that are listed as having rejected a proposal; further ones are not
	KeepProposals = 24 * time.Hour
	keepReasoning = 24 * time.Hour // since the last thought
)

// boardSalt is a secret that is hashed into every key. Without the salt, a proposer could make two proposals with the
// same key, and replace the first with the second while the owner reads the first.
var boardSalt = rand.Text()

// Observe updates the board with an accepted envelope. The board keeps parts of it, so the caller must first call
// [envelope.Envelope.Detach] if [envelope.Rule].Remembered is true.
func (b *Board) Observe(e *envelope.Envelope, at time.Time) {
	switch e.Kind {
	case envelope.KindProposal:
		p := Proposal{ID: e.ID, From: e.From, To: e.To, Payload: payloadOf(e), At: at}
		p.Key = wire.HashOf(boardSalt, fmt.Sprintf("%q", append([]string{p.ID, p.From, string(p.Payload)}, p.To...)))[:12]
		b.add(p)
	case envelope.KindRequest, envelope.KindWithdraw:
		b.proposals = slices.DeleteFunc(b.proposals, func(p Proposal) bool {
			// Anybody may fulfill a proposal, but only its proposer may withdraw it.
			return slices.Contains(e.Correlation, p.ID) && (e.Kind == envelope.KindRequest || p.From == e.From)
		})
	case envelope.KindReject:
		for i := range b.proposals {
			p := &b.proposals[i]
			if slices.Contains(e.Correlation, p.ID) && !slices.Contains(p.Rejected, e.From) && len(p.Rejected) < maxRejected {
				p.Rejected = append(slices.Clone(p.Rejected), strings.Clone(e.From))
			}
		}
	case envelope.KindReasoningStart:
		b.startReasoning(Reasoning{ID: e.ID, From: e.From, Since: at, Last: at})
	case envelope.KindReasoningThought:
		for i := range b.reasoning {
			if b.reasoning[i].isOf(e.From, e.Context) {
				b.reasoning[i].Last = at
			}
		}
	case envelope.KindReasoningEnd:
		b.concludeReasoning(e.From, e.Context)
	case envelope.KindReasoningCancel: // anybody may ask a participant to stop
		b.reasoning = slices.DeleteFunc(b.reasoning, func(r Reasoning) bool { return r.ID == e.Context })
	}
}

// startReasoning adds a sequence to the board. If its participant, or all participants together, then have too many, it
// drops the oldest.
func (b *Board) startReasoning(r Reasoning) {
	b.concludeReasoning(r.From, r.ID)
	b.reasoning = append(b.reasoning, r)
	b.reasoning = shorten(b.reasoning, MaxOwnBoard, 0, func(other Reasoning) (int, bool) { return 0, other.From == r.From })
	b.reasoning = shorten(b.reasoning, maxBoard, 0, func(Reasoning) (int, bool) { return 0, true })
}

// shorten drops the oldest items of a list beyond the bounds. measure returns the bytes of an item (0 if only the number
// of items is bounded), and whether the item counts toward the bounds.
func shorten[T any](list []T, maxCount, maxBytes int, measure func(T) (int, bool)) []T {
	n, size := 0, 0
	for i := len(list) - 1; i >= 0; i-- {
		bytes, counts := measure(list[i])
		if !counts {
			continue
		}
		n, size = n+1, size+bytes
		if n > maxCount || size > maxBytes {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

func payloadOf(e *envelope.Envelope) json.RawMessage {
	if e.Payload.Kind() != wire.Object {
		return json.RawMessage("{}")
	}
	return e.Payload.JSON()
}

// add puts a proposal on the board. If its proposer, or all proposers together, then have too many, it drops the oldest.
func (b *Board) add(p Proposal) {
	b.Remove(p.Key) // the same proposal, if it was made before
	if n := (naming{p.ID, p.Key}); !slices.Contains(b.named, n) {
		b.named = append(b.named[max(0, len(b.named)+1-maxNamed):], n)
	}
	b.proposals = append(b.proposals, p)
	b.proposals = shorten(b.proposals, MaxOwnBoard, MaxOwnBytes, func(other Proposal) (int, bool) { return len(other.Payload), other.From == p.From })
	b.proposals = shorten(b.proposals, maxBoard, MaxBoardBytes, func(other Proposal) (int, bool) { return len(other.Payload), true })
}

// Find returns the pending proposal with a key. It also accepts the id of a proposal if no other had that id: otherwise
// the proposer could replace what the owner has read.
func (b *Board) Find(key string) (Proposal, bool) {
	isKey := slices.ContainsFunc(b.named, func(n naming) bool { return n.key == key })
	if withID := slices.DeleteFunc(slices.Clone(b.named), func(n naming) bool { return n.id != key }); !isKey && len(withID) == 1 {
		key = withID[0].key
	}
	at := slices.IndexFunc(b.proposals, func(p Proposal) bool { return p.Key == key && !p.Decided })
	if at < 0 {
		return Proposal{}, false
	}
	return b.proposals[at], true
}

// SetConversation records the conversation in which this node asks its owner about the newest proposal.
func (b *Board) SetConversation(conv wire.ConversationID) {
	b.proposals[len(b.proposals)-1].Conv = conv
}

// SetWaiting records whether the proposal of a conversation still waits for the owner.
func (b *Board) SetWaiting(conv wire.ConversationID, waits bool) {
	for i := range b.proposals {
		if b.proposals[i].Conv == conv {
			b.proposals[i].Decided = !waits
		}
	}
}

// SetDecided records whether the owner has decided the proposal with a key.
func (b *Board) SetDecided(key string, decided bool) {
	for i := range b.proposals {
		if b.proposals[i].Key == key {
			b.proposals[i].Decided = decided
		}
	}
}

// ProposerToNode returns who made the proposal with one of these ids about which the owner of this node is or was asked.
// It returns "" for all other ids.
func (b *Board) ProposerToNode(ids []string) string {
	at := slices.IndexFunc(b.proposals, func(p Proposal) bool { return p.Conv != "" && slices.Contains(ids, p.ID) })
	if at < 0 {
		return ""
	}
	return b.proposals[at].From
}

// ListProposals returns the pending proposals.
func (b *Board) ListProposals() []Proposal {
	return slices.DeleteFunc(append([]Proposal{}, b.proposals...), func(p Proposal) bool { return p.Decided })
}

// ListReasoning returns the reasoning sequences that have not ended.
func (b *Board) ListReasoning() []Reasoning { return append([]Reasoning{}, b.reasoning...) }

// Remove removes the proposal with a key.
func (b *Board) Remove(key string) {
	b.proposals = slices.DeleteFunc(b.proposals, func(p Proposal) bool { return p.Key == key })
}

// Decision returns the envelope for the owner's decision about a proposal: the request that fulfills it (MEW-11), or a
// rejection with a reason. me is the id of the sender. The request goes to the other participants that the proposal
// names, or to everybody if it names no others.
func (p Proposal) Decision(me string, approve bool, reason string) (envelope.Draft, error) {
	d := envelope.Draft{ID: envelope.NewID(), Kind: envelope.KindReject, To: []string{p.From}, Correlation: []string{p.ID}, Payload: wire.Obj(wire.TextField("reason", cmp.Or(reason, "disagree")))}
	if !approve {
		return d, nil
	}
	v, err := wire.ParseForeign(p.Payload, envelope.MaxDepth, envelope.MaxValues)
	if err != nil {
		return envelope.Draft{}, err
	}
	d.Kind, d.Payload, d.To = envelope.KindRequest, envelope.RequestFor(v), p.Others(me)
	return d, nil
}

func (b *Board) concludeReasoning(from, id string) {
	b.reasoning = slices.DeleteFunc(b.reasoning, func(r Reasoning) bool { return r.isOf(from, id) })
}

// isOf reports whether the sequence is of this participant and has this id. Another participant may use the same id.
func (r Reasoning) isOf(from, id string) bool { return r.From == from && r.ID == id }

// Leave removes the reasoning of a participant that left.
func (b *Board) Leave(id string) {
	b.reasoning = slices.DeleteFunc(b.reasoning, func(r Reasoning) bool { return r.From == id })
}

// Expire removes proposals that are older than a day, and reasoning without a thought for a day.
func (b *Board) Expire(now time.Time) {
	b.reasoning = slices.DeleteFunc(b.reasoning, func(r Reasoning) bool { return now.Sub(r.Last) > keepReasoning })
	b.proposals = slices.DeleteFunc(b.proposals, func(p Proposal) bool { return now.Sub(p.At) > KeepProposals })
}

// Others returns the participants that the proposal names, except the one with the id me.
func (p Proposal) Others(me string) []string {
	return slices.DeleteFunc(slices.Clone(p.To), func(id string) bool { return id == me })
}
