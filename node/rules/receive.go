package rules

import (
	"errors"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// State is what the rules know of the node when a message arrives. [Admit] uses the first part, [Fit] the second,
// [Decide] all.
type State struct {
	Now time.Time
	// Arrived is the time by which lines 9 and 13 judge the message. A message that waited in a mailbox arrived when the
	// mailbox received it (AM-20).
	Arrived  time.Time
	Window   client.Window
	Replay   *store.Replay // the record of a message with the same id; nil: there is none
	Resent   *store.Replay // the record of the message that this one repeats with a new signature; nil: there is none
	Standing acl.Standing  // of the sender and its address
	Policy   acl.Policy    // for this sender: the mode is that of its link, the hold rules include those of the bridges
	Conv     conversations.Conversation
	New      bool // the conversation has not begun
	// CancelsEvent: the message may cancel an event that we agreed on with its sender. A sealed message does if it would
	// as a cancel.
	CancelsEvent bool

	ConvFull  bool // the conversation has as many bytes as it may have
	KeptFull  bool // open conversations alone take all the space for messages
	Open      int  // open conversations over the metered link of the message
	MaxOpen   int  // the most of them; 0: no limit
	IdleFor   time.Duration
	RetryKept time.Duration // when there may be space for a stranger

	Guarded   bool  // a guard judges what the owner's agent gets (AM-95)
	Sealed    bool  // the message was sealed, and is open now
	Ended     error // why the conversation takes no further message, unless it is a close; nil: it does
	Supported bool  // the card names the intent
	Schemas   interface {
		Check(intent wire.Intent, payload wire.Value) error
	} // of custom intents; nil: there are none
	Withdrawn []acl.Ask // pending questions about the sender's held messages that this message takes back
	Route     Route
	Turns     Turns
	Silence   time.Duration // see [conversations.Event.Idle]
	Recipient string        // see [conversations.Event.Recipient]
}

// Route is who answers the messages of an intent.
type Route struct {
	Name    string
	Handles bool // messages
	Replies bool // answers, too
	Foreign bool // passes the message on to a foreign network
}

// bound returns the bound that keeps the route from a turn, or "". A bridge takes no turns.
func (r Route) bound(t Turns, c conversations.Conversation, now time.Time) Bound {
	if r.Foreign {
		return ""
	}
	return t.spent(c, true, now)
}

// Takes reports whether the route handles replies, if isReply is true, or else messages.
func (r Route) Takes(isReply bool) bool { return r.Handles && (r.Replies || !isReply) }

// Action is what the node does with a message.
type Action string

const (
	Refuse   Action = "refuse"   // answer Verdict.Error and store nothing
	Repeat   Action = "repeat"   // give the answer in Verdict.Stored again
	Charge   Action = "charge"   // charge the limits, and go on with [Fit] and [Decide]
	Close    Action = "close"    // end the conversation and echo the close
	Withdraw Action = "withdraw" // take the sender's held messages back
	Hold     Action = "hold"     // ask the owner, who decides later
	Unclear  Action = "unclear"  // only the owner can say what this accept accepts (AM-88)
	Clarify  Action = "clarify"  // answer an ambiguous accept with our offer, reduced to a single time (AM-88)
	Read     Action = "read"     // into the inbox, as read: it only confirms a message of ours (AM-91)
	Inbox    Action = "inbox"    // into the inbox
	Judge    Action = "judge"    // the guard judges it, then into the inbox
	Run      Action = "run"      // the route answers

	Drop    Action = "drop"    // the transcript keeps it; nobody else sees it
	Deleted Action = "deleted" // the conversation is gone
	Late    Action = "late"    // the conversation ended before the agent answered
	Retry   Action = "retry"   // ask the hook again, later
	Fail    Action = "fail"    // leave the message to the owner, and tell its sender
	Await   Action = "await"   // the agent answers by itself
	Answer  Action = "answer"  // send the answer
)

// Verdict is a decision about a message.
type Verdict struct {
	Do     Action
	Error  error         // of Refuse
	Stored *store.Replay // of Repeat

	Rule     string // the rule that admitted or refused the sender, for the audit log
	Stranger bool   // the owner neither knows the sender nor wrote to it first
	Ask      bool   // the sender waits for the owner

	Waits       []Reason            // of Hold, the first one first
	Bound       Bound               // of Hold because of ByTurns: the bound that was hit
	Event       conversations.Event // to record, for every action after Charge
	ActionKnown bool                // the specification defines the action
	Confirms    bool                // the message confirms our accept, which waited for the peer's answer
	Cancels     string              // the UID of the agreed event that the message cancels, or ""
}

// Reason is why a message waits for the owner.
type Reason string

const (
	BySender  Reason = "sender"  // the access mode: the owner does not know the sender
	ByKey     Reason = "key"     // nothing proves that the sender's key belongs to its id (AM-2)
	BySeal    Reason = "seal"    // it came sealed, and its route would pass it on to a foreign network
	ByNetwork Reason = "network" // its network requires the owner's approval (MS-28, MS-34)
	ByIntent  Reason = "intent"  // the hold rules of its intent (AM-31)
	ByTurns   Reason = "turns"   // the owner's agent has taken all its turns (AM-93)
)

// Admit implements lines 9 to 11. The payload may still be sealed.
func Admit(s State, in bridge.Inbound) Verdict {
	if s.Replay != nil && s.Replay.Digest == in.Digest { // an exact repeat gets its stored answer, whatever its age (AM-21)
		return repeat(s.Replay)
	}
	if in.Native != nil { // before the id, so that an old message with a reused id is refused for its age (AM-24)
		if err := s.Window.Check(in.Native.Time, s.Arrived); err != nil {
			return refuse(err)
		}
	}
	if s.Replay != nil {
		return refuse(wire.ErrIDReused)
	}
	if s.Resent != nil && s.Resent.Conv == s.Conv.Key { // AM-48
		return repeat(s.Resent)
	}
	if !s.New && s.Conv.Address != in.Address {
		// The peer's pseudonym is an ordinary agent id. Another agent could register it, but must not get into
		// these conversations.
		return refuse(wire.ErrNotAllowed)
	}
	return access(s, in)
}

func refuse(err error) Verdict { return Verdict{Do: Refuse, Error: err} }

// repeat gives the stored answer to a repeat, unless the owner deleted the conversation.
func repeat(rec *store.Replay) Verdict {
	if rec.Status == 0 {
		return refuse(wire.ErrConversationClosed)
	}
	return Verdict{Do: Repeat, Stored: rec}
}

// access implements line 11. A seal hides whether the message cancels an agreed event, so Decide calls it again.
func access(s State, in bridge.Inbound) Verdict {
	expected := s.Conv.WroteFirst || s.CancelsEvent
	decided, err := s.Policy.Admit(s.Standing, expected)
	if err != nil {
		return refuse(err)
	}
	v := Verdict{Do: Charge, Ask: decided == acl.HoldSender}
	if v.Ask && s.Conv.Admits(in.Intent) { // AM-34, AM-97
		v.Ask, expected = false, true
	}
	v.Stranger = !s.Standing.Known() && !expected
	if in.Unproven != nil {
		v.Ask, v.Stranger = true, true
	}
	return v
}

// AdmittedBy names the rule that admitted the sender.
func AdmittedBy(s State) string {
	switch {
	case s.Conv.WroteFirst:
		return "our owner wrote first"
	case s.Standing != acl.Unknown:
		return "peer=" + string(s.Standing)
	}
	return modeRule(s)
}

// RefusedBy names the rule that refused an authenticated sender with err, or "" if no rule did.
func RefusedBy(s State, err error) string {
	switch {
	case errors.Is(err, wire.ErrNotAllowed) && s.Standing != acl.Blocked:
		return modeRule(s)
	case errors.Is(err, wire.ErrNotAllowed), errors.Is(err, wire.ErrOwnerRejected):
		return "peer=" + string(s.Standing)
	}
	return ""
}

func modeRule(s State) string { return "access.mode=" + string(s.Policy.Mode) }

var (
	errManyOpen         = errors.New("the link has reached its limit of open conversations")
	errConversationFull = errors.New("the conversation is full")
	errKeptFull         = errors.New("open conversations already take all the space for messages")
)

// retryOpen is the time after which a sender may try again when its link has too many open conversations.
const retryOpen = 10 * time.Minute

// Fit implements the rest of line 12, after the charge. It never refuses a close for its size, because a close frees
// space. A seal never hides a close.
func Fit(s State, in bridge.Inbound, stranger bool) error {
	switch {
	case s.New && s.MaxOpen > 0 && s.Open >= s.MaxOpen:
		return wire.ErrRateLimited.After(retryOpen).Because(errManyOpen)
	case isClose(in.Payload):
		return nil
	case s.ConvFull: // until it expires
		return wire.ErrRateLimited.After(s.IdleFor).Because(errConversationFull)
	case stranger && s.KeptFull: // until the next sweep
		return wire.ErrRateLimited.After(s.RetryKept).Because(errKeptFull)
	}
	return nil
}

func isClose(payload wire.Value) bool { return payload.GetStr("action") == wire.ActionClose }

// Decide implements lines 13 to 16, for the opened message.
func Decide(s State, in bridge.Inbound) Verdict {
	v := access(s, in)
	if v.Do == Refuse {
		return v
	}
	v.Confirms = s.Conv.FindAnsweredAccept(in.Payload) != nil
	v.Waits = waits(s, in, v)
	v.Event = event(s, in)
	if isClose(in.Payload) { // line 13
		if s.New {
			return refuse(wire.ErrConversationClosed)
		}
		v.Do, v.Event.Kind, v.Event.Withheld = Close, conversations.ClosedByPeer, len(v.Waits) > 0
		return v
	}
	known, err := checkIntent(s, in) // line 14
	switch {
	case s.Ended != nil:
		if err != nil || len(v.Waits) > 0 || !staysAfterwards(s, v.Event) {
			return refuse(s.Ended)
		}
		v.Do, v.ActionKnown, v.Confirms, v.Event.Kind = Inbox, known, false, conversations.Afterwards
		v.Cancels = CancelledEvent(v.Event, s.Conv, conversations.Theirs)
		return v
	case err != nil:
		return refuse(err)
	}
	v.ActionKnown = known
	if len(s.Withdrawn) > 0 {
		v.Do, v.Event.Withheld = Withdraw, len(v.Waits) > 0
		return v
	}
	v.Cancels = CancelledEvent(v.Event, s.Conv, conversations.Theirs)
	if len(v.Waits) > 0 { // line 15
		v.Do, v.Event.Waits = Hold, true
		return v
	}
	return answerer(s, in, v) // line 16
}

// afterClose is the time after a close in which messages that crossed it are kept.
const afterClose = time.Minute

// staysAfterwards reports whether the node keeps a message that came after the end of its conversation (AM-96): one that takes
// back the agreement that it names, or, shortly after a close, one that decides nothing.
func staysAfterwards(s State, e conversations.Event) bool {
	action := e.Payload.GetStr("action")
	switch {
	case s.Conv.State != conversations.Completed || s.Conv.Rejected || s.Conv.Address != "": // foreign networks have ends of their own
		return false
	case action == "cancel" || action == "decline":
		return s.Conv.Deal(e.Intent).IsTakenBackBy(e)
	}
	decides := []string{"propose", "counter", "accept", "reject", "withdraw", "ask"}
	return !slices.Contains(decides, action) && !s.Arrived.After(s.Conv.Last.Add(afterClose))
}

// answerer implements line 16: who answers a message that does not wait.
func answerer(s State, in bridge.Inbound, v Verdict) Verdict {
	after, err := s.Conv.Next(v.Event, s.IdleFor)
	if err != nil {
		return refuse(err)
	}
	v.Do = Answerer(after, s.Route, Answered{ID: in.MessageID, Intent: in.Intent, Payload: in.Payload, Reply: in.Reply, Confirms: v.Confirms, Unjudged: v.Event.Unjudged})
	v.Confirms = v.Confirms && v.Do != Clarify && v.Do != Unclear
	if v.Do == Run || v.Do == Clarify {
		v.Bound = s.Route.bound(s.Turns, after, s.Now)
	}
	if v.Bound != "" {
		v.Do, v.Waits, v.Event.Waits = Hold, []Reason{ByTurns}, true
	}
	return v
}

// Answered is a message of the peer that does not wait for the owner, or no longer.
type Answered struct {
	ID       wire.MessageID
	Intent   wire.Intent
	Payload  wire.Value
	Reply    bool // the peer expects no answer
	Confirms bool // it confirms our accept
	Unjudged bool // the guard has not judged it yet
}

// Answerer decides who answers a message: Clarify, Unclear, Read, Run, Judge or Inbox. c is the conversation with the message.
func Answerer(c conversations.Conversation, route Route, m Answered) Action {
	isUnclear := c.IsUnclear(m.ID)
	_, canClarify := c.Clarification(m.ID)
	switch {
	case isUnclear && !canClarify:
		return Unclear
	case isUnclear:
		return Clarify
	case IsReceipt(c, m):
		return Read
	case route.Takes(m.Reply):
		return Run
	case m.Unjudged:
		return Judge
	}
	return Inbox
}

// Counts returns the accept that counts from now on (AM-88), or "": our earlier accept, which a message of the peer
// confirmed; or the newest accept, which was not answered before. That is theirs, in the message of the peer that we answer, or
// ours, in the reply by which we answer. reply is empty if our answer leaves through the outbox: an accept in it counts
// when the peer has answered it.
func Counts(c conversations.Conversation, confirmed, theirs, reply wire.MessageID) wire.MessageID {
	if confirmed != "" {
		return confirmed
	}
	for _, d := range c.Deals() {
		switch a := d.Accept; {
		case a != nil && a.By == conversations.Theirs && a.Message == theirs:
			return theirs
		case a != nil && a.By == conversations.Ours && a.Message == reply:
			return reply
		}
	}
	return ""
}

// checkIntent implements line 14: the node accepts the intent, and the payload has the shape that the intent requires.
// known reports whether the specification defines the action.
func checkIntent(s State, in bridge.Inbound) (known bool, err error) {
	wrote := slices.Contains(s.Conv.Wrote, in.Intent) // our owner used it here: AM-30, AM-70
	isSupported := s.Supported || s.Route.Handles || in.Address != "" || wrote
	if !isSupported || !in.Intent.IsStandard() && !in.Intent.IsCustom() {
		return false, wire.ErrIntent
	}
	known, err = wire.CheckPayload(in.Intent, in.Payload)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return false, wire.ErrPayload.WithField(field)
	}
	if err == nil && s.Schemas != nil && !in.Intent.IsStandard() {
		if err := s.Schemas.Check(in.Intent, in.Payload); err != nil {
			return false, wire.ErrPayload.Because(err)
		}
	}
	return known, err
}

// waits implements line 15: why the message waits for the owner.
func waits(s State, in bridge.Inbound, v Verdict) (reasons []Reason) {
	switch {
	case v.Ask && in.Unproven != nil:
		reasons = append(reasons, ByKey)
	case v.Ask:
		reasons = append(reasons, BySender)
	}
	if s.Sealed && s.Route.Foreign {
		reasons = append(reasons, BySeal)
	}
	if in.Hold {
		reasons = append(reasons, ByNetwork)
	}
	isAdmitted := slices.Contains(s.Conv.Admitted, in.Intent) // the owner admitted this intent for the whole conversation (AM-34)
	if !isAdmitted && !hasMandate(s, in) && s.Policy.HoldIntent(in.Intent, in.Payload.GetStr("action"), s.Route.Handles, s.Conv.WroteFirst) {
		reasons = append(reasons, ByIntent)
	}
	return reasons
}

// hasMandate reports whether the rule that holds the message lets the agent make appointments with its sender: then the
// agent gets the message, and what it answers must keep to the mandate ([Leave]).
func hasMandate(s State, in bridge.Inbound) bool {
	r := s.Policy.Mandate(acl.In, in.Intent, in.Payload.GetStr("action"))
	return r != nil && slices.Contains(r.Unless.Peers, in.Principal)
}

// event returns the event that records the message. A message that closes the conversation or withdraws a held message
// never waits for the owner. If it would have to wait otherwise, Decide withholds it from the owner's agent.
func event(s State, in bridge.Inbound) conversations.Event {
	written := in.Time
	if written.IsZero() {
		written = s.Now
	}
	return conversations.Event{
		Kind: conversations.Received, At: s.Now, Intent: in.Intent, Payload: in.Payload, Principal: in.Principal, Address: in.Address,
		Idle: s.Silence, Sealed: s.Sealed, Recipient: s.Recipient, Deadline: in.Deadline, Purge: in.Purge,
		ID: in.MessageID, Answers: conversations.AnswersIn(in.Payload), Written: written, Name: in.Name,
		Unjudged: s.Guarded && HasText(in.Payload),
	}
}

// IsReceipt reports whether a message of the peer only confirms a message of ours: it is a receipt that answers one, or
// an accept that adds nothing to our accept. Such a message is read at once, and neither handed to a hook nor answered
// (AM-91). c is the conversation with the message.
func IsReceipt(c conversations.Conversation, m Answered) bool {
	if m.Payload.GetStr("action") == "accept" {
		return m.Confirms && c.Deal(m.Intent).IsPlainAccept(m.ID) &&
			m.Payload.Without("action", "metadata", "selected_time", "event", "terms", "location", "duration").Len() == 0
	}
	isAnswer := m.Reply || conversations.AnswersIn(m.Payload) != "" || c.WroteFirst
	return isAnswer && wire.IsReceipt(m.Intent, m.Payload)
}

// CancelledEvent returns the UID of the agreed event that a message of one side cancels, or "". The UID is computed from the peer
// and the conversation, so no peer can cancel the events of others. The parameter before is the conversation without the
// message.
func CancelledEvent(e conversations.Event, before conversations.Conversation, by conversations.Side) string {
	switch e.Payload.GetStr("action") {
	case "cancel", "decline":
		if e.Intent != wire.Schedule {
			return ""
		}
		if elsewhere := conversations.AgreedIn(e.Payload); elsewhere != "" {
			return calendar.UID(before.Key.Peer, elsewhere)
		}
	case wire.ActionClose:
	default:
		return ""
	}
	if !before.Schedule.TakesBack(e, by) {
		return "" // it declines a proposal, or closes a conversation that has not failed
	}
	return calendar.UID(before.Key.Peer, before.Key.ID)
}
