package thread

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The state machine of MESS section 5. Every method here is pure: it changes the thread it is called on and nothing
// else, and where it returns an error it has changed nothing.

// Role is what an actor is to a thread; one actor may have several.
type Role uint8

const (
	AsRequester Role = 1 << iota
	AsHolder
	AsEligible // may claim it, and has not
	AsExchange
	AsOwner // acts for anybody
)

// Has reports whether an actor has one of these roles.
func (r Role) Has(of Role) bool { return r&of != 0 }

// lateResponse is how long after completed or partial a response is still taken (MESS-39).
const lateResponse = 24 * time.Hour

// WorkingCodes is what the holder of a thread may set while the work goes on.
var WorkingCodes = []Code{
	InProgress, Waiting, Held, Retrying, NeedsInput, NeedsConfirmation, Completed, Partial, Failed, Declined, Delegated,
}

// HolderMay is the column "holder may set".
var HolderMay = map[Code][]Code{
	Claimed: WorkingCodes, InProgress: WorkingCodes, Waiting: WorkingCodes, Held: WorkingCodes, Retrying: WorkingCodes,
	NeedsInput:        {InProgress, NeedsConfirmation, Held, Failed, Declined, Delegated},
	NeedsConfirmation: {Held, Failed, Declined, Delegated},
	Partial:           {Completed},
}

// exchangeMay is the column "exchange or owner".
var exchangeMay = map[Code][]Code{
	Received: {Waiting, Held, Expired, Superseded, Declined, Failed},
	Claimed:  {Superseded}, InProgress: {Superseded},
	Waiting: {Superseded, Expired, Received, Failed}, Held: {Superseded, Expired, Received, Declined}, Retrying: {Superseded, Received},
	NeedsInput: {Superseded}, NeedsConfirmation: {Superseded},
}

// SetStatus applies one status (MESS-22).
func (t *Thread) SetStatus(s Status, by string, r Role, now time.Time) error {
	if s.Code == Cancelled && r.Has(AsRequester|AsOwner) {
		return t.Cancel(s.Reason, by, now)
	}
	if t.Status.Terminal() {
		return Conflict("the thread is %s", t.Status)
	}
	switch {
	case t.Holder != "" && r.Has(AsHolder|AsOwner):
		return t.byHolder(s, by, now)
	case t.Status == Received && t.Holder == "" && r.Has(AsEligible|AsOwner):
		return t.byCandidate(s, by, r, now)
	case t.Holder != "" && r.Has(AsEligible) && !r.Has(AsRequester):
		return ErrTaken
	case t.Holder == "" && r.Has(AsEligible|AsOwner):
		return t.byOwner(s, by, r, now)
	}
	return Forbidden("only the executor of the thread may set its status")
}

// byHolder is what the holder sets, or the owner in its place.
func (t *Thread) byHolder(s Status, by string, now time.Time) error {
	if s.Code == t.Status { // new progress (MESS-22)
		t.ApplyStatus(s, now)
		return nil
	}
	refused := s.Code == Cancelled && t.Status == Held && t.Refused // MESS-25
	if !refused && !slices.Contains(HolderMay[t.Status], s.Code) {
		return Conflict("%s may not follow %s", s.Code, t.Status)
	}
	if err := t.confirmedFor(s.Code); err != nil {
		return err
	}
	t.Become(s.Code, by, s.Message, now)
	t.ApplyStatus(s, now)
	return nil
}

// confirmedFor is MESS-25: with confirm_before nothing is done before a confirmed needs_confirmation.
func (t *Thread) confirmedFor(c Code) error {
	if t.ConfirmBefore && !t.Confirmed && (c == Completed || c == Partial) {
		return Conflict("the requester wants to confirm first: set needs_confirmation")
	}
	return nil
}

// byCandidate is what an eligible executor or the owner sets on a thread that nobody holds: an implied claim goes first.
func (t *Thread) byCandidate(s Status, by string, r Role, now time.Time) error {
	switch {
	case s.Code == Received:
		return Conflict("the thread is %s", t.Status)
	case s.Code == Declined && !r.Has(AsOwner):
		t.Declined = append(t.Declined, by) // the thread itself only where none is left (MESS-24)
		t.Updated = now
		return nil
	case r.Has(AsOwner) && slices.Contains([]Code{Waiting, Held, Declined, Expired}, s.Code):
		return t.byOwner(s, by, r, now)
	case s.Code != Claimed && !slices.Contains(WorkingCodes, s.Code):
		return Conflict("%s may not follow %s", s.Code, t.Status)
	}
	if err := t.confirmedFor(s.Code); err != nil {
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

// byOwner is the column of the exchange, on a thread without a holder.
func (t *Thread) byOwner(s Status, by string, r Role, now time.Time) error {
	if !r.Has(AsOwner|AsExchange) || !slices.Contains(exchangeMay[t.Status], s.Code) {
		return Conflict("%s may not follow %s", s.Code, t.Status)
	}
	if s.Code == Received && t.Parked == "" {
		return Conflict("%s may not follow %s", s.Code, t.Status)
	}
	if s.Code == Expired {
		t.Expired = string(t.Status)
	}
	t.Become(s.Code, by, s.Message, now)
	if s.Code == Waiting || s.Code == Held {
		t.Parked = ParkedApproval
	}
	return nil
}

// Become enters a state.
func (t *Thread) Become(c Code, by, note string, now time.Time) {
	t.Status, t.Parked, t.Questions = c, "", nil
	t.Updated = now
	if c == Completed || c == Partial {
		t.Ended = now
	}
	if c != Held {
		t.Refused = false
	}
	t.History = append(t.History, Event{Action: string(c), At: now, By: by, Note: wire.OneLine(note, MaxNote)}) // the message has all of it
}

// ApplyStatus takes over what a status says beside its code.
func (t *Thread) ApplyStatus(s Status, now time.Time) {
	t.Updated = now
	if s.Code == NeedsInput {
		t.Questions = s.Questions
	}
}

// Cancel is the requester's, from any state in which the thread is open (MESS-34).
func (t *Thread) Cancel(reason, by string, now time.Time) error {
	if !t.Status.Open() {
		return Conflict("the thread is %s", t.Status)
	}
	t.Become(Cancelled, by, reason, now)
	return nil
}

// Respond is the holder's result. lone says that it came in a raw block without a status, and then it completes the
// thread (MESS-26); it reports whether it did.
func (t *Thread) Respond(by string, r Role, lone bool, now time.Time) (completed bool, err error) {
	switch {
	case t.Holder == "" && t.Status == Received && r.Has(AsOwner) && lone:
		if err := t.confirmedFor(Completed); err != nil {
			return false, err
		}
		t.Claim(by, now)
	case t.Holder == "":
		return false, Forbidden("claim the thread first: only the executor that holds it may respond")
	case !r.Has(AsHolder | AsOwner):
		return false, Forbidden("only the executor that holds the thread may respond")
	}
	switch {
	case t.Status == Completed || t.Status == Partial:
		if now.Sub(t.Ended) > lateResponse {
			return false, Conflict("the thread ended more than 24 hours ago")
		}
		t.Updated = now
		return false, nil
	case t.Status.Terminal():
		return false, Conflict("the thread is %s", t.Status)
	}
	if err := t.confirmedFor(Completed); err != nil {
		return false, err
	}
	if !lone {
		t.Updated = now
		return false, nil
	}
	if !slices.Contains(HolderMay[t.Status], Completed) {
		return false, Conflict("%s may not follow %s", Completed, t.Status)
	}
	t.Become(Completed, by, "", now)
	return true, nil
}

// AnswerAll is reply.answers (MESS-33): each name is that of a question, and those that are not named stay open. id is the question
// that the reply points at. Where questions have no names, or the reply none, everything is answered: its context may do it.
func (t *Thread) AnswerAll(id string, by wire.Value, who string, r Role, now time.Time) error {
	if id != "" || by.Len() == 0 || t.Status != NeedsInput || !r.Has(AsRequester|AsOwner) || slices.ContainsFunc(t.Questions, func(q Question) bool { return q.ID == "" }) {
		return t.Answer(id, who, r, now)
	}
	names := map[string]bool{}
	for _, m := range by.Members() {
		if !slices.ContainsFunc(t.Questions, func(q Question) bool { return q.ID == m.Key }) {
			return Missing("no question" + Quoted(m.Key) + " is open")
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
	return t.Answer("", who, r, now)
}

// Answer is the answer entry (MESS-33). id names one question, "" all that are open.
func (t *Thread) Answer(id, by string, r Role, now time.Time) error {
	if !r.Has(AsRequester | AsOwner) {
		return Forbidden("only the requester may answer")
	}
	if t.Status != NeedsInput {
		return Conflict("the thread asks nothing: it is %s", t.Status)
	}
	if id != "" {
		q := t.OpenQuestion(id)
		if q == nil {
			return Missing("there is no such open question")
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

// Confirm is the answer to needs_confirmation.
func (t *Thread) Confirm(yes bool, reason, by string, r Role, now time.Time) error {
	if !r.Has(AsRequester | AsOwner) {
		return Forbidden("only the requester may confirm")
	}
	if t.Status != NeedsConfirmation {
		return Conflict("the thread asks for no confirmation: it is %s", t.Status)
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

// IsExpirable reports whether a deadline ends the thread in the state it is in (MESS-32).
func (t *Thread) IsExpirable() bool {
	return t.Status == Received || t.Status == Waiting || t.Status == Held
}

// Expire is the exchange's, at the deadline.
func (t *Thread) Expire(now time.Time) bool {
	if !t.IsExpirable() || t.Deadline.IsZero() || now.Before(t.Deadline) {
		return false
	}
	t.Expired = string(t.Status)
	t.Become(Expired, ExchangeID, "", now)
	return true
}

// Park makes a thread that nobody holds wait.
func (t *Thread) Park(why string, now time.Time) {
	c := Held
	if why == ParkedDependency || why == ParkedSchedule {
		c = Waiting
	}
	t.Become(c, ExchangeID, why, now)
	t.Parked = why
}

// Unpark undoes what the exchange did.
func (t *Thread) Unpark(now time.Time) bool {
	if t.Parked == "" || t.Status != Waiting && t.Status != Held {
		return false
	}
	t.Become(Received, ExchangeID, "", now)
	return true
}

// WaitsForPeer reports whether it is parked until a peer that it was sent to says more.
func (t *Thread) WaitsForPeer() bool { return t.Parked == ParkedPeer || t.Parked == ParkedPending }

// Supersede puts other threads in its place.
func (t *Thread) Supersede(by []string, reason string, now time.Time) error {
	if !t.Status.Open() {
		return Conflict("the thread is %s", t.Status)
	}
	t.Become(Superseded, ExchangeID, reason, now)
	t.Successors = by
	return nil
}

// StatusEntry returns the entry that tells the present state of the thread.
func (t *Thread) StatusEntry(extra ...wire.Member) Entry {
	body := wire.Obj(wire.TextField("re", t.Ref), wire.TextField("code", string(t.Status)))
	for _, m := range extra {
		body = body.With(m.Key, m.Value)
	}
	return Entry{Type: "status", Body: body}
}

// AwaitsRequester reports whether the thread waits for its requester.
func (t *Thread) AwaitsRequester() bool {
	return t.Status == NeedsInput || t.Status == NeedsConfirmation
}

// ClaimedAt is when the thread was claimed; the zero value where nobody did.
func (t *Thread) ClaimedAt() time.Time {
	i := slices.IndexFunc(t.History, func(e Event) bool { return e.Action == string(Claimed) })
	if i < 0 {
		return time.Time{}
	}
	return t.History[i].At
}

// WasRefused reports whether the requester said no before the thread came into its state: then its holder may cancel it
// (MESS-25).
func (t *Thread) WasRefused() bool {
	n := len(t.History)
	return n > 1 && t.History[n-2].Action == string(Held) && t.History[n-2].By == t.Requester
}
