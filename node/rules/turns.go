package rules

import (
	"time"

	"github.com/agentmesh/agentmesh/conversations"
)

// Bound is a bound on the turns that the owner's agent takes without the owner (AM-92).
type Bound string

const (
	InConversation Bound = "conversation" // since the owner's last act in it
	WithPeer       Bound = "peer"         // a day
	WithStrangers  Bound = "strangers"    // a day, of all strangers together
	WithSource     Bound = "source"       // a day, of one source of strangers
	WithToken      Bound = "token"        // a day, with one A2A caller that has a token of the owner
	InAll          Bound = "total"        // a day, of all peers but those with a token
)

// Bounds are all bounds.
var Bounds = []Bound{InConversation, WithPeer, WithStrangers, WithSource, WithToken, InAll}

// Rule names the bound in a question to the owner.
func (b Bound) Rule() string { return "autonomy." + string(b) }

// Autonomy has the bounds. A turn is one run of a hook or of the calendar for one accepted message, or a message that
// the agent writes by itself. 0 means never alone, a negative number no bound.
type Autonomy struct {
	Conversation                  int // with at least one run
	Door                          int // in a conversation without a run
	Peer, Strangers, Token, Total int
}

// Setting is a bound as the configuration names it.
type Setting struct {
	Key  string
	Most int
}

// Settings returns all bounds.
func (a Autonomy) Settings() []Setting {
	return []Setting{{"conversation", a.Conversation}, {"door", a.Door}, {"peer", a.Peer}, {"strangers", a.Strangers}, {"token", a.Token}, {"total", a.Total}}
}

// DefaultAutonomy has the defaults of AM-92.
var DefaultAutonomy = Autonomy{Conversation: 12, Door: 100, Peer: 60, Strangers: 100, Token: 500, Total: 300}

// Most returns the largest number of turns that a bound other than that of a conversation allows. One source of strangers
// gets at most half of their turns.
func (a Autonomy) Most(b Bound) int {
	switch b {
	case WithPeer:
		return a.Peer
	case WithStrangers:
		return a.Strangers
	case WithSource:
		return a.Strangers - a.Strangers/2
	case WithToken:
		return a.Token
	}
	return a.Total
}

// Left returns the largest number of turns in a conversation without the owner, and how many of them are left. Both are
// negative if there is no bound. handed means that a hook is to run.
func (a Autonomy) Left(c conversations.Conversation, handed bool, now time.Time) (most, left int) {
	most = a.Door
	if handed || c.Handed {
		most = a.Conversation
	}
	if most < 0 || now.Before(c.TurnsFree) {
		return -1, -1
	}
	return most, max(0, most-c.Turns)
}

// Turns is what the rules know of the turns that are left.
type Turns struct {
	Autonomy
	Spent Bound // a bound other than that of the conversation that is used up, or ""
}

// spent returns the bound at which the agent must not go on alone, or "".
func (t Turns) spent(c conversations.Conversation, handed bool, now time.Time) Bound {
	if _, left := t.Left(c, handed, now); left == 0 {
		return InConversation
	}
	return t.Spent
}
