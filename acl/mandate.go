package acl

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Mandate says which appointments need not wait, although a [HoldRule] holds them (AM-31): the owner's agent may
// propose, counter and accept them alone. The zero value allows nothing.
type Mandate struct {
	Peers      []string      // agents; an approval is not enough
	Calendar   string        // "free": every time must be free in the owner's calendars
	Length     time.Duration // the longest appointment
	PerPeerDay int           // the largest number of conversations with one peer in 24 hours
	Place      string        // "ours": no place that only the peer named, except one of Places
	Places     []string
}

// IsOn reports whether the rule has a mandate.
func (m Mandate) IsOn() bool { return len(m.Peers) > 0 }

// Mandate returns the rule that decides about a message, if its mandate allows some of what it holds. Otherwise it
// returns nil.
func (p Policy) Mandate(direction Direction, intent wire.Intent, action string) *HoldRule {
	if r := p.rule(direction, intent, action); r != nil && r.Hold == Always && r.Unless.IsOn() {
		return r
	}
	return nil
}

// Words says what a rule with a mandate does.
func (r HoldRule) Words() string {
	m, terms := r.Unless, []string{fmt.Sprintf("of at most %d minutes", int(r.Unless.Length.Minutes()))}
	if m.Calendar != "" {
		terms = append(terms, "at free times")
	}
	if m.Place != "" {
		terms = append(terms, "at no place that only they named")
	}
	if len(m.Places) > 0 {
		terms = append(terms, "except "+strings.Join(m.Places, ", "))
	}
	return fmt.Sprintf("%s waits for you, but under the rule %q your agent makes appointments alone: with %s, %s, in at most %d conversations a day with each",
		r.Intent, r.Name, strings.Join(m.Peers, ", "), strings.Join(terms, ", "), m.PerPeerDay)
}

// CheckMandate returns what is wrong with the mandate of a rule, or "".
func (r HoldRule) CheckMandate() string {
	m := r.Unless
	switch {
	case !m.IsOn() && (m.Calendar+m.Place != "" || m.Length != 0 || m.PerPeerDay != 0 || len(m.Places) > 0):
		return "unless needs peers"
	case !m.IsOn():
		return ""
	case r.Intent != string(wire.Schedule) || r.Hold != Always:
		return "unless is only for mesh.schedule with hold: always"
	case r.Name == "":
		return "unless needs the name of the rule, which the audit log has for each use"
	case m.Length <= 0 || m.PerPeerDay <= 0:
		return "unless needs length and per_peer_day"
	case m.Calendar != "" && m.Calendar != "free", m.Place != "" && m.Place != "ours", m.Place == "" && len(m.Places) > 0:
		return "unless knows calendar: free, place: ours, and places with place: ours"
	case slices.ContainsFunc(m.Peers, func(id string) bool { return !wire.AgentID(id).Valid() }):
		return "unless.peers must be agent ids"
	}
	return ""
}
