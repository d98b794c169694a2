package bridge

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Mesh is the node as its bridges see it. It is safe for concurrent use.
type Mesh interface {
	Receiver

	// ID returns the node's agent id.
	ID() wire.AgentID
	// Identity returns the node's card and the key that signs for it. Both change when the owner rotates the key.
	Identity() (card wire.Card, key *signing.PrivateKey)
	// Receive takes a signed AgentMesh message that arrived over a foreign network and runs the whole receive path on
	// it. The error is a *[wire.Error].
	Receive(ctx context.Context, message []byte) (Outcome, error)
	// Send sends a message if the owner's rules for outgoing messages allow it. If the rules demand an approval, the
	// node asks the owner first.
	Send(ctx context.Context, out Outgoing) (owner.Sent, error)
	// Find searches the directories that the node joined and returns at most q.Limit cards. The content of cards is
	// untrusted. If no directory returns a card, the error is that of the last directory that failed.
	Find(ctx context.Context, q client.Query) ([]wire.Card, error)
	// Reachable tells the node that a peer can be reached again. An address without a peer stands for the link and every
	// peer behind it. The node then delivers at once the messages that wait for the peer; see [client.SendError].
	Reachable(a Address)
	// Follow calls handle for each event of the node until ctx ends. The first event has Missing set, because earlier ones
	// are not seen. If handle is slow, events are lost, and another event with Missing set reports the loss.
	Follow(ctx context.Context, handle func(Event))
	// Items returns the state of every message of a foreign peer in a conversation, oldest first.
	Items(ctx context.Context, conv store.ConvKey) ([]ItemState, error)
	// Decide carries out the owner's decision about the message that waits in a conversation. If no message waits
	// there, or the owner must decide about its sender first, the error is a *[wire.Error].
	Decide(ctx context.Context, conv store.ConvKey, approve bool) error
	// Standing returns what the owner's rules say about a principal, which is a peer or a whole link.
	Standing(ctx context.Context, principal string, now time.Time) (acl.Standing, error)
	// Asks returns the store of questions to the owner. A bridge adds questions of its own kinds.
	Asks() *acl.Asks
	// PutTask makes t the only open task about t.About in the owner's inbox, and commits changes with it. It keeps an
	// open task with the same Turn and ends every other task with the same About. If t.Turn is empty, it only ends tasks.
	// It fails with store.ErrConflict if a record in changes was changed meanwhile; the caller may retry with the same
	// arguments.
	PutTask(ctx context.Context, t Task, changes []store.Change) error
}

// Outgoing is a message that a bridge sends into the mesh or to a foreign peer.
type Outgoing struct {
	To      wire.AgentID
	Address string              // of a foreign peer, whose pseudonym is To; empty for an agent of the mesh
	Conv    wire.ConversationID // empty: the message opens a new conversation
	Intent  wire.Intent
	Payload wire.Value
	Records []store.Change // committed together with the message; ignored if the owner is asked first
}

// Event is a change in the node. Exactly one of its fields is set.
type Event struct {
	Item     *ItemState     // a message of a foreign peer that has a new state in the inbox
	Gone     *store.ConvKey // a conversation that was deleted; its peer may be one of the mesh
	Missing  bool           // events were not seen, so the reader must read everything
	Progress *Progress      // what a hook reports about a message of a foreign peer; it may be lost without a notice
}

// ItemState is the state of a message in the owner's inbox.
type ItemState struct {
	Address      string
	MessageID    wire.MessageID
	Conversation wire.ConversationID
	Intent       wire.Intent
	State        owner.ItemState
}

// Task is the next thing to do about a subject such as a thread. The owner or an agent of the owner does it.
type Task struct {
	// About names the subject: the kind of the bridge, "/" and the bridge's own id, as in "mess/2026-11-22-001". It is
	// also the path of the subject on the owner's page.
	About string
	// Turn identifies what is to be done about the subject, as in "answer/3". The bridge chooses it. Two tasks with the
	// same About have different Turns. Turn is empty if nothing is left to do.
	Turn  string
	Taken bool // the owner has already agreed to do the task
	Done  bool // with an empty Turn: the owner did the last task outside of the inbox, such as on the page

	// If Turn is not empty: the peer that asks, and its request. The peer wrote Name and Payload, so they are
	// untrusted.
	Peer    wire.AgentID // an agent of the mesh, or a pseudonym
	Name    string
	Proof   string // how Peer is verified, such as VerifiedBearer
	Intent  wire.Intent
	Payload wire.Value
}
