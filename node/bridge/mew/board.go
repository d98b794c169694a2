package mew

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// board is what the owner may decide about in a space: proposals that nobody has fulfilled or withdrawn, and
// reasoning that goes on. It is made of the envelopes that pass and ends with the process.
type board struct {
	proposals []PendingProposal
	reasoning []Reasoning
}

// PendingProposal is a proposal that waits for somebody. What it says is a stranger's text.
type PendingProposal struct {
	ID       string          `json:"id"`
	From     string          `json:"from"`
	To       []string        `json:"to,omitempty"`
	Payload  json.RawMessage `json:"payload"`
	At       time.Time       `json:"at"`
	Rejected []string        `json:"rejected_by,omitempty"`
}

// Reasoning is a sequence that was started and has not ended. Only ids are kept (MEW-L7).
type Reasoning struct {
	ID    string    `json:"id"` // of the start, which is the context of what follows
	From  string    `json:"from"`
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
}

const maxBoard = 500 // of each; the oldest goes

// see takes note of an envelope that was accepted.
func (b *board) see(e *envelope, at time.Time) {
	switch e.kind {
	case kindProposal:
		b.settle(e.id)
		b.proposals = append(capped(b.proposals), PendingProposal{ID: e.id, From: e.from, To: e.to, Payload: payloadOf(e), At: at})
	case kindRequest, kindWithdraw:
		for _, id := range e.correlation {
			b.settle(id)
		}
	case kindReject:
		for i := range b.proposals {
			p := &b.proposals[i]
			if slices.Contains(e.correlation, p.ID) && !slices.Contains(p.Rejected, e.from) && len(p.Rejected) < 32 {
				p.Rejected = append(slices.Clone(p.Rejected), e.from)
			}
		}
	case kindReasoningStart:
		b.conclude(e.id)
		b.reasoning = append(capped(b.reasoning), Reasoning{ID: e.id, From: e.from, Since: at, Last: at})
	case kindReasoningThought:
		for i := range b.reasoning {
			if b.reasoning[i].ID == e.context {
				b.reasoning[i].Last = at
			}
		}
	case kindReasoningEnd, kindReasoningCancel:
		b.conclude(e.context)
	}
}

func capped[T any](list []T) []T {
	if len(list) >= maxBoard {
		return slices.Delete(list, 0, 1)
	}
	return list
}

func payloadOf(e *envelope) json.RawMessage {
	if e.payload.Kind() != wire.Object {
		return json.RawMessage("{}")
	}
	return e.payload.JSON()
}

func (b *board) settle(id string) {
	b.proposals = slices.DeleteFunc(b.proposals, func(p PendingProposal) bool { return p.ID == id })
}

func (b *board) conclude(id string) {
	b.reasoning = slices.DeleteFunc(b.reasoning, func(r Reasoning) bool { return r.ID == id })
}

// left forgets the reasoning of a participant that went away.
func (b *board) left(id string) {
	b.reasoning = slices.DeleteFunc(b.reasoning, func(r Reasoning) bool { return r.From == id })
}

// expire forgets proposals that are a day old.
func (b *board) expire(now time.Time) {
	b.proposals = slices.DeleteFunc(b.proposals, func(p PendingProposal) bool { return now.Sub(p.At) > keepProposals })
}
