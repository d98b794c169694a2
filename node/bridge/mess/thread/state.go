package thread

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The state machine of MESS section 5. Every method here changes only the thread on which it is called. A method that
// returns an error has changed nothing.

// Role is the role of an actor in a thread. An actor may have several.
type Role uint8

const (
	AsRequester Role = 1 << iota
	AsHolder
	AsEligible // may claim the thread and has not done so
	AsExchange
	AsOwner // may act for anybody
)

// Has reports whether r contains at least one of these roles.
func (r Role) Has(roles Role) bool { return r&roles != 0 }

// lateResponse is how long a response is accepted after "completed" or "partial" (MESS-39).
const lateResponse = 24 * time.Hour

// WorkingCodes are the states that the holder of the claim may set while it works.
var WorkingCodes = []Code{
	InProgress, Waiting, Held, Retrying, NeedsInput, NeedsConfirmation, Completed, Partial, Failed, Declined, Delegated,
}

// HolderMay is the column "holder may set" of the table in section 5.
var HolderMay = map[Code][]Code{
	Claimed: WorkingCodes, InProgress: WorkingCodes, Waiting: WorkingCodes, Held: WorkingCodes, Retrying: WorkingCodes,
	NeedsInput:        {InProgress, NeedsConfirmation, Held, Failed, Declined, Delegated},
	NeedsConfirmation: {Held, Failed, Declined, Delegated},
	Partial:           {Completed},
}

// exchangeMay is the column "exchange or owner" of the table in section 5.
var exchangeMay = map[Code][]Code{
	Received: {Waiting, Held, Expired, Superseded, Declined, Failed},
	Claimed:  {Superseded}, InProgress: {Superseded},
	Waiting: {Superseded, Expired, Received, Failed}, Held: {Superseded, Expired, Received, Declined}, Retrying: {Superseded, Received},
	NeedsInput: {Superseded}, NeedsConfirmation: {Superseded},
}

// SetStatus applies a status of an actor (MESS-22).
func (t *Thread) SetStatus(s Status, by string, r Role, now time.Time) error {
	if s.Code == Cancelled && r.Has(AsRequester|AsOwner) {
		return t.Cancel(s.Reason, by, now)
	}
	if t.Status.Terminal() {
		return Conflict("the thread is %s", t.Status)
	}
	switch {
	case t.Holder != "" && r.Has(AsHolder|AsOwner):
		return t.setAsHolder(s, by, now)
	case t.Status == Received && t.Holder == "" && r.Has(AsEligible|AsOwner):
		return t.setAsCandidate(s, by, r, now)
	case t.Holder != "" && r.Has(AsEligible) && !r.Has(AsRequester):
		return ErrTaken
	case t.Holder == "" && r.Has(AsEligible|AsOwner):
		return t.setAsOwner(s, by, r, now)
	}
	if r.Has(AsRequester) {
		return Forbidden("only the executor of the thread may set its status; a requester sends a reply, an answer or a cancel in the member mess")
	}
	return Forbidden("only the executor of the thread may set its status")
}

// setAsHolder applies a status that the holder sets, or the owner in place of the holder.
func (t *Thread) setAsHolder(s Status, by string, now time.Time) error {
	if s.Code == t.Status { // new progress (MESS-22)
		t.ApplyStatus(s, now)
		return nil
	}
	// the holder may cancel after the requester refused to confirm the action (MESS-25)
	cancelsRefused := s.Code == Cancelled && t.Status == Held && t.Refused
	if !cancelsRefused && !slices.Contains(HolderMay[t.Status], s.Code) {
		return Conflict("%s may not follow %s", s.Code, t.Status)
	}
	if err := t.checkConfirmation(s.Code); err != nil {
		return err
	}
	t.Become(s.Code, by, s.Message, now)
	t.ApplyStatus(s, now)
	return nil
}

// checkConfirmation implements MESS-25: with confirm_before, the requester must confirm before the thread completes.
func (t *Thread) checkConfirmation(c Code) error {
	if t.ConfirmBefore && !t.Confirmed && (c == Completed || c == Partial) {
		return Conflict("the requester wants to confirm first: set needs_confirmation")
	}
	return nil
}

// setAsCandidate applies a status of an eligible executor or the owner to an unclaimed thread. The status claims the
// thread first, unless its code is "declined", or the owner makes the thread wait, holds it or lets it expire.
func (t *Thread) setAsCandidate(s Status, by string, r Role, now time.Time) error {
	switch {
	case s.Code == Received:
		return Conflict("the thread is %s", t.Status)
	case s.Code == Declined && !r.Has(AsOwner):
		t.Declined = append(t.Declined, by) // the thread itself is declined only if no executor is left (MESS-24)
		t.Updated = now
		return nil
	case r.Has(AsOwner) && slices.Contains([]Code{Waiting, Held, Declined, Expired}, s.Code):
		return t.setAsOwner(s, by, r, now)
	case s.Code != Claimed && !slices.Contains(WorkingCodes, s.Code):
		return Conflict("%s may not follow %s", s.Code, t.Status)
	}
	if err := t.checkConfirmation(s.Code); err != nil {
		return err
	}
	t.Claim(by, now)
	if s.Code != Claimed {
		t.Become(s.Code, by, s.Message, now)
	} else if s.Message != "" {
		t.History[len(t.History)-1].Note = wire.OneLine(s.Message, MaxNote)
	}
	t.ApplyStatus(s, now)
	return nil
}

// Claim makes an executor the holder.
func (t *Thread) Claim(by string, now time.Time) {
	t.Holder = by
	t.Become(Claimed, by, "", now)
}

// setAsOwner applies a status to a thread without a holder. It refuses actors other than the exchange and the owner.
// The status "received" releases a parked thread.
func (t *Thread) setAsOwner(s Status, by string, r Role, now time.Time) error {
	if !r.Has(AsOwner|AsExchange) || !slices.Contains(exchangeMay[t.Status], s.Code) || s.Code == Received && t.Parked == "" {
		return Conflict("%s may not follow %s", s.Code, t.Status)
	}
	if s.Code == Expired {
		t.Stage = string(t.Status)
	}
	t.Become(s.Code, by, s.Message, now)
	if s.Code == Waiting || s.Code == Held {
		t.Parked = ParkedApproval
	}
	return nil
}

// Become enters a state and records the transition.
func (t *Thread) Become(c Code, by, note string, now time.Time) {
	t.Status, t.Parked, t.Questions = c, "", nil
	t.Updated = now
	if c == Completed || c == Partial {
		t.Ended = now
	}
	if c != Held {
		t.Refused = false
	}
	// the message has the full note
	t.History = append(t.History, Event{Action: string(c), At: now, By: by, Note: wire.OneLine(note, MaxNote)})
}

// ApplyStatus applies what a status contains besides its code.
func (t *Thread) ApplyStatus(s Status, now time.Time) {
	t.Updated = now
	if s.Code == NeedsInput {
		t.Questions = s.Questions
	}
}

// Cancel ends the thread for its requester, from any open state (MESS-34).
func (t *Thread) Cancel(reason, by string, now time.Time) error {
	if !t.Status.Open() {
		return Conflict("the thread is %s", t.Status)
	}
	t.Become(Cancelled, by, reason, now)
	return nil
}

// Respond applies a result of the holder. If isLone is true, the result came in a block without a status, and completes
// the thread (MESS-26). The owner may send such a result for an unclaimed thread, which it also claims.
func (t *Thread) Respond(by string, r Role, isLone bool, now time.Time) error {
	switch {
	case t.Holder == "" && t.Status == Received && r.Has(AsOwner) && isLone:
		if err := t.checkConfirmation(Completed); err != nil {
			return err
		}
		t.Claim(by, now)
	case t.Holder == "":
		return Forbidden("claim the thread first: only the executor that holds it may respond")
	case !r.Has(AsHolder | AsOwner):
		return Forbidden("only the executor that holds the thread may respond")
	}
	switch {
	case t.Status == Completed || t.Status == Partial:
		if now.Sub(t.Ended) > lateResponse {
			return Conflict("the thread ended more than 24 hours ago")
		}
		t.Updated = now
		return nil
	case t.Status.Terminal():
		return Conflict("the thread is %s", t.Status)
	}
	if err := t.checkConfirmation(Completed); err != nil {
		return err
	}
	if !isLone {
		t.Updated = now
		return nil
	}
	if !slices.Contains(HolderMay[t.Status], Completed) {
		return Conflict("%s may not follow %s", Completed, t.Status)
	}
	t.Become(Completed, by, "", now)
	return nil
}

// AnswerAll applies the answers of a reply (MESS-33). Each key of answers is the id of a question; questions without an
// answer stay open. id is the question to which the whole reply refers, or "". If a question has no id, or answers is
// empty, all open questions count as answered, because the context of the reply may answer them.
func (t *Thread) AnswerAll(id string, answers wire.Value, by string, r Role, now time.Time) error {
	if id != "" || answers.Len() == 0 || t.Status != NeedsInput || !r.Has(AsRequester|AsOwner) || slices.ContainsFunc(t.Questions, func(q Question) bool { return q.ID == "" }) {
		return t.Answer(id, by, r, now)
	}
	names := map[string]bool{}
	for _, m := range answers.Members() {
		if !slices.ContainsFunc(t.Questions, func(q Question) bool { return q.ID == m.Key }) {
			return Missing("no question" + QuoteName(m.Key) + " is open")
		}
		names[m.Key] = true
	}
	for i := range t.Questions {
		q := &t.Questions[i]
		q.Answered = q.Answered || names[q.ID]
	}
	t.Updated = now
	if t.CountQuestions() > 0 {
		return nil
	}
	return t.Answer("", by, r, now)
}

// Answer applies an answer entry (MESS-33). id names one question; "" means all open ones.
func (t *Thread) Answer(id, by string, r Role, now time.Time) error {
	if !r.Has(AsRequester | AsOwner) {
		return Forbidden("only the requester may answer")
	}
	if t.Status != NeedsInput {
		return Conflict("no question is open: the thread is %s", t.Status)
	}
	if id != "" {
		q := t.OpenQuestion(id)
		if q == nil {
			return Missing("no open question has this id")
		}
		q.Answered = true
		t.Updated = now
		if t.CountQuestions() > 0 {
			return nil
		}
	}
	t.Become(InProgress, by, "", now)
	return nil
}

// Confirm applies the answer to needs_confirmation.
func (t *Thread) Confirm(yes bool, reason, by string, r Role, now time.Time) error {
	if !r.Has(AsRequester | AsOwner) {
		return Forbidden("only the requester may confirm")
	}
	if t.Status != NeedsConfirmation {
		return Conflict("nothing needs confirmation: the thread is %s", t.Status)
	}
	if yes {
		t.Become(InProgress, by, reason, now)
		t.Confirmed = true
		return nil
	}
	t.Become(Held, by, reason, now)
	t.Refused = true
	return nil
}

// IsExpirable reports whether a deadline ends the thread in its current state (MESS-32).
func (t *Thread) IsExpirable() bool {
	return t.Status == Received || t.Status == Waiting || t.Status == Held
}

// Expire ends the thread if its deadline has passed, and reports whether it did.
func (t *Thread) Expire(now time.Time) bool {
	if !t.IsExpirable() || t.Deadline.IsZero() || now.Before(t.Deadline) {
		return false
	}
	t.Stage = string(t.Status)
	t.Become(Expired, ExchangeID, "", now)
	return true
}

// Park makes an unclaimed thread wait. reason is [ParkedDependency] or one of the other Parked constants.
func (t *Thread) Park(reason string, now time.Time) {
	c := Held
	if reason == ParkedDependency || reason == ParkedSchedule {
		c = Waiting
	}
	t.Become(c, ExchangeID, reason, now)
	t.Parked = reason
}

// Unpark gives a parked thread the status "received" again, and reports whether it did.
func (t *Thread) Unpark(now time.Time) bool {
	if t.Parked == "" || t.Status != Waiting && t.Status != Held {
		return false
	}
	t.Become(Received, ExchangeID, "", now)
	return true
}

// WaitsForPeer reports whether the thread was sent to a peer and is parked until the peer reports a change.
func (t *Thread) WaitsForPeer() bool { return t.Parked == ParkedPeer || t.Parked == ParkedPending }

// Supersede ends the thread because its successors replace it.
func (t *Thread) Supersede(successors []string, reason string, now time.Time) error {
	if !t.Status.Open() {
		return Conflict("the thread is %s", t.Status)
	}
	t.Become(Superseded, ExchangeID, reason, now)
	t.Successors = successors
	return nil
}

// ContinueAs keeps the thread open after a peer delegated the peer's own thread to a successor, and returns the status
// to post. If the peer is a mesh agent, its name for our thread becomes successor. A question that the older thread had
// open is dropped.
func (t *Thread) ContinueAs(peer string, s Status, successor string, now time.Time) Entry {
	if p := t.Peers[peer]; p.Address == "" {
		p.Name = successor
		t.Peers[peer] = p
	}
	if t.AwaitsRequester() {
		t.Become(Claimed, peer, "", now)
	}
	text := "it continues there as " + wire.OneLine(successor, MaxID)
	if s.Delegated != "" {
		text += ", with " + wire.OneLine(s.Delegated, 64)
	}
	return t.StatusEntry(wire.TextField("message", text))
}

// StatusEntry returns the entry that reports the current state of the thread.
func (t *Thread) StatusEntry(extra ...wire.Member) Entry { return NewStatus(t.Ref, t.Status, extra...) }

// AwaitsRequester reports whether the thread waits for its requester.
func (t *Thread) AwaitsRequester() bool {
	return t.Status == NeedsInput || t.Status == NeedsConfirmation
}

// ClaimedAt returns the time of the first claim, or the zero time.
func (t *Thread) ClaimedAt() time.Time {
	i := slices.IndexFunc(t.History, func(e Event) bool { return e.Action == string(Claimed) })
	if i < 0 {
		return time.Time{}
	}
	return t.History[i].At
}

// HadRefusal reports whether the requester refused a confirmation just before the thread entered its current state.
// The holder may cancel a thread after such a refusal (MESS-25).
func (t *Thread) HadRefusal() bool {
	n := len(t.History)
	return n > 1 && t.History[n-2].Action == string(Held) && t.History[n-2].By == t.Requester
}
