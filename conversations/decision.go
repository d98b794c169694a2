package conversations

import (
	"fmt"
	"time"
)

// Decision says who on our side decided about a proposal, or the accept of one.
type Decision struct {
	DecidedBy Decider   `json:"decided_by,omitempty"`  // "" if nobody on our side did
	Rule      string    `json:"rule,omitempty"`        // the name of the rule that let the agent, or ""
	Offered   time.Time `json:"proposed_at,omitzero"`  // when the proposal came or left
	Turns     int       `json:"agent_turns,omitempty"` // that the agent had taken since the owner's last act; only of an agreement
}

// Decider is the owner or the owner's agent.
type Decider string

const (
	ByOwner Decider = "owner"
	ByAgent Decider = "agent"
)

// Decided says for the owner who decided about an agreement: "by your agent under the rule short meetings, 4 turns, 11s".
func (a Agreement) Decided() string {
	switch a.DecidedBy {
	case ByOwner:
		return "by you"
	case ByAgent:
		text := "by your agent"
		if a.Rule != "" {
			text += " under the rule " + a.Rule
		}
		if a.Turns == 1 {
			text += ", 1 turn"
		} else {
			text += fmt.Sprintf(", %d turns", a.Turns)
		}
		return text + ", " + a.At.Sub(a.Offered).Round(time.Second).String()
	}
	return ""
}
