package conversations

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Proposal is the standing proposal of a [Deal], the latest of either side. The side that makes a proposal
// thereby accepts it.
type Proposal struct {
	Terms
	Decision
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
	Decision                // about the accept, or about our proposal if the peer accepts it
	By       Side           `json:"by"`
	Message  wire.MessageID `json:"message_id,omitempty"`
	Intent   wire.Intent    `json:"intent,omitempty"` // of the accepted proposal; set only in [Conversation.Overtaken]
	// Before is when the peer wrote the proposal that overtook our accept, or zero. The accept counts only by an answer
	// that the peer wrote before: with a later one, the peer may mean that its own proposal stands.
	Before time.Time `json:"before,omitzero"`

	Proposed wire.MessageID `json:"proposal_id,omitempty"` // the accepted proposal
	Written  time.Time      `json:"written,omitzero"`      // when the peer wrote its accept

	// For our accept, Delivered reports whether the peer received it, and Held whether the peer answered that its owner
	// decides.
	Delivered bool `json:"delivered,omitempty"`
	Held      bool `json:"held,omitempty"`
}

// Agreement is what both sides accepted. Its terms are never edited; another accepted proposal replaces it.
type Agreement struct {
	Decision
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

	Message   wire.MessageID `json:"message_id,omitempty"`  // the accept
	Proposed  wire.MessageID `json:"proposal_id,omitempty"` // the accepted proposal
	Written   time.Time      `json:"written,omitzero"`      // when the peer wrote its accept
	Cancelled *Cancellation  `json:"cancelled,omitempty"`
	// Doubtful means that a decline of the peer may be about the agreement, or about a later proposal of ours (AM-96).
	Doubtful bool `json:"doubtful,omitempty"`
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
func (a Acceptance) agreement(intent wire.Intent, e Event) *Agreement {
	agreed := &Agreement{
		Decision: Decision{DecidedBy: a.DecidedBy, Rule: a.Rule, Offered: a.Offered, Turns: e.Turns},
		Intent:   intent, Title: a.Title, Duration: a.Duration, Location: a.Location,
		Description: a.Description, Price: a.Price, Conditions: a.Conditions,
		AcceptedBy: a.By, Message: a.Message, Proposed: a.Proposed, Written: a.Written, At: e.At,
	}
	if len(a.Times) == 1 {
		agreed.Time = a.Times[0]
	}
	return agreed
}

// firstAccept returns the first accept of the standing proposal, even if it does not count yet, or nil.
func (d Deal) firstAccept() *Acceptance {
	switch {
	case d.Accept != nil:
		return d.Accept
	case d.Proposal != nil && d.Proposal.Accepted && d.Agreement != nil:
		return &Acceptance{Terms: d.Agreement.terms(), By: d.Agreement.AcceptedBy, Message: d.Agreement.Message}
	}
	return nil
}

// findAcceptable returns the message that an accept of ours would answer: the peer's standing proposal, or the peer's
// accept of our proposal. It returns "" if neither exists.
func (d Deal) findAcceptable() wire.MessageID {
	p, first := d.Proposal, d.firstAccept()
	switch {
	case p == nil:
		return ""
	case p.By == Theirs:
		return p.Message
	case first != nil && first.By == Theirs:
		return first.Message
	}
	return ""
}

// InForce reports whether there is an agreement that neither side has cancelled.
func (d Deal) InForce() bool { return d.Agreement != nil && d.Agreement.Cancelled == nil }

// TakesBack reports whether a message takes back the agreement and not only a proposal. A close with the status failed
// does; a close with the status completed never does. A cancel or a decline that names the agreement does, unless the sender
// wrote it before its own accept (AM-96). Any other cancel does, and other actions do while the accepted proposal stands.
func (d Deal) TakesBack(e Event, by Side) bool {
	action := e.Payload.GetStr("action")
	switch {
	case action == wire.ActionClose:
		return e.Payload.GetStr("status") == string(Failed)
	case d.isNamedBy(e):
		return by == Ours || d.Agreement.AcceptedBy == Ours || e.Written.IsZero() || !e.Written.Before(d.Agreement.Written)
	case action == "cancel":
		return true
	}
	return d.Proposal != nil && d.Proposal.Accepted
}

// isNamedBy reports whether a message is a cancel or a decline that names the proposal or the accept of the agreement.
func (d Deal) isNamedBy(e Event) bool {
	action := e.Payload.GetStr("action")
	return d.InForce() && (action == "cancel" || action == "decline") && e.Answers != "" &&
		(e.Answers == d.Agreement.Message || e.Answers == d.Agreement.Proposed)
}

// IsTakenBackBy reports whether a message of the peer takes back the agreement that it names.
func (d Deal) IsTakenBackBy(e Event) bool { return d.isNamedBy(e) && d.TakesBack(e, Theirs) }

// isUnclearDecline reports whether a decline of the peer may mean the agreement, or our later proposal, which the peer may
// not have seen (AM-96).
func (d Deal) isUnclearDecline(e Event, from Side) bool {
	return from == Theirs && e.Answers == "" && e.Payload.GetStr("action") == "decline" && d.InForce() && d.Stands() &&
		d.Proposal.By == Ours && !isAfter(e.Written, d.Proposal.Delivered)
}

// updateTerms updates the proposal, the accept and the agreement after a message. A proposal or an accept that waits
// for our owner has no effect before its release. A message that takes a proposal back ends the proposal at once.
func (c Conversation) updateTerms(e Event) (Conversation, error) {
	e.Intent = cmp.Or(e.Intent, c.Intent)
	d := c.deal(e.Intent)
	if d == nil {
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
		*d = d.propose(e, from, Terms{}.changedBy(readTerms(e.Intent, e.Payload)))
	case "counter":
		if from == Ours {
			d.Counters++
		}
		var previous Terms
		if d.Proposal != nil {
			previous = d.Proposal.Terms
		}
		*d = d.propose(e, from, previous.changedBy(readTerms(e.Intent, e.Payload)))
	case "accept":
		next, err := d.accept(e, from, c.Unreleased)
		if err != nil {
			return c, err
		}
		*d = next
	case "decline", "reject", "cancel", "withdraw":
		if in := AgreedIn(e.Payload); in == "" || in == c.Key.ID { // else it is about another conversation (AM-87)
			*d = d.takeBack(e, from, len(c.Held) > 0)
		}
	}
	return c, nil
}

// applyReleased applies the terms of a message that our owner released, unless a later message has made or ended a
// proposal.
func (c Conversation) applyReleased(e Event) Conversation {
	if e.Kind, e.At = Received, e.Arrived.UTC(); !e.At.Before(c.Deal(cmp.Or(e.Intent, c.Intent)).TermsAt) {
		c, _ = c.updateTerms(e) // only an accept of ours can be refused
	}
	return c
}

// propose makes terms the standing proposal, which ends all earlier proposals. If a proposal of the peer replaces
// ours, Replaced keeps ours, because the peer's next accept may mean it. Overtaken keeps an accept of ours that a
// new proposal overtakes before its answer arrives, unless the proposal is that answer.
func (d Deal) propose(e Event, from Side, terms Terms) Deal {
	p := &Proposal{
		Terms: terms, Decision: e.Decision, By: from, Intent: e.Intent, Message: e.ID, At: e.At, Clarifies: from == Ours && d.Unclear != "",
	}
	if e.Direct && from == Ours {
		p.Delivered = e.At
	}
	switch previous := d.Proposal; {
	case from == Ours:
		d.Replaced = nil
		d.Offered = slices.Concat(d.Offered, terms.Times)
		d.Offered = d.Offered[max(0, len(d.Offered)-maxOffered):]
	case previous != nil && previous.By == Ours && !previous.Accepted:
		d.Replaced = previous
	}
	if d.Overtaken != nil && d.Overtaken.Message == e.Answers { // this answer to our accept is a proposal and confirms nothing
		d.Overtaken = nil
	}
	if a := d.Accept; a != nil && a.By == Ours && (from == Ours || a.Message != e.Answers) {
		overtaken := *a
		overtaken.Intent = d.Proposal.Intent
		if from == Theirs {
			overtaken.Before = e.Written
		}
		d.Overtaken = &overtaken
	}
	d.Proposal, d.Accept, d.Unclear, d.TermsAt = p, nil, "", e.At
	return d
}

// Awaits reports whether our accept still waits for its answer. A later proposal of either side does not end the wait:
// if the peer answered the accept before it received or made the proposal, the accept counts for both sides.
func (c Conversation) Awaits(accept wire.MessageID) bool {
	return slices.ContainsFunc(c.Deals(), func(d Deal) bool {
		return slices.ContainsFunc([]*Acceptance{d.Accept, d.Overtaken}, func(a *Acceptance) bool {
			return a != nil && a.By == Ours && a.Message == accept
		})
	})
}

// IsPlainAccept reports whether the recorded accept with this message id is neither a new proposal nor unclear. For any
// other message, the result has no meaning.
func (d Deal) IsPlainAccept(id wire.MessageID) bool {
	return d.Proposal != nil && d.Proposal.Message != id && d.Unclear != id
}

// accept applies an accept by one side. It returns an error only for an accept of ours. hidden has the messages of the
// peer that our owner has not released.
func (d Deal) accept(e Event, from Side, hidden []wire.MessageID) (Deal, error) {
	p := d.Proposal
	if p == nil {
		// The accept may mean a proposal that our owner has not released, or one that was taken back.
		isTakenBack := !d.TermsAt.IsZero()
		switch {
		case from == Ours && (len(hidden) > 0 || isTakenBack):
			return d, errStaleAccept
		case isTakenBack: // perhaps by a message that crossed the proposal, which still stands for the peer
			d.Unclear = e.ID
		}
		return d, nil
	}
	first := d.firstAccept()
	switch {
	case from == Ours && (slices.Contains(hidden, p.Message) || !d.isForStandingProposal(e, from, first)):
		return d, errStaleAccept
	case !d.isForStandingProposal(e, from, first):
		d.Unclear = e.ID
		return d, nil
	case first != nil: // this accept answers or repeats another one, whose terms stay as they are
		verdict, terms := JudgeAccept(Proposal{Terms: first.Terms, Intent: e.Intent}, e.Payload)
		// JudgeAccept agrees to a location that the terms left open; here it makes a new proposal.
		if verdict == Counter || verdict == Agreed && terms.Location != first.Location {
			return d.propose(e, from, terms), nil
		}
		return d, nil
	case p.By == Ours && from == Ours: // the peer would take an accept that names other terms for a new proposal
		return d, errStaleAccept
	case p.By == from: // a side cannot accept its own proposal
		return d, nil
	}
	verdict, terms := JudgeAccept(*p, e.Payload)
	switch {
	case verdict == Counter:
		return d.propose(e, from, terms), nil
	case verdict == Agreed:
		d.Accept, d.Unclear = &Acceptance{Terms: terms, Decision: e.Decision, By: from, Message: e.ID, Proposed: p.Message}, ""
		if from == Theirs {
			d.Accept.Decision, d.Accept.Written = p.Decision, e.Written
		}
		d.Accept.Offered = p.At
	case from == Ours:
		return d, errAmbiguousAccept(p.Times)
	default:
		d.Unclear = e.ID
	}
	return d, nil
}

// isForStandingProposal reports whether the accept e means the standing proposal and not an earlier one. first is the
// first accept of the standing proposal, or nil. An accept means the standing proposal if it names the message of the
// proposal or of first. So does an accept of the peer that names no message, except in two cases: the peer wrote the
// accept before our proposal had arrived, or the accept may mean our proposal that the peer's own proposal replaced. An
// accept of ours that names no message is older than the peer's proposal and waited for our owner. Until the other side
// accepts, an accept by the side that made the proposal may name any message.
func (d Deal) isForStandingProposal(e Event, from Side, first *Acceptance) bool {
	p := d.Proposal
	isCrossing := from == Theirs && d.Replaced != nil // the accept may mean our replaced proposal
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
	for _, d := range c.Deals() {
		if a := d.findAnsweredAccept(payload); a != nil {
			return a
		}
	}
	return nil
}

func (d Deal) findAnsweredAccept(payload wire.Value) *Acceptance {
	a, answers := d.Accept, AnswersIn(payload)
	if d.Overtaken != nil && d.Overtaken.Message == answers && answers != "" {
		a = d.Overtaken
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
func (d Deal) takeBack(e Event, from Side, anyWaits bool) Deal {
	if d.isUnclearDecline(e, from) {
		doubtful := *d.Agreement
		doubtful.Doubtful = true
		d.Agreement = &doubtful
		return d
	}
	isNamed := d.isNamedBy(e)
	if d.TakesBack(e, from) {
		waits := e.Waits
		if e.Payload.GetStr("action") == "withdraw" {
			waits = anyWaits
		}
		switch {
		case !waits || e.Intent != wire.Schedule || !d.InForce():
			d = d.cancel(from, e.At)
		case d.Proposal == nil || d.Proposal.Accepted:
			return d
		}
	}
	if isNamed && (d.Stands() || d.InForce()) { // a later proposal stays, and so does what the message is older than
		return d
	}
	d.Proposal, d.Replaced, d.Accept, d.Overtaken, d.Unclear, d.TermsAt = nil, nil, nil, nil, "", e.At
	return d
}

// cancel marks the agreement as cancelled and ends its proposal, but not a later proposal.
func (d Deal) cancel(by Side, at time.Time) Deal {
	if d.InForce() {
		a := *d.Agreement
		a.Cancelled = &Cancellation{By: by, At: at}
		d.Agreement = &a
		if d.Proposal != nil && d.Proposal.Accepted {
			d.Proposal = nil
		}
	}
	return d
}

// conclude makes the accept e.ID the agreement. A proposal made after the accept stays the standing proposal.
func (d Deal) conclude(e Event) Deal {
	if a := d.Overtaken; a != nil && a.Message == e.ID && e.ID != "" {
		if !a.Before.IsZero() && (e.Written.IsZero() || !e.Written.Before(a.Before)) {
			return d
		}
		d.Agreement, d.Overtaken = a.agreement(a.Intent, e), nil
		return d
	}
	a, p := d.Accept, d.Proposal
	if a == nil || p == nil || a.Message != e.ID {
		return d
	}
	proposal := *p
	proposal.Accepted = true
	d.Agreement, d.Proposal, d.Replaced, d.Accept = a.agreement(p.Intent, e), &proposal, nil, nil
	return d
}

// updateAccept updates a copy of our accept with this id, even if a proposal of ours overtook it.
func (d Deal) updateAccept(id wire.MessageID, update func(*Acceptance)) Deal {
	for _, a := range []**Acceptance{&d.Accept, &d.Overtaken} {
		if *a != nil && (*a).By == Ours && (*a).Message == id {
			updated := **a
			update(&updated)
			*a = &updated
		}
	}
	return d
}

// markDelivered records that the peer has received our message e.ID, at the time e.Written and under the id e.Answers.
func (d Deal) markDelivered(e Event) Deal {
	d = d.updateAccept(e.ID, func(a *Acceptance) { a.Delivered = true })
	if p := d.Proposal; p != nil && p.By == Ours && p.Message == e.ID && p.Delivered.IsZero() {
		delivered := *p
		delivered.Delivered = e.Written
		if e.Answers != e.ID {
			delivered.Resent = e.Answers
		}
		d.Proposal = &delivered
	}
	return d
}

// Clarification returns the counter-proposal that answers an ambiguous accept: our proposal with only the first of its
// times. ok is false if id is not such an accept, if our last proposal was a clarification, or if our proposal was
// shortened for the store.
func (c Conversation) Clarification(id wire.MessageID) (payload wire.Value, ok bool) {
	for _, d := range c.Deals() {
		if payload, ok = d.clarification(id); ok {
			return payload, true
		}
	}
	return payload, false
}

func (d Deal) clarification(id wire.MessageID) (payload wire.Value, ok bool) {
	p := d.Proposal
	if d.Unclear == "" || d.Unclear != id || p == nil || p.Clarifies {
		return wire.Value{}, false
	}
	if p.By == Theirs {
		p = d.Replaced
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
