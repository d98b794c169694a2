package bridge

import (
	"context"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Desk is where a bridge lays what the owner, or the owner's agent, can do about a matter of its protocol that is no
// message of the mesh: a request that somebody must take on, a question that came back. It is the inbox of the node.
type Desk interface {
	// Lay has the desk hold t as the one thing to be done about its matter, in one unit with changes. What lies there
	// for the same turn stays; anything else about the matter ends. It fails with store.ErrConflict where a record among
	// changes moved, and may be called again with the same.
	Lay(ctx context.Context, t Task, changes []store.Change) error
}

// Task is what can be done about a matter now.
type Task struct {
	About string // names the matter: the bridge's kind, "/" and its own name for it, "mess/2026-11-22-001"; its page has this path
	Turn  string // names what is to be done, in the bridge's words, and is another whenever that is something else; "": nothing
	Taken bool   // somebody here said that it will be done
	Done  bool   // with no Turn: the owner did what was to be done, through another door

	// Who asks, and what, where there is a Turn. Name and Payload are their text, as in a message.
	Peer    wire.AgentID // of the mesh, or a pseudonym that no peer of a link has
	Name    string
	Proof   string // VerifiedBearer and so on
	Intent  wire.Intent
	Payload wire.Value
}

// Answerer takes what the owner says to tasks of one bridge.
type Answerer interface {
	// Answer carries it out, in one unit with the changes that a.Ends returns, and returns what the owner is shown of the
	// result. It refuses with a *wire.Error where a.Turn is over.
	Answer(ctx context.Context, a Answer) (wire.Value, error)
}

// Answer is what the owner, or the owner's agent, says to a task: the payload of a reply.
type Answer struct {
	About, Turn string
	Payload     wire.Value
	// Ends returns what changes with the task: over says that its turn is over by this, else it counts as taken. The unit
	// fails with store.ErrConflict where somebody else answered first.
	Ends func(over bool) []store.Change
}
