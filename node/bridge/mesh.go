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

// Mesh is the node as every bridge sees it: a bridge receives, sends, searches and asks through it. It is safe for
// concurrent use.
type Mesh interface {
	Receiver

	// ID returns the node's agent id.
	ID() wire.AgentID
	// Receive takes a signed AgentMesh message that arrived over a foreign network and runs the whole receive path on
	// it. The error is a *[wire.Error].
	Receive(ctx context.Context, message []byte) (Outcome, error)
	// Send sends a message under the owner's rules for what leaves.
	Send(ctx context.Context, out Outgoing) (owner.Sent, error)
	// Find searches the directories that the node joined and returns at most q.Limit cards. The content of cards is
	// untrusted. If all directories fail, the error is that of the last one.
	Find(ctx context.Context, q client.Query) ([]wire.Card, error)
	// Follow calls seen for each event of the node until ctx ends. A slow caller loses events; an event with Missing
	// set reports the loss.
	Follow(ctx context.Context, seen func(Event))
	// Decide carries out the owner's decision about the message that waits in a conversation. The error is a
	// *[wire.Error] if no message waits there any more.
	Decide(ctx context.Context, conv store.ConvKey, approve bool) error
	// Standing returns what the owner's rules say about a principal.
	Standing(ctx context.Context, principal string, now time.Time) (acl.Standing, error)
	// Asks returns the store of questions to the owner. A bridge adds questions of its own kinds.
	Asks() *acl.Asks
	// PutTask makes t the only open task about its matter (t.About) in the owner's inbox, in one unit with changes. It
	// keeps an open task with the same turn and ends every other task about the matter. It fails with
	// store.ErrConflict if a record in changes was changed meanwhile; the caller may retry with the same arguments.
	PutTask(ctx context.Context, t Task, changes []store.Change) error
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

// Event is a change in the node.
type Event struct {
	Item    *ItemState    // a message of a foreign peer has a new state in the inbox
	Conv    store.ConvKey // a conversation got a new entry
	Missing bool          // events were lost: the reader must read everything again
}

// ItemState is the state of a message in the owner's inbox.
type ItemState struct {
	Address      string
	MessageID    wire.MessageID
	Conversation wire.ConversationID
	Intent       wire.Intent
	State        owner.ItemState
}

// Task is the next thing to do about a matter, such as a thread. The owner or an agent of the owner does it.
type Task struct {
	// About names the matter: bridge kind, "/" and the bridge's own id, as in "mess/2026-11-22-001". Its page has this
	// path.
	About string
	// Turn identifies what is to be done, as in "answer/3"; the bridge chooses it. A different task has a different
	// Turn. It is empty if nothing is to be done.
	Turn  string
	Taken bool // somebody here agreed to do it
	Done  bool // with an empty Turn: the owner already did it in another way, such as on the page

	// The peer that asks, and its request, if Turn is not empty. Name and Payload are the peer's text, as in a
	// message.
	Peer    wire.AgentID // of the mesh, or a pseudonym that no peer of a link has
	Name    string
	Proof   string // VerifiedBearer and so on
	Intent  wire.Intent
	Payload wire.Value
}
