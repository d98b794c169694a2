package config

import (
	"fmt"
	"strconv"

	"github.com/agentmesh/agentmesh/node/rules"
)

// Autonomy bounds what your agent does without you (AM-92). A turn is one run of a hook or of the calendar for one message, or
// a message that your agent sends by itself. At a bound you are asked, once. A number, 0 for never alone, or unlimited.
type Autonomy struct {
	// Turns in a conversation since you last wrote or decided there.
	Conversation Turns `key:"conversation"`
	// The same in a conversation in which no hook ran, so that your agent writes over MCP or the agent's door only.
	Door Turns `key:"door"`
	// Turns a day with one peer.
	Peer Turns `key:"peer"`
	// Turns a day with all senders together that you do not know. One network gets at most half of them.
	Strangers Turns `key:"strangers"`
	// Turns a day with one A2A caller that has a token. The other bounds do not count them.
	Token Turns `key:"token"`
	// Turns a day in all.
	Total Turns `key:"total"`
}

// Turns is a number of turns, or -1 for any number.
type Turns int

// maxTurns is the largest number of records that the store counts.
const maxTurns = 10_000

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Turns) UnmarshalText(text []byte) error {
	if string(text) == "unlimited" {
		*t = -1
		return nil
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 0 || n > maxTurns {
		return fmt.Errorf("%q is neither a number of turns from 0 to %d nor unlimited", text, maxTurns)
	}
	*t = Turns(n)
	return nil
}

func (t Turns) String() string {
	if t < 0 {
		return "unlimited"
	}
	return strconv.Itoa(int(t))
}

// Bounds returns the bounds for the node.
func (a Autonomy) Bounds() *rules.Autonomy {
	return &rules.Autonomy{Conversation: int(a.Conversation), Door: int(a.Door), Peer: int(a.Peer), Strangers: int(a.Strangers), Token: int(a.Token), Total: int(a.Total)}
}
