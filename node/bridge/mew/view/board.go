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

// Board is what the owner may decide about in a space: proposals that nobody has fulfilled or withdrawn, and
// reasoning that goes on. It is made of the envelopes that pass and ends with the process.
type Board struct {
	proposals []Proposal
	reasoning []Reasoning
}

// Proposal is a proposal that waits for somebody. What it says is a stranger's text.
type Proposal struct {
	// Key names it together with all that it says. Envelope ids may repeat: by its key nobody decides about anything
	// but what was shown.
	Key      string          `json:"key"`
	ID       string          `json:"id"`
	From     string          `json:"from"`
	To       []string        `json:"to,omitempty"`
	Payload  json.RawMessage `json:"payload"`
	At       time.Time       `json:"at"`
	Rejected []string        `json:"rejected_by,omitempty"`

	Conv    wire.ConversationID `json:"-"` // in which the owner of this node is asked about it; empty if it is not for this node
	Decided bool                `json:"-"` // nothing waits in that conversation any more
}

// Reasoning is a sequence that was started and has not ended. Only ids are kept (MEW-L7).
type Reasoning struct {
	ID    string    `json:"id"` // of the start, which is the context of what follows
	From  string    `json:"from"`
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
}

// The bounds of a board: the oldest goes.
const (
	maxBoard      = 500 // of each
	MaxBoardBytes = 32 << 20
	MaxOwnBoard   = 100 // proposals of one participant, which cannot push out those of others
	MaxOwnBytes   = 2 << 20
	KeepProposals = 24 * time.Hour
)

// boardSalt is in every key and known to nobody else. Without it a proposer could make two proposals of one key, and put
// the second in the place of the first while the owner reads that one.
var boardSalt = rand.Text()

// See takes note of an envelope that was accepted. What it keeps shares no memory with the message (see rule.kept).
func (b *Board) See(e *envelope.Envelope, at time.Time) {
	switch e.Kind {
	case envelope.KindProposal:
		p := Proposal{ID: e.ID, From: e.From, To: e.To, Payload: payloadOf(e), At: at}
		p.Key = envelope.Digest(boardSalt, fmt.Sprintf("%q", append([]string{p.ID, p.From, string(p.Payload)}, p.To...)))[:12]
		b.add(p)
	case envelope.KindRequest, envelope.KindWithdraw:
		b.proposals = slices.DeleteFunc(b.proposals, func(p Proposal) bool {
			return slices.Contains(e.Correlation, p.ID) && (e.Kind == envelope.KindRequest || p.From == e.From)
		})
	case envelope.KindReject:
		for i := range b.proposals {
			p := &b.proposals[i]
			if slices.Contains(e.Correlation, p.ID) && !slices.Contains(p.Rejected, e.From) && len(p.Rejected) < 32 {
				p.Rejected = append(slices.Clone(p.Rejected), strings.Clone(e.From))
			}
		}
	case envelope.KindReasoningStart:
		b.conclude(e.ID)
		b.reasoning = append(capped(b.reasoning), Reasoning{ID: e.ID, From: e.From, Since: at, Last: at})
	case envelope.KindReasoningThought:
		for i := range b.reasoning {
			if b.reasoning[i].ID == e.Context {
				b.reasoning[i].Last = at
			}
		}
	case envelope.KindReasoningEnd, envelope.KindReasoningCancel:
		b.conclude(e.Context)
	}
}

func capped[T any](list []T) []T {
	if len(list) >= maxBoard {
		return slices.Delete(list, 0, 1)
	}
	return list
}

func payloadOf(e *envelope.Envelope) json.RawMessage {
	if e.Payload.Kind() != wire.Object {
		return json.RawMessage("{}")
	}
	return e.Payload.JSON()
}

// add puts a proposal on the board. What makes place for it is the oldest of its own proposer, before that of others.
func (b *Board) add(p Proposal) {
	b.Settle(p.Key)
	shorten := func(count, bytes int, counts func(Proposal) bool) {
		n, size := 1, len(p.Payload)
		for i := len(b.proposals) - 1; i >= 0; i-- {
			if !counts(b.proposals[i]) {
				continue
			}
			n, size = n+1, size+len(b.proposals[i].Payload)
			if n > count || size > bytes {
				b.proposals = slices.Delete(b.proposals, i, i+1)
			}
		}
	}
	shorten(MaxOwnBoard, MaxOwnBytes, func(had Proposal) bool { return had.From == p.From })
	shorten(maxBoard, MaxBoardBytes, func(Proposal) bool { return true })
	b.proposals = append(b.proposals, p)
}

// Find finds one that waits.
func (b *Board) Find(key string) (Proposal, bool) {
	at := slices.IndexFunc(b.proposals, func(p Proposal) bool { return p.Key == key })
	if at < 0 {
		return Proposal{}, false
	}
	return b.proposals[at], true
}

// Ask notes that the newest proposal is for this node, and where its owner is asked about it.
func (b *Board) Ask(conv wire.ConversationID) { b.proposals[len(b.proposals)-1].Conv = conv }

// Follow notes whether the owner is still asked about a proposal.
func (b *Board) Follow(conv wire.ConversationID, waits bool) {
	for i := range b.proposals {
		if b.proposals[i].Conv == conv {
			b.proposals[i].Decided = !waits
		}
	}
}

// IsOurs reports whether one of these envelopes is a proposal that the owner of this node is, or was, asked about.
func (b *Board) IsOurs(ids []string) bool {
	return slices.ContainsFunc(b.proposals, func(p Proposal) bool { return p.Conv != "" && slices.Contains(ids, p.ID) })
}

// ListProposals returns the proposals that nobody has decided about.
func (b *Board) ListProposals() []Proposal {
	return slices.DeleteFunc(append([]Proposal{}, b.proposals...), func(p Proposal) bool { return p.Decided })
}

// ListReasoning returns the sequences that have not ended.
func (b *Board) ListReasoning() []Reasoning { return append([]Reasoning{}, b.reasoning...) }

// Settle takes a proposal off the board: the owner has decided.
func (b *Board) Settle(key string) {
	b.proposals = slices.DeleteFunc(b.proposals, func(p Proposal) bool { return p.Key == key })
}

// Decision is what the owner's word makes of a proposal: the request that fulfils it (MEW-11), or a rejection with a
// reason. me is not asked beside others.
func (p Proposal) Decision(me string, approve bool, reason string) (envelope.Draft, error) {
	s := envelope.Draft{ID: envelope.NewID(), Kind: envelope.KindReject, To: []string{p.From}, Correlation: []string{p.ID}, Payload: wire.Obj(wire.TextField("reason", cmp.Or(reason, "disagree")))}
	if !approve {
		return s, nil
	}
	v, err := wire.ParseForeign(p.Payload, envelope.MaxDepth, envelope.MaxValues)
	if err != nil {
		return envelope.Draft{}, err
	}
	s.Kind, s.Payload, s.To = envelope.KindRequest, envelope.RequestFor(v), p.Others(me)
	return s, nil
}

func (b *Board) conclude(id string) {
	b.reasoning = slices.DeleteFunc(b.reasoning, func(r Reasoning) bool { return r.ID == id })
}

// Leave forgets the reasoning of a participant that went away.
func (b *Board) Leave(id string) {
	b.reasoning = slices.DeleteFunc(b.reasoning, func(r Reasoning) bool { return r.From == id })
}

// Expire forgets proposals that are a day old.
func (b *Board) Expire(now time.Time) {
	b.proposals = slices.DeleteFunc(b.proposals, func(p Proposal) bool { return now.Sub(p.At) > KeepProposals })
}

// Others returns those whom the proposal names beside us.
func (p Proposal) Others(me string) []string {
	return slices.DeleteFunc(slices.Clone(p.To), func(id string) bool { return id == me })
}
