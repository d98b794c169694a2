package rules

import (
	"slices"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
)

// Appointment is what a message of ours proposes or accepts under a hold rule with a mandate.
type Appointment struct {
	Peer   string
	Action string
	Terms  conversations.Terms
	Theirs *conversations.Proposal // the standing proposal of the peer, or nil
	Before *conversations.Proposal // our proposal that it replaced, or nil
	Free   bool                    // every time in Terms is free
	Spent  bool                    // the peer has had all its conversations of the day
}

// IsWithin reports whether the owner's agent may make the appointment alone.
func (a Appointment) IsWithin(m acl.Mandate) bool {
	length, ok := calendar.ParseLength(a.Terms.Duration)
	switch {
	case !slices.Contains(m.Peers, a.Peer), !slices.Contains([]string{"propose", "counter", "accept"}, a.Action),
		!ok || length > m.Length,
		m.Calendar != "" && !a.Free,
		m.Place != "" && !a.isOurPlace(m.Places),
		a.Spent:
		return false
	}
	return true
}

// isOurPlace reports whether our side named the place, or the owner has it in a list, or there is none.
func (a Appointment) isOurPlace(list []string) bool {
	place := a.Terms.Location
	return place == "" || slices.Contains(list, place) || a.Theirs == nil || a.Theirs.Location != place ||
		a.Before != nil && a.Before.Location == place
}
