package conversations

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Deal is what stands in a conversation for one intent: a proposal and an agreement (AM-90). Copies share the values behind
// its pointers, so the values are never changed (AM-88).
type Deal struct {
	Proposal  *Proposal      `json:"offer,omitempty"`     // the standing proposal
	Replaced  *Proposal      `json:"replaced,omitempty"`  // our proposal that a proposal of the peer replaced
	Accept    *Acceptance    `json:"accept,omitempty"`    // the accept of Proposal, which does not count yet
	Overtaken *Acceptance    `json:"overtaken,omitempty"` // our accept, if a later proposal came before its answer
	Unclear   wire.MessageID `json:"unclear,omitempty"`   // the newest ambiguous accept, until a later message settles it
	Agreement *Agreement     `json:"agreement,omitempty"` // the newest agreement
	Counters  int            `json:"counters,omitempty"`  // number of counters that we sent
	Offered   []string       `json:"offered,omitempty"`   // times that we offered, at most maxOffered, the newest last
	TermsAt   time.Time      `json:"terms_at,omitzero"`   // of the newest message that made or ended a proposal
}

// maxOffered is more than three offers of the calendar have.
const maxOffered = 20

// Deal returns what stands for an intent: c.Schedule or c.Negotiate, or an empty Deal for all other intents.
func (c Conversation) Deal(intent wire.Intent) Deal {
	if d := c.deal(intent); d != nil {
		return *d
	}
	return Deal{}
}

func (c *Conversation) deal(intent wire.Intent) *Deal {
	switch intent {
	case wire.Schedule:
		return &c.Schedule
	case wire.Negotiate:
		return &c.Negotiate
	}
	return nil
}

// Deals returns what stands for each intent.
func (c Conversation) Deals() []Deal { return []Deal{c.Schedule, c.Negotiate} }

// Stands reports whether a proposal waits for an answer.
func (d Deal) Stands() bool { return d.Proposal != nil && !d.Proposal.Accepted }

// Agreed returns the agreement that the accept with this message id made, or nil.
func (c Conversation) Agreed(accept wire.MessageID) *Agreement {
	for _, d := range c.Deals() {
		if d.Agreement != nil && d.Agreement.Message == accept {
			return d.Agreement
		}
	}
	return nil
}

// IsUnclear reports whether the message is an accept that leaves open what it accepts.
func (c Conversation) IsUnclear(id wire.MessageID) bool {
	return id != "" && slices.ContainsFunc(c.Deals(), func(d Deal) bool { return d.Unclear == id })
}

// Matter is the proposal or agreement that an action of ours is about.
type Matter struct {
	Intent  wire.Intent
	Message wire.MessageID // the newest message of the peer about it, or ""
	at      time.Time
	rank    int
}

// matter returns what an action of ours is about, if it is about anything that stands.
func (d Deal) matter(action string) (m Matter, ok bool) {
	p, a := d.Proposal, d.Agreement
	switch {
	case d.InForce() && (p == nil || p.Accepted || action == "cancel"):
		m = Matter{Intent: a.Intent, at: a.At}
		if a.AcceptedBy == Theirs {
			m.Message = a.Message
		} else if p != nil && p.Accepted && p.By == Theirs {
			m.Message = p.Message
		}
		if action == "cancel" {
			m.rank++
		}
		return m, true
	case p != nil:
		m = Matter{Intent: p.Intent, Message: d.findAcceptable(), at: p.At}
		if action != "cancel" {
			m.rank++
		}
		return m, true
	}
	return m, false
}

// Matter returns what an action of ours is about, whatever the conversation began with (AM-89). A cancel is about an
// agreement, and an accept, decline, reject, counter or withdraw about a standing proposal if there is one. Where something
// stands for both intents, it is the proposal with the message seen, else what stands for the given intent, else the
// newest. ok is false if the action is about nothing that stands.
func (c Conversation) Matter(action string, intent wire.Intent, seen wire.MessageID) (best Matter, ok bool) {
	if !slices.Contains([]string{"accept", "decline", "reject", "counter", "withdraw", "cancel"}, action) {
		return best, false
	}
	for _, d := range c.Deals() {
		m, found := d.matter(action)
		switch {
		case !found:
			continue
		case seen != "" && d.Proposal != nil && d.Proposal.Message == seen:
			return m, true
		case m.Intent == intent:
			m.rank += 2
		}
		if !ok || m.rank > best.rank || m.rank == best.rank && m.at.After(best.at) {
			best, ok = m, true
		}
	}
	return best, ok
}
