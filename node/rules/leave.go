package rules

import (
	"net/http"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Departure is what the rules know of a message of ours before it leaves (AM-50).
type Departure struct {
	Intents []wire.Intent // its own, and that of the message which it answers, if any
	Handled []bool        // for each of Intents: a hook or a bridge of ours handles it
	Payload wire.Value

	Standing   acl.Standing // of the recipient
	Mode       acl.Mode     // for recipients
	Listed     bool         // the owner's list of recipients has it
	Remembered acl.Standing // what the owner decided about the recipient before; read only if [Departure.Asks]
	Unproven   bool         // nothing proves that the recipient's key belongs to its id (AM-2)

	Spent Bound // at which the owner's agent, which wrote it, must not go on alone (AM-93); "" for what others wrote

	Approve []string   // patterns of intents that wait for the owner
	Policy  acl.Policy // with the hold rules of the bridges

	Appointment *Appointment // nil: no rule with a mandate is about the message
}

// Asks reports whether the owner decides about each recipient that is not listed.
func (d Departure) Asks() bool { return d.Mode == acl.Approval && !d.Listed }

// Permission is the decision about a message of ours that may leave.
type Permission struct {
	NeedsOwner  bool          // the owner decides first
	Rule        string        // the rule that decided
	Reason      string        // more for the owner, or ""
	Bound       Bound         // the bound on turns that decided, or ""
	AllowAlways bool          // the question is about the recipient, whom the owner may approve for good
	Mandate     *acl.HoldRule // under whose mandate the message leaves, or nil
}

// ErrBlocked means that the owner blocked the recipient. ErrOutbound means that the outbound allowlist does not name it.
var (
	ErrBlocked  = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "you blocked this agent"}
	ErrOutbound = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "the outbound allowlist does not name this agent"}
)

// Leave decides about a message that somebody on our side wants to send: it may not leave, it waits for the owner, or it
// leaves. Of its Intents, the stricter wins (AM-89).
func Leave(d Departure) (Permission, error) {
	isBareClose := isClose(d.Payload) && d.Payload.Len() == 2 // only action and status: nothing to decide
	switch {
	case d.Standing == acl.Blocked:
		return Permission{}, ErrBlocked
	case d.Mode == acl.Allowlist && !d.Listed:
		return Permission{}, ErrOutbound
	case isBareClose:
		return Permission{Rule: "close"}, nil
	case d.Unproven:
		return Permission{NeedsOwner: true, Rule: owner.RuleUnproven}, nil
	}
	var mandate *acl.HoldRule
	for i, intent := range d.Intents {
		for _, pattern := range d.Approve {
			if acl.Match(pattern, string(intent)) {
				return Permission{NeedsOwner: true, Rule: "outgoing.approve=" + pattern}, nil
			}
		}
		if !d.Policy.HoldOutgoing(intent, d.Payload.GetStr("action"), d.Handled[i]) {
			continue
		}
		r := d.Policy.Mandate(acl.Out, intent, d.Payload.GetStr("action"))
		if r == nil || d.Appointment == nil || !d.Appointment.IsWithin(r.Unless) {
			return Permission{NeedsOwner: true, Rule: "hold=" + string(intent)}, nil
		}
		mandate = r
	}
	if d.Spent != "" {
		return Permission{NeedsOwner: true, Rule: d.Spent.Rule(), Reason: "your agent has no turn left without you", Bound: d.Spent}, nil
	}
	switch {
	case d.Listed:
		return Permission{Rule: "outgoing.allow", Mandate: mandate}, nil
	case d.Mode == acl.Open:
		return Permission{Rule: "outgoing.mode=open", Mandate: mandate}, nil
	case d.Remembered == acl.Approved:
		return Permission{Rule: "recipient=approved", Mandate: mandate}, nil
	}
	return Permission{NeedsOwner: true, Rule: "outgoing.mode=" + string(d.Mode), AllowAlways: true}, nil
}
