package acl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Mode says who may write unasked (AM-29).
type Mode string

const (
	Open      Mode = "open"      // everybody
	Allowlist Mode = "allowlist" // who is on the list; stored approvals do not count
	Approval  Mode = "approval"  // who is on the list or was approved; the owner is asked about everybody else
)

// Standing is what is known about a principal. The zero value is a stranger.
type Standing string

const (
	Unknown  Standing = ""
	Allowed  Standing = "allowed"  // on the allowlist, of the config or of the owner's rules
	Approved Standing = "approved" // approved when it first wrote
	Rejected Standing = "rejected" // rejected when it first wrote, until the owner lifts it (AM-35)
	Blocked  Standing = "blocked"
)

// Known says whether limits treat the principal as known to the owner (AM-42).
func (s Standing) Known() bool { return s == Allowed || s == Approved }

// Verdict is the outcome of line 11 for a sender that is not refused.
type Verdict uint8

const (
	Admitted   Verdict = iota
	HoldSender         // its message waits for the owner, at line 15 (AM-31)
)

// Policy is what the owner configures about access. The zero value asks the owner about every stranger, and about
// the intents that are sensitive by default.
type Policy struct {
	Mode  Mode     `yaml:"mode"`  // empty means approval
	Allow []string `yaml:"allow"` // principals
	Block []string `yaml:"block"` // principals; beats Allow and every rule
	// Hold says which intents wait for the owner; the first rule that matches decides. Without one the
	// defaults of AM-31 hold.
	Hold []HoldRule `yaml:"hold"`
}

// HoldRule says whether messages of some intents wait for the owner.
type HoldRule struct {
	Intent    string    `yaml:"intent"`    // pattern, see [Match]
	Actions   []string  `yaml:"actions"`   // empty means every action
	Direction Direction `yaml:"direction"` // empty means both
	Hold      Hold      `yaml:"hold"`
}

// Direction is the way of a message.
type Direction string

const (
	In  Direction = "in"  // to us
	Out Direction = "out" // from us: of the owner's commands, hooks and bridges
)

// Hold is the answer of a [HoldRule].
type Hold string

const (
	Always Hold = "always"
	Never  Hold = "never"
)

// Validate says what is wrong with a policy that came from a configuration file.
func (p Policy) Validate() error {
	if !slices.Contains([]Mode{"", Open, Allowlist, Approval}, p.Mode) {
		return fmt.Errorf("access mode %q: must be open, allowlist or approval", p.Mode)
	}
	for _, r := range p.Hold {
		if err := ValidPattern(r.Intent); err != nil {
			return err
		}
		if r.Hold != Always && r.Hold != Never {
			return fmt.Errorf("hold rule for %q: hold must be always or never", r.Intent)
		}
		if !slices.Contains([]Direction{"", In, Out}, r.Direction) {
			return fmt.Errorf("hold rule for %q: direction must be in or out", r.Intent)
		}
	}
	return nil
}

// Admit is line 11 of the receive table. wroteFirst says that our owner wrote to this peer in this very
// conversation: then it may answer in every mode (AM-30). The error is wire.ErrNotAllowed, the same for blocked
// and for not listed (AM-25), or wire.ErrOwnerRejected.
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

// HoldIntent says whether a message to us waits for the owner because of what it asks (AM-31). handled says that the
// owner gave this custom intent a rule of its own, such as a hook; answers that our owner wrote first in the
// conversation. A close is never held (AM-39).
func (p Policy) HoldIntent(intent wire.Intent, action string, handled, answers bool) bool {
	return p.holds(In, intent, action, handled, answers)
}

// HoldOutgoing is HoldIntent for a message of ours: what commits the owner when it comes in commits the owner when it
// goes out. handled says that a hook of the owner's has this custom intent.
func (p Policy) HoldOutgoing(intent wire.Intent, action string, handled bool) bool {
	return p.holds(Out, intent, action, handled, true)
}

func (p Policy) holds(way Direction, intent wire.Intent, action string, handled, answers bool) bool {
	if action == wire.ActionClose {
		return false
	}
	for _, r := range p.Hold {
		if r.Direction != "" && r.Direction != way {
			continue
		}
		if Match(r.Intent, string(intent)) && (len(r.Actions) == 0 || slices.Contains(r.Actions, action)) {
			return r.Hold == Always
		}
	}
	if answers && (action == wire.ActionPending || action == wire.ActionReceived) {
		return false // says where a message stands
	}
	switch {
	case intent == wire.Negotiate:
		return action == "propose" || action == "counter" || action == "accept"
	case intent == wire.Handoff:
		return true
	}
	return !intent.Standard() && !handled
}

// Match says whether s fits the pattern: an intent, the beginning of intents followed by "*" ("com.example.*"), or
// "*" alone. It looks at each byte at most once.
func Match(pattern, s string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(s, prefix)
	}
	return s == pattern
}

// ValidPattern says what is wrong with a pattern for [Match].
func ValidPattern(pattern string) error {
	prefix, star := strings.CutSuffix(pattern, "*")
	if wire.Intent(prefix).Valid() || star && prefix == "" {
		return nil
	}
	return fmt.Errorf("intent pattern %q: must be an intent, its beginning followed by *, or *", pattern)
}
