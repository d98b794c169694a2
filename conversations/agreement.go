package conversations

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Proposal is the standing proposal of a conversation, the latest of either side. The side that makes a proposal
// thereby accepts it.
type Proposal struct {
	Terms
	By        Side           `json:"by"`
	Intent    wire.Intent    `json:"intent,omitempty"`
	Message   wire.MessageID `json:"message_id,omitempty"` // the message with the proposal
	Resent    wire.MessageID `json:"resent,omitempty"`     // the id under which it was delivered, if different
	At        time.Time      `json:"at,omitzero"`
	Delivered time.Time      `json:"delivered,omitzero"`  // when the peer received our proposal
	Accepted  bool           `json:"accepted,omitempty"`  // the proposal became the agreement
	Clarifies bool           `json:"clarifies,omitempty"` // the proposal answers an ambiguous accept
}

// Acceptance is an accept of the standing proposal. It becomes the agreement only when its recipient answers.
type Acceptance struct {
	Terms
	By      Side           `json:"by"`
	Message wire.MessageID `json:"message_id,omitempty"`
	Intent  wire.Intent    `json:"intent,omitempty"` // of the accepted proposal; set only in [Conversation.Overtaken]
	// Before is when the peer wrote the proposal that overtook our accept, or zero. The accept counts only by an answer
	// that the peer wrote before: with a later one, the peer may mean that its own proposal stands.
	Before time.Time `json:"before,omitzero"`

	// For our accept, Delivered reports whether the peer received it, and Held whether the peer answered that its owner
	// decides.
	Delivered bool `json:"delivered,omitempty"`
	Held      bool `json:"held,omitempty"`
}

// Agreement is what both sides accepted. Its terms are never edited; another accepted proposal replaces it.
type Agreement struct {
	Intent      wire.Intent `json:"intent,omitempty"`
	Title       string      `json:"title,omitempty"`
	Time        string      `json:"time,omitempty"` // in the form of the proposal; empty if the proposal left it open
	Duration    string      `json:"duration,omitempty"`
	Location    string      `json:"location,omitempty"`
	Description string      `json:"description,omitempty"`
	Price       string      `json:"price,omitempty"`
	Conditions  []string    `json:"conditions,omitempty"`
	AcceptedBy  Side        `json:"accepted_by,omitempty"` // the side that accepted; the other side proposed
	At          time.Time   `json:"at,omitzero"`

	Message   wire.MessageID `json:"message_id,omitempty"` // the accept
	Cancelled *Cancellation  `json:"cancelled,omitempty"`
}

// Cancellation is the end of an agreement.
type Cancellation struct {
	By Side      `json:"by"`
	At time.Time `json:"at"`
}

// errAmbiguousAccept refuses our own accept if it selects none of the offered times.
func errAmbiguousAccept(times []string) error {
	return &wire.Error{
		Code: wire.InvalidMessage, Status: http.StatusConflict,
		Message: `several times are offered and the accept selects none: add "selected_time" with one of ` +
			wire.OneLine(strings.Join(times, ", "), 300),
	}
}

// errStaleAccept refuses our own accept if the proposal that it answers is not standing, or still waits for our owner.
var errStaleAccept = &wire.Error{
	Code: wire.InvalidMessage, Status: http.StatusConflict,
	Message: "the accept does not answer the standing proposal: read the conversation and answer its latest proposal",
}

// joinTerms joins the parts that are not empty.
func joinTerms(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

// String returns the terms on one line.
func (t Terms) String() string {
	return joinTerms(append([]string{t.Title, strings.Join(t.Times, " or "), t.Duration, t.Location, t.Description, t.Price}, t.Conditions...)...)
}

func (a Agreement) terms() Terms {
	t := Terms{
		Title: a.Title, Duration: a.Duration, Location: a.Location,
		Description: a.Description, Price: a.Price, Conditions: a.Conditions,
	}
	if a.Time != "" {
		t.Times = []string{a.Time}
	}
	return t
}

// String returns the agreed terms on one line.
func (a Agreement) String() string { return a.terms().String() }

// agreement returns the agreement that the accept makes. intent is that of the accepted proposal.
func (a Acceptance) agreement(intent wire.Intent, at time.Time) *Agreement {
	agreed := &Agreement{
		Intent: intent, Title: a.Title, Duration: a.Duration, Location: a.Location,
		Description: a.Description, Price: a.Price, Conditions: a.Conditions,
		AcceptedBy: a.By, Message: a.Message, At: at,
	}
	if len(a.Times) == 1 {
		agreed.Time = a.Times[0]
	}
	return agreed
}

// firstAccept returns the first accept of the standing proposal, even if it does not count yet, or nil.
func (c Conversation) firstAccept() *Acceptance {
	switch {
	case c.Accept != nil:
		return c.Accept
	case c.Proposal != nil && c.Proposal.Accepted && c.Agreement != nil:
		return &Acceptance{Terms: c.Agreement.terms(), By: c.Agreement.AcceptedBy, Message: c.Agreement.Message}
	}
	return nil
}

// FindAcceptable returns the message that an accept of ours would answer: the peer's standing proposal, or the peer's
// accept of our proposal. It returns "" if neither exists.
func (c Conversation) FindAcceptable(intent wire.Intent) wire.MessageID {
	p, first := c.Proposal, c.firstAccept()
	switch {
	case p == nil || p.Intent != intent:
		return ""
	case p.By == Theirs:
		return p.Message
	case first != nil && first.By == Theirs:
		return first.Message
	}
	return ""
}

// Matter returns the intent of the proposal or agreement that an action of ours is about, whatever the conversation began
// with, and the newest message of the peer about it, or "" (AM-89). A cancel is about the agreement, and an accept,
// decline, reject, counter or withdraw about the standing proposal if there is one. ok is false if the action is about
// neither.
func (c Conversation) Matter(action string) (intent wire.Intent, message wire.MessageID, ok bool) {
	p, a := c.Proposal, c.Agreement
	switch {
	case !slices.Contains([]string{"accept", "decline", "reject", "counter", "withdraw", "cancel"}, action):
		return "", "", false
	case c.InForce() && (p == nil || p.Accepted || action == "cancel"):
		if a.AcceptedBy == Theirs {
			return a.Intent, a.Message, true
		}
		if p != nil && p.Accepted && p.By == Theirs {
			message = p.Message
		}
		return a.Intent, message, true
	case p != nil:
		return p.Intent, c.FindAcceptable(p.Intent), true
	}
	return "", "", false
}

// InForce reports whether there is an agreement that neither side has cancelled.
func (c Conversation) InForce() bool { return c.Agreement != nil && c.Agreement.Cancelled == nil }

// TakesBackAgreement reports whether a payload takes back the agreement and not only a proposal. A cancel always does,
// and so does a close with the status failed; a close with the status completed never does. Other actions do while the
// accepted proposal stands.
func (c Conversation) TakesBackAgreement(payload wire.Value) bool {
	switch payload.GetStr("action") {
	case "cancel":
		return true
	case wire.ActionClose:
		return payload.GetStr("status") == string(Failed)
	}
	return c.Proposal != nil && c.Proposal.Accepted
}

// updateTerms updates the proposal, the accept and the agreement after a message. A proposal or an accept that waits
// for our owner has no effect before its release. A message that takes a proposal back ends the proposal at once.
func (c Conversation) updateTerms(e Event) (Conversation, error) {
	e.Intent = cmp.Or(e.Intent, c.Intent)
	if e.Intent != wire.Schedule && e.Intent != wire.Negotiate {
		return c, nil
	}
	from := Ours
	if e.Kind == Received {
		from = Theirs
	}
	action := e.Payload.GetStr("action")
	if e.Waits && slices.Contains([]string{"propose", "counter", "accept"}, action) {
		return c, nil
	}
	switch action {
	case "propose":
		return c.propose(e, from, Terms{}.changedBy(readTerms(e.Intent, e.Payload))), nil
	case "counter":
		if from == Ours {
			c.Counters++
		}
		var previous Terms
		if c.Proposal != nil && c.Proposal.Intent == e.Intent {
			previous = c.Proposal.Terms
		}
		return c.propose(e, from, previous.changedBy(readTerms(e.Intent, e.Payload))), nil
	case "accept":
		return c.accept(e, from)
	case "decline", "reject", "cancel", "withdraw":
		return c.takeBack(e, from), nil
	}
	return c, nil
}

// applyReleased applies the terms of a message that our owner released, unless a later message has made or ended a
// proposal.
func (c Conversation) applyReleased(e Event) Conversation {
	if e.Kind, e.At = Received, e.Arrived.UTC(); !e.At.Before(c.TermsAt) {
		c, _ = c.updateTerms(e) // only an accept of ours can be refused
	}
	return c
}

// propose makes terms the standing proposal, which ends all earlier proposals. If a proposal of the peer replaces
// ours, Replaced keeps ours, because the peer's next accept may mean it. Overtaken keeps an accept of ours that a
// new proposal overtakes before its answer arrives, unless the proposal is that answer.
func (c Conversation) propose(e Event, from Side, terms Terms) Conversation {
	p := &Proposal{
		Terms: terms, By: from, Intent: e.Intent, Message: e.ID, At: e.At, Clarifies: from == Ours && c.Unclear != "",
	}
	if e.Direct {
		p.Delivered = e.At
	}
	switch previous := c.Proposal; {
	case from == Ours:
		c.Replaced = nil
	case previous != nil && previous.By == Ours && !previous.Accepted:
		c.Replaced = previous
	}
	if c.Overtaken != nil && c.Overtaken.Message == e.Answers { // this answer to our accept is a proposal and confirms nothing
		c.Overtaken = nil
	}
	if a := c.Accept; a != nil && a.By == Ours && (from == Ours || a.Message != e.Answers) {
		overtaken := *a
		overtaken.Intent = c.Proposal.Intent
		if from == Theirs {
			overtaken.Before = e.Written
		}
		c.Overtaken = &overtaken
	}
	c.Proposal, c.Accept, c.Unclear, c.TermsAt = p, nil, "", e.At
	return c
}

// Awaits reports whether our accept still waits for its answer. A later proposal of either side does not end the wait:
// if the peer answered the accept before it received or made the proposal, the accept counts for both sides.
func (c Conversation) Awaits(accept wire.MessageID) bool {
	return slices.ContainsFunc([]*Acceptance{c.Accept, c.Overtaken}, func(a *Acceptance) bool {
		return a != nil && a.By == Ours && a.Message == accept
	})
}

// IsPlainAccept reports whether the recorded accept with this message id is neither a new proposal nor unclear. For any
// other message, the result has no meaning.
func (c Conversation) IsPlainAccept(id wire.MessageID) bool {
	return c.Proposal != nil && c.Proposal.Message != id && c.Unclear != id
}

// accept applies an accept by one side. It returns an error only for an accept of ours.
func (c Conversation) accept(e Event, from Side) (Conversation, error) {
	p := c.Proposal
	if p == nil || p.Intent != e.Intent {
		// The accept may mean a proposal that our owner has not released, or one that was taken back.
		isTakenBack := p == nil && !c.TermsAt.IsZero()
		switch {
		case from == Ours && (len(c.Unreleased) > 0 || isTakenBack):
			return c, errStaleAccept
		case isTakenBack: // perhaps by a message that crossed the proposal, which still stands for the peer
			c.Unclear = e.ID
		}
		return c, nil
	}
	first := c.firstAccept()
	switch {
	case from == Ours && (slices.Contains(c.Unreleased, p.Message) || !c.isForStandingProposal(e, from, first)):
		return c, errStaleAccept
	case !c.isForStandingProposal(e, from, first):
		c.Unclear = e.ID
		return c, nil
	case first != nil: // this accept answers or repeats another one, whose terms stay as they are
		verdict, terms := JudgeAccept(Proposal{Terms: first.Terms, Intent: e.Intent}, e.Payload)
		// JudgeAccept agrees to a location that the terms left open; here it makes a new proposal.
		if verdict == Counter || verdict == Agreed && terms.Location != first.Location {
			return c.propose(e, from, terms), nil
		}
		return c, nil
	case p.By == Ours && from == Ours: // the peer would take an accept that names other terms for a new proposal
		return c, errStaleAccept
	case p.By == from: // a side cannot accept its own proposal
		return c, nil
	}
	verdict, terms := JudgeAccept(*p, e.Payload)
	switch {
	case verdict == Counter:
		return c.propose(e, from, terms), nil
	case verdict == Agreed:
		c.Accept, c.Unclear = &Acceptance{Terms: terms, By: from, Message: e.ID}, ""
	case from == Ours:
		return c, errAmbiguousAccept(p.Times)
	default:
		c.Unclear = e.ID
	}
	return c, nil
}

// isForStandingProposal reports whether the accept e means the standing proposal and not an earlier one. first is the
// first accept of the standing proposal, or nil. An accept means the standing proposal if it names the message of the
// proposal or of first. So does an accept of the peer that names no message, except in two cases: the peer wrote the
// accept before our proposal had arrived, or the accept may mean our proposal that the peer's own proposal replaced. An
// accept of ours that names no message is older than the peer's proposal and waited for our owner. Until the other side
// accepts, an accept by the side that made the proposal may name any message.
func (c Conversation) isForStandingProposal(e Event, from Side, first *Acceptance) bool {
	p := c.Proposal
	isCrossing := from == Theirs && c.Replaced != nil // the accept may mean our replaced proposal
	switch {
	case e.Answers != "" && (e.Answers == p.Message || e.Answers == p.Resent || first != nil && e.Answers == first.Message):
		return true
	case e.Answers != "" && (first != nil || p.By != from):
		return false
	case first != nil:
		return p.Accepted || !isCrossing
	case p.By == from:
		return !isCrossing
	}
	return from == Theirs && isAfter(e.Written, p.Delivered)
}

// FindAnsweredAccept returns our accept that a message of the peer answers, or nil. The answer makes the accept count,
// unless the message takes it back. A message answers the accept that it names, even if a proposal of ours overtook
// the accept meanwhile. A message that names none answers the accept of the standing proposal if the peer said before
// that its owner decides. A pending_approval answers nothing. A close with the status completed answers the accept if
// it was delivered, and any other close answers nothing.
func (c Conversation) FindAnsweredAccept(payload wire.Value) *Acceptance {
	a, answers := c.Accept, AnswersIn(payload)
	if c.Overtaken != nil && c.Overtaken.Message == answers && answers != "" {
		a = c.Overtaken
	}
	if a == nil || a.By != Ours {
		return nil
	}
	isAnswer := a.Held && answers == "" || (a.Held || a.Delivered) && answers == a.Message
	switch payload.GetStr("action") {
	case wire.ActionPending:
		isAnswer = false
	case wire.ActionClose:
		isAnswer = a.Delivered && payload.GetStr("status") == string(Completed)
	}
	if !isAnswer {
		return nil
	}
	return a
}

// AnswersIn returns the id of the message that a payload claims to answer, or "".
func AnswersIn(payload wire.Value) wire.MessageID {
	meta, _ := payload.Get("metadata")
	return wire.MessageID(meta.GetStr("in_reply_to"))
}

// AgreedIn returns the id of the conversation whose agreement a payload takes back, or "".
func AgreedIn(payload wire.Value) string {
	meta, _ := payload.Get("metadata")
	return meta.GetStr("agreed_in")
}

// takeBack ends the standing proposal, and the agreement if the message takes that back. But while the cancellation of
// an agreed event waits for our owner, the agreement stays, and takeBack ends only a proposal that nobody has accepted,
// so that the owner cannot accept what the peer has taken back. A withdraw counts as waiting while any message waits,
// because it may withdraw that one (AM-36).
func (c Conversation) takeBack(e Event, from Side) Conversation {
	if in := AgreedIn(e.Payload); in != "" && in != c.Key.ID {
		return c // the message is about another conversation (AM-87)
	}
	if c.TakesBackAgreement(e.Payload) {
		waits := e.Waits
		if e.Payload.GetStr("action") == "withdraw" {
			waits = len(c.Held) > 0
		}
		switch {
		case !waits || e.Intent != wire.Schedule || !c.InForce():
			c = c.cancel(from, e.At)
		case c.Proposal == nil || c.Proposal.Accepted:
			return c
		}
	}
	c.Proposal, c.Replaced, c.Accept, c.Overtaken, c.Unclear, c.TermsAt = nil, nil, nil, nil, "", e.At
	return c
}

// cancel marks the agreement as cancelled and ends its proposal, but not a later proposal.
func (c Conversation) cancel(by Side, at time.Time) Conversation {
	if c.InForce() {
		a := *c.Agreement
		a.Cancelled = &Cancellation{By: by, At: at}
		c.Agreement = &a
		if c.Proposal != nil && c.Proposal.Accepted {
			c.Proposal = nil
		}
	}
	return c
}

// conclude makes the accept e.ID the agreement. A proposal made after the accept stays the standing proposal.
func (c Conversation) conclude(e Event) Conversation {
	if a := c.Overtaken; a != nil && a.Message == e.ID && e.ID != "" {
		if !a.Before.IsZero() && (e.Written.IsZero() || !e.Written.Before(a.Before)) {
			return c
		}
		c.Agreement, c.Overtaken = a.agreement(a.Intent, e.At), nil
		return c
	}
	a, p := c.Accept, c.Proposal
	if a == nil || p == nil || a.Message != e.ID {
		return c
	}
	proposal := *p
	proposal.Accepted = true
	c.Agreement, c.Proposal, c.Replaced, c.Accept = a.agreement(p.Intent, e.At), &proposal, nil, nil
	return c
}

// updateAccept updates a copy of our accept with this id, even if a proposal of ours overtook it.
func (c Conversation) updateAccept(id wire.MessageID, update func(*Acceptance)) Conversation {
	for _, a := range []**Acceptance{&c.Accept, &c.Overtaken} {
		if *a != nil && (*a).By == Ours && (*a).Message == id {
			updated := **a
			update(&updated)
			*a = &updated
		}
	}
	return c
}

// markDelivered records that the peer has received our message e.ID, at the time e.Written and under the id e.Answers.
func (c Conversation) markDelivered(e Event) Conversation {
	c = c.updateAccept(e.ID, func(a *Acceptance) { a.Delivered = true })
	if p := c.Proposal; p != nil && p.By == Ours && p.Message == e.ID && p.Delivered.IsZero() {
		delivered := *p
		delivered.Delivered = e.Written
		if e.Answers != e.ID {
			delivered.Resent = e.Answers
		}
		c.Proposal = &delivered
	}
	return c
}

// Clarification returns the counter-proposal that answers an ambiguous accept: our proposal with only the first of its
// times. ok is false if id is not such an accept, if our last proposal was a clarification, or if our proposal was
// shortened for the store.
func (c Conversation) Clarification(id wire.MessageID) (payload wire.Value, ok bool) {
	p := c.Proposal
	if c.Unclear == "" || c.Unclear != id || p == nil || p.Clarifies {
		return wire.Value{}, false
	}
	if p.By == Theirs {
		p = c.Replaced
	}
	if p == nil || p.Clarifies || p.isCut() {
		return wire.Value{}, false
	}
	terms, member := wire.Obj(), "event"
	if p.Intent == wire.Negotiate {
		member = "terms"
		terms = terms.WithOptional("description", p.Description).WithOptional("price", p.Price)
		if len(p.Conditions) > 0 {
			terms = terms.With("conditions", wire.Texts(p.Conditions))
		}
	} else {
		terms = terms.WithOptional("title", p.Title)
		if len(p.Times) > 0 {
			terms = terms.WithOptional("selected_time", p.Times[0]).With("proposed_times", wire.Texts(p.Times[:1]))
		}
		terms = terms.WithOptional("duration", p.Duration).WithOptional("location", p.Location)
	}
	return wire.Obj(wire.TextField("action", "counter"), wire.Field(member, terms)), true
}
