package acl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Mode is the rule about which strangers may write to the node (AM-29).
type Mode string

const (
	Open      Mode = "open"      // everybody
	Allowlist Mode = "allowlist" // agents on the list; stored approvals do not count
	Approval  Mode = "approval"  // agents on the list or approved; the owner is asked about all others
)

// Standing is what the rules say about a principal: a peer's agent id, or the name of a foreign peer.
type Standing string

const (
	Unknown  Standing = ""
	Allowed  Standing = "allowed"  // on the allowlist of the configuration, or allowed by a rule of the owner
	Approved Standing = "approved" // approved by the owner when the principal first wrote
	Rejected Standing = "rejected" // rejected by the owner when the principal first wrote; stays until the owner changes it (AM-35)
	Blocked  Standing = "blocked"
)

// Known reports whether limits treat the principal as a known peer (AM-42).
func (s Standing) Known() bool { return s == Allowed || s == Approved }

// Verdict is what [Policy.Admit] decides about a message that it does not refuse.
type Verdict uint8

const (
	Admitted   Verdict = iota
	HoldSender         // the message waits for the owner (AM-31)
)

// Policy is the access configuration of the owner. The zero value asks the owner about every stranger, and about the
// intents that are sensitive by default.
type Policy struct {
	Mode  Mode     // empty means approval
	Allow []string // principals
	Block []string // principals; takes precedence over Allow and every rule
	// Hold are the rules about intents that wait for the owner. The first rule that matches decides; if none matches,
	// the defaults of AM-31 apply.
	Hold []HoldRule
}

// HoldRule decides whether messages with certain intents wait for the owner.
type HoldRule struct {
	Intent    string    // pattern, see [Match]
	Actions   []string  // empty means every action
	Direction Direction // empty means both
	Hold      Hold
	Name      string  // for the owner
	Unless    Mandate // what need not wait nevertheless
}

// Direction is the direction of a message.
type Direction string

const (
	In  Direction = "in"  // to us
	Out Direction = "out" // from us: from the owner's commands, hooks and bridges
)

// Hold is the answer of a [HoldRule].
type Hold string

const (
	Always Hold = "always"
	Never  Hold = "never"
)

// Admit decides whether a sender may write to the node, as line 11 of the receive table in docs/protocol.md. If our
// owner wrote first in the conversation, the peer may answer in every mode (AM-30). The error is wire.ErrOwnerRejected,
// or wire.ErrNotAllowed, which does not reveal whether the peer is blocked or only not on the list (AM-25).
func (p Policy) Admit(s Standing, wroteFirst bool) (Verdict, error) {
	switch {
	case s == Blocked:
		return 0, wire.ErrNotAllowed
	case wroteFirst || s == Allowed:
		return Admitted, nil
	case p.Mode == Allowlist:
		return 0, wire.ErrNotAllowed
	case s == Rejected:
		return 0, wire.ErrOwnerRejected
	case s == Approved || p.Mode == Open:
		return Admitted, nil
	}
	return HoldSender, nil
}

// HoldIntent reports whether a message to us waits for the owner because of its intent (AM-31). handled reports whether
// a hook or a bridge handles this custom intent. wroteFirst reports whether our owner wrote first in the conversation.
// A close is never held (AM-39).
func (p Policy) HoldIntent(intent wire.Intent, action string, handled, wroteFirst bool) bool {
	return p.mustHold(In, intent, action, handled, wroteFirst)
}

// HoldOutgoing is HoldIntent for a message of ours.
func (p Policy) HoldOutgoing(intent wire.Intent, action string, handled bool) bool {
	return p.mustHold(Out, intent, action, handled, true)
}

// rule returns the rule that decides about a message, or nil.
func (p Policy) rule(direction Direction, intent wire.Intent, action string) *HoldRule {
	for i, r := range p.Hold {
		if r.Direction != "" && r.Direction != direction {
			continue
		}
		if Match(r.Intent, string(intent)) && (len(r.Actions) == 0 || slices.Contains(r.Actions, action)) {
			return &p.Hold[i]
		}
	}
	return nil
}

// mustHold decides for both directions. If maySendStatus is set, a message that only reports the state of another
// message need not wait.
func (p Policy) mustHold(direction Direction, intent wire.Intent, action string, handled, maySendStatus bool) bool {
	if action == wire.ActionClose {
		return false
	}
	if r := p.rule(direction, intent, action); r != nil {
		return r.Hold == Always
	}
	if maySendStatus && (action == wire.ActionPending || action == wire.ActionReceived) {
		return false
	}
	switch {
	case intent == wire.Negotiate && direction == Out: // an action without a meaning there may be read as an accept (AM-89)
		return action != "reject" && action != "withdraw"
	case intent == wire.Negotiate:
		return action == "propose" || action == "counter" || action == "accept"
	case intent == wire.Handoff:
		return true
	}
	return !intent.IsStandard() && !handled
}

// Match reports whether s matches the pattern: an intent, a prefix of intents followed by "*" ("com.example.*"), or "*"
// alone.
func Match(pattern, s string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(s, prefix)
	}
	return s == pattern
}

// ValidPattern returns an error unless pattern is valid for [Match].
func ValidPattern(pattern string) error {
	prefix, star := strings.CutSuffix(pattern, "*")
	if wire.Intent(prefix).Valid() || star && prefix == "" {
		return nil
	}
	return fmt.Errorf("intent pattern %q: must be an intent, the beginning of one followed by *, or * alone", pattern)
}
