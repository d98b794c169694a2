package mess

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The state machine of MESS section 5. Every method here is pure: it changes the thread it is called on and nothing
// else, and where it returns an error it has changed nothing.

// role is what an actor is to a thread; one actor may have several.
type role uint8

const (
	asRequester role = 1 << iota
	asHolder
	asEligible // may claim it, and has not
	asExchange
	asOwner // acts for anybody
)

func (r role) any(of role) bool { return r&of != 0 }

// lateResponse is how long after completed or partial a response is still taken (MESS-39).
const lateResponse = 24 * time.Hour

// working is what the holder of a thread may set while the work goes on.
var working = []Code{
	InProgress, Waiting, Held, Retrying, NeedsInput, NeedsConfirmation, Completed, Partial, Failed, Declined, Delegated,
}

// holderMay is the column "holder may set".
var holderMay = map[Code][]Code{
	Claimed: working, InProgress: working, Waiting: working, Held: working, Retrying: working,
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

// setStatus applies one status (MESS-22).
func (t *Thread) setStatus(s Status, by string, r role, now time.Time) error {
	if s.Code == Cancelled && r.any(asRequester|asOwner) {
		return t.cancel(s.Reason, by, now)
	}
	if t.Status.Terminal() {
		return conflict("the thread is %s", t.Status)
	}
	switch {
	case t.Holder != "" && r.any(asHolder|asOwner):
		return t.byHolder(s, by, now)
	case t.Status == Received && t.Holder == "" && r.any(asEligible|asOwner):
		return t.byCandidate(s, by, r, now)
	case t.Holder != "" && r.any(asEligible) && !r.any(asRequester):
		return errTaken
	case t.Holder == "" && r.any(asEligible|asOwner):
		return t.byOwner(s, by, r, now)
	}
	return forbidden("only the executor of the thread may set its status")
}

// byHolder is what the holder sets, or the owner in its place.
func (t *Thread) byHolder(s Status, by string, now time.Time) error {
	if s.Code == t.Status { // new progress (MESS-22)
		t.took(s, now)
		return nil
	}
	refused := s.Code == Cancelled && t.Status == Held && t.Refused // MESS-25
	if !refused && !slices.Contains(holderMay[t.Status], s.Code) {
		return conflict("%s may not follow %s", s.Code, t.Status)
	}
	if err := t.confirmedFor(s.Code); err != nil {
		return err
	}
	t.become(s.Code, by, s.Message, now)
	t.took(s, now)
	return nil
}

// confirmedFor is MESS-25: with confirm_before nothing is done before a confirmed needs_confirmation.
func (t *Thread) confirmedFor(c Code) error {
	if t.ConfirmBefore && !t.Confirmed && (c == Completed || c == Partial) {
		return conflict("the requester wants to confirm first: set needs_confirmation")
	}
	return nil
}

// byCandidate is what an eligible executor or the owner sets on a thread that nobody holds: an implied claim goes first.
func (t *Thread) byCandidate(s Status, by string, r role, now time.Time) error {
	switch {
	case s.Code == Received:
		return conflict("the thread is %s", t.Status)
	case s.Code == Declined && !r.any(asOwner):
		t.Declined = append(t.Declined, by) // the thread itself only where none is left (MESS-24)
		t.Updated = now
		return nil
	case r.any(asOwner) && slices.Contains([]Code{Waiting, Held, Declined, Expired}, s.Code):
		return t.byOwner(s, by, r, now)
	case s.Code != Claimed && !slices.Contains(working, s.Code):
		return conflict("%s may not follow %s", s.Code, t.Status)
	}
	if err := t.confirmedFor(s.Code); err != nil {
		return err
	}
	t.claim(by, now)
	if s.Code != Claimed {
		t.become(s.Code, by, s.Message, now)
	} else if s.Message != "" {
		t.History[len(t.History)-1].Note = wire.OneLine(s.Message, maxNote)
	}
	t.took(s, now)
	return nil
}

func (t *Thread) claim(by string, now time.Time) {
	t.Holder = by
	t.become(Claimed, by, "", now)
}

// byOwner is the column of the exchange, on a thread without a holder.
func (t *Thread) byOwner(s Status, by string, r role, now time.Time) error {
	if !r.any(asOwner|asExchange) || !slices.Contains(exchangeMay[t.Status], s.Code) {
		return conflict("%s may not follow %s", s.Code, t.Status)
	}
	if s.Code == Received && t.Parked == "" {
		return conflict("%s may not follow %s", s.Code, t.Status)
	}
	if s.Code == Expired {
		t.Expired = string(t.Status)
	}
	t.become(s.Code, by, s.Message, now)
	if s.Code == Waiting || s.Code == Held {
		t.Parked = parkedApproval
	}
	return nil
}

// become enters a state.
func (t *Thread) become(c Code, by, note string, now time.Time) {
	t.Status, t.Parked, t.Questions = c, "", nil
	t.Updated = now
	if c == Completed || c == Partial {
		t.Ended = now
	}
	if c != Held {
		t.Refused = false
	}
	t.History = append(t.History, Event{Action: string(c), At: now, By: by, Note: wire.OneLine(note, maxNote)}) // the message has all of it
}

// took takes over what a status says beside its code.
func (t *Thread) took(s Status, now time.Time) {
	t.Updated = now
	if s.Code == NeedsInput {
		t.Questions = s.Questions
	}
}

// cancel is the requester's, from any state in which the thread is open (MESS-34).
func (t *Thread) cancel(reason, by string, now time.Time) error {
	if !t.Status.Open() {
		return conflict("the thread is %s", t.Status)
	}
	t.become(Cancelled, by, reason, now)
	return nil
}

// respond is the holder's result. lone says that it came in a raw block without a status, and then it completes the
// thread (MESS-26); it reports whether it did.
func (t *Thread) respond(by string, r role, lone bool, now time.Time) (completed bool, err error) {
	switch {
	case t.Holder == "" && t.Status == Received && r.any(asOwner) && lone:
		if err := t.confirmedFor(Completed); err != nil {
			return false, err
		}
		t.claim(by, now)
	case t.Holder == "":
		return false, forbidden("claim the thread first: only the executor that holds it may respond")
	case !r.any(asHolder | asOwner):
		return false, forbidden("only the executor that holds the thread may respond")
	}
	switch {
	case t.Status == Completed || t.Status == Partial:
		if now.Sub(t.Ended) > lateResponse {
			return false, conflict("the thread ended more than 24 hours ago")
		}
		t.Updated = now
		return false, nil
	case t.Status.Terminal():
		return false, conflict("the thread is %s", t.Status)
	}
	if err := t.confirmedFor(Completed); err != nil {
		return false, err
	}
	if !lone {
		t.Updated = now
		return false, nil
	}
	if !slices.Contains(holderMay[t.Status], Completed) {
		return false, conflict("%s may not follow %s", Completed, t.Status)
	}
	t.become(Completed, by, "", now)
	return true, nil
}

// answers is reply.answers (MESS-33): each name is that of a question, and those that are not named stay open. id is the question
// that the reply points at. Where questions have no names, or the reply none, everything is answered: its context may do it.
func (t *Thread) answers(id string, by wire.Value, who string, r role, now time.Time) error {
	if id != "" || by.Len() == 0 || t.Status != NeedsInput || !r.any(asRequester|asOwner) || slices.ContainsFunc(t.Questions, func(q Question) bool { return q.ID == "" }) {
		return t.answer(id, who, r, now)
	}
	names := map[string]bool{}
	for _, m := range by.Members() {
		if !slices.ContainsFunc(t.Questions, func(q Question) bool { return q.ID == m.Key }) {
			return missing("no question" + quoted(m.Key) + " is open")
		}
		names[m.Key] = true
	}
	for i := range t.Questions {
		q := &t.Questions[i]
		q.Answered = q.Answered || names[q.ID]
	}
	t.Updated = now
	if t.openQuestions() > 0 {
		return nil
	}
	return t.answer("", who, r, now)
}

// answer is the answer entry (MESS-33). id names one question, "" all that are open.
func (t *Thread) answer(id, by string, r role, now time.Time) error {
	if !r.any(asRequester | asOwner) {
		return forbidden("only the requester may answer")
	}
	if t.Status != NeedsInput {
		return conflict("the thread asks nothing: it is %s", t.Status)
	}
	if id != "" {
		q := t.question(id)
		if q == nil {
			return missing("there is no such open question")
		}
		q.Answered = true
		t.Updated = now
		if t.openQuestions() > 0 {
			return nil
		}
	}
	t.become(InProgress, by, "", now)
	return nil
}

// confirm is the answer to needs_confirmation.
func (t *Thread) confirm(yes bool, reason, by string, r role, now time.Time) error {
	if !r.any(asRequester | asOwner) {
		return forbidden("only the requester may confirm")
	}
	if t.Status != NeedsConfirmation {
		return conflict("the thread asks for no confirmation: it is %s", t.Status)
	}
	if yes {
		t.become(InProgress, by, reason, now)
		t.Confirmed = true
		return nil
	}
	t.become(Held, by, reason, now)
	t.Refused = true
	return nil
}

// expirable says whether a deadline ends the thread in the state it is in (MESS-32).
func (t *Thread) expirable() bool {
	return t.Status == Received || t.Status == Waiting || t.Status == Held
}

// expire is the exchange's, at the deadline.
func (t *Thread) expire(now time.Time) bool {
	if !t.expirable() || t.Deadline.IsZero() || now.Before(t.Deadline) {
		return false
	}
	t.Expired = string(t.Status)
	t.become(Expired, exchangeID, "", now)
	return true
}

// park makes a thread that nobody holds wait.
func (t *Thread) park(why string, now time.Time) {
	c := Held
	if why == parkedDependency || why == parkedSchedule {
		c = Waiting
	}
	t.become(c, exchangeID, why, now)
	t.Parked = why
}

// unpark undoes what the exchange did.
func (t *Thread) unpark(now time.Time) bool {
	if t.Parked == "" || t.Status != Waiting && t.Status != Held {
		return false
	}
	t.become(Received, exchangeID, "", now)
	return true
}

// waitsForPeer says whether it is parked until a peer that it was sent to says more.
func (t *Thread) waitsForPeer() bool { return t.Parked == parkedPeer || t.Parked == parkedPending }

// supersede puts other threads in its place.
func (t *Thread) supersede(by []string, reason string, now time.Time) error {
	if !t.Status.Open() {
		return conflict("the thread is %s", t.Status)
	}
	t.become(Superseded, exchangeID, reason, now)
	t.Successors = by
	return nil
}

// status is the entry that tells of the state the thread is in now.
func (t *Thread) statusEntry(extra ...wire.Member) Entry {
	body := wire.Obj(wire.Member{Key: "re", Value: wire.Text(t.Ref)}, wire.Member{Key: "code", Value: wire.Text(string(t.Status))})
	for _, m := range extra {
		body = body.With(m.Key, m.Value)
	}
	return Entry{Type: "status", Body: body}
}

// asks says whether the thread waits for its requester.
func (t *Thread) asks() bool { return t.Status == NeedsInput || t.Status == NeedsConfirmation }

// taken is when the thread was claimed; the zero value where nobody did.
func (t *Thread) taken() time.Time {
	i := slices.IndexFunc(t.History, func(e Event) bool { return e.Action == string(Claimed) })
	if i < 0 {
		return time.Time{}
	}
	return t.History[i].At
}

// wasRefused says whether the requester said no before the thread came into its state: then its holder may cancel it
// (MESS-25).
func (t *Thread) wasRefused() bool {
	n := len(t.History)
	return n > 1 && t.History[n-2].Action == string(Held) && t.History[n-2].By == t.Requester
}
