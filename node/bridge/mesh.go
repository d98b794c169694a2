package bridge

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Mesh is the node as every bridge sees it: what a bridge receives, sends, finds and asks goes through it. It is safe for
// concurrent use.
type Mesh interface {
	Receiver

	// ID returns the node's agent id.
	ID() wire.AgentID
	// Receive takes a signed AgentMesh message, which a foreign network carried, through the whole receive path. The error
	// is a *[wire.Error].
	Receive(ctx context.Context, message []byte) (Outcome, error)
	// Send sends a message under the owner's rules for what leaves.
	Send(ctx context.Context, out Outgoing) (owner.Sent, error)
	// Find searches the directories that the node joined and returns at most q.Limit cards. What cards say is untrusted.
	// The error is that of the last directory if all of them failed.
	Find(ctx context.Context, q client.Query) ([]wire.Card, error)
	// Follow calls seen for what happens in the node until ctx ends. A caller that is slow misses events and is told so.
	Follow(ctx context.Context, seen func(Event))
	// Decide carries out the owner's decision about the message that waits in a conversation. The error is a *[wire.Error]
	// if no message waits there any more.
	Decide(ctx context.Context, conv store.ConvKey, approve bool) error
	// Standing returns what the owner thinks of a principal.
	Standing(ctx context.Context, principal string, now time.Time) (acl.Standing, error)
	// Asks returns the questions to the owner, to which a bridge adds kinds of its own.
	Asks() *acl.Asks
	// Lay keeps t in the owner's inbox as the one thing to be done about its matter, in one unit with changes. It keeps
	// what lies there for the same turn and ends everything else about the matter. It fails with store.ErrConflict if a
	// record among changes was changed meanwhile, and may be called again with the same.
	Lay(ctx context.Context, t Task, changes []store.Change) error
}

// Outgoing is a message that a bridge sends into the mesh or to a foreign peer.
type Outgoing struct {
	To       wire.AgentID
	Address  string              // of a foreign peer; To is its pseudonym
	Conv     wire.ConversationID // empty opens one
	Intent   wire.Intent
	Payload  wire.Value
	Records  []store.Change // change in the unit that stores the message, unless the owner is asked first
	Deadline time.Time      // of the conversation that it opens; zero: silence ends it
	ByOwner  bool           // the owner wrote the message, and the bridge passes it on
	Wait     time.Duration  // how long to wait for the answer
}

// Event is something that happened in the node.
type Event struct {
	Item    *ItemState    // a message of a foreign peer has another state in the inbox
	Conv    store.ConvKey // a conversation with more in it than before
	Missing bool          // events were lost: read everything again
}

// ItemState is the state of a message in the owner's inbox.
type ItemState struct {
	Address      string
	MessageID    wire.MessageID
	Conversation wire.ConversationID
	Intent       wire.Intent
	State        owner.ItemState
}

// Task is what can be done about a matter now.
type Task struct {
	About string // names the matter: the bridge's kind, "/" and its own name for it, "mess/2026-11-22-001"; its page has this path
	Turn  string // names what is to be done, in the bridge's words, and is another whenever that is something else; "": nothing
	Taken bool   // somebody here said that it will be done
	Done  bool   // with no Turn: the owner did what was to be done, through another door

	// Who asks, and what, if there is a Turn. Name and Payload are their text, as in a message.
	Peer    wire.AgentID // of the mesh, or a pseudonym that no peer of a link has
	Name    string
	Proof   string // VerifiedBearer and so on
	Intent  wire.Intent
	Payload wire.Value
}
