package rules

import (
	"errors"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// This file has the decisions that follow the acceptance of a message: the owner lets a held message in or refuses it,
// the peer's answer comes on the connection of our message, a hook ends.

// Release decides about a held message that the owner lets in. The list of blocked peers and the access mode are checked
// again (AM-25, AM-34), but the owner's approval overrides an earlier rejection. s.Conv has the message.
func Release(s State, m Answered) Verdict {
	_, err := s.Policy.Admit(s.Standing, s.Conv.WroteFirst || s.CancelsEvent)
	switch {
	case err != nil && !errors.Is(err, wire.ErrOwnerRejected):
		return refuse(err)
	case s.Ended != nil:
		return refuse(s.Ended)
	}
	return Verdict{Do: Answerer(s.Conv, s.Route, m)}
}

// Choices returns what the owner may decide about a held message, the usual choice first. hold is that of its [Words],
// proof how its sender was verified. A sender without a proof is not let in, so its messages are approved one by one
// (AM-97).
func Choices(hold, proof string) []acl.Choice {
	switch {
	case hold == words[ByTurns].Hold: // as many turns again, any number for a day, or the end
		return []acl.Choice{acl.Approve, acl.ApproveConversation, acl.Reject}
	case !bridge.IsProof(proof):
		return []acl.Choice{acl.Approve, acl.Reject, acl.Block}
	case hold == words[BySender].Hold: // see acl.Ask.LetsIn
		return []acl.Choice{acl.Approve, acl.ApproveOnce, acl.ApproveConversation, acl.Reject, acl.Block}
	}
	return []acl.Choice{acl.Approve, acl.ApproveConversation, acl.Reject, acl.Block}
}

// Rejection returns what the owner decided about the sender by refusing its held message, or "" if nothing: only the
// first of the messages that wait for one decision stores a rule. The sender is rejected only if the question was about
// the sender and its key is proven, because an unproven id may belong to somebody else (AM-35).
func Rejection(isFirst, isBlock, isAboutSender, isProven bool) acl.Standing {
	switch {
	case !isFirst:
		return ""
	case isBlock:
		return acl.Blocked
	case isAboutSender && isProven:
		return acl.Rejected
	}
	return ""
}

// Reply is a verified reply of the peer on the connection of our message.
type Reply struct {
	Answered
	To       string // the action of our message
	Receipt  string // the action of replies that only confirm an arrival in the network of the route, or ""
	Open     bool   // the conversation is open after the reply
	Turns    Turns
	Readable bool // the reply is not sealed or could be opened, and has the shape of its intent
}

// Hear decides about a reply: Drop, Read, Run, Judge, Clarify, Unclear, Inbox or, at a bound on turns, Hold. c is
// the conversation with the reply.
func Hear(c conversations.Conversation, route Route, r Reply, now time.Time) (Action, Bound) {
	action := r.Payload.GetStr("action")
	isWaiting := action == wire.ActionReceived || action == wire.ActionPending
	switch {
	case r.To == wire.ActionClose, // an echo
		isWaiting && (wire.IsReceipt(r.Intent, r.Payload) || !r.Intent.IsStandard()),
		!isWaiting && action != "" && action == r.Receipt:
		return Drop, ""
	case IsReceipt(c, r.Answered):
		return Read, ""
	case !r.Open, !r.Readable, action == wire.ActionClose:
		return Inbox, ""
	}
	r.Confirms = false // what adds something to our accept is more than its confirmation
	do := Answerer(c, route, r.Answered)
	if do == Run || do == Clarify {
		if b := route.bound(r.Turns, c, now); b != "" {
			return Hold, b
		}
	}
	return do, ""
}

// MayLeaveOut reports whether an answer of a hook with this action to a message with the action to is left out if both were
// sent before (AM-94). What decides something always leaves, and so does the answer to an accept, which the receipt in its
// place would confirm.
func MayLeaveOut(action, to string) bool {
	return to != "accept" && !slices.Contains([]string{"accept", "decline", "reject", "withdraw", "cancel"}, action)
}

// Outcome is what came of the run of a hook.
type Outcome struct {
	Deleted  bool // the owner deleted the conversation meanwhile
	Ended    bool // the conversation ended meanwhile
	Settled  bool // the message is an accept whose agreement stands, or now does, so that it needs no answer
	Reply    bool // the message is a reply, whose sender expects no answer
	Confirms bool // the message confirms our accept

	Failed  bool // the hook failed
	Retry   bool // it could not be reached, and the node may try again
	Later   bool // the hook answers by itself, later
	Asks    bool // the hook wants the owner to decide about the message
	Refuses bool // the hook refuses the message
	Silent  bool // the hook has no answer
}

// Settle decides what happens to the message: Deleted, Late, Inbox, Retry, Fail, Await, Hold, Refuse, or Answer (for a
// silent hook, with a receipt). counts means that an accept counts now, although no answer is sent (see [Counts]).
func Settle(o Outcome) (do Action, counts bool) {
	switch {
	case o.Deleted:
		return Deleted, false
	case o.Reply && !o.Failed && !o.Later && o.Silent: // two nodes that confirm each other's replies would never stop
		return Inbox, true
	case o.Ended && o.Settled:
		return Inbox, false
	case o.Ended:
		return Late, false
	case o.Failed && o.Retry:
		return Retry, false
	case o.Failed && o.Settled:
		return Inbox, o.Confirms
	case o.Failed:
		return Fail, o.Confirms
	case o.Later:
		return Await, false
	case o.Asks:
		return Hold, false
	case o.Refuses:
		return Refuse, false
	}
	return Answer, false
}
