package bridge

import (
	"context"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Service is what a process runs of a [Kind]: the links, and what it hosts for others. Making one starts nothing.
//
// A service may also be a [Handler], an [Observer], a [FailureObserver], an [Answerer], a [Carrier] and a [Paged].
type Service interface {
	Transport // to the peers behind its links

	// Mount adds what foreign clients call.
	Mount(e *echo.Echo)
	// Operations returns the bridge's part of the owner API, below /<kind>.
	Operations() []owner.Operation
	// Run works until ctx ends and returns when everything that it started has stopped.
	Run(ctx context.Context) error
	// Links returns how the links stand, in the order of the configuration.
	Links() []LinkStatus
	// Test connects a link as if for the first time and returns what is wrong with it.
	Test(ctx context.Context, link string) error
}

// Paged is a [Service] with a part of its own on the owner's page.
type Paged interface {
	// MountPage adds an entry to the navigation and the routes below it.
	MountPage(pages *httpapi.Pages)
}

// Handler takes the messages whose intents match [Kind].Intents, as a hook would.
type Handler interface {
	// Handle is called at least once for a message. An error leaves the message with the owner.
	Handle(ctx context.Context, c Call) (Reply, error)
}

// Call is a message for a [Handler]. Its sender is established, and the owner's rules let it in.
type Call struct {
	From     wire.AgentID
	Address  string // of a foreign peer
	Conv     wire.ConversationID
	ID       wire.MessageID
	Intent   wire.Intent
	Payload  wire.Value
	Approved bool // the owner was asked about it
}

// Reply is what a [Handler] says to a message. The zero value is a receipt.
type Reply struct {
	Payload *wire.Value
	Hold    string      // why the owner must decide, for the owner alone
	Refusal *wire.Error // for the sender
}

// Observer follows the messages of peers that no handler gets to see: a close, and the notice that the peer's owner is
// asked first.
type Observer interface {
	// Observe returns what changes in the step that takes the message in.
	Observe(in Inbound) []store.Change
	// Committed is told of the changes of each unit that is committed in this process. It must not block.
	Committed(changes []store.Change)
}

// FailureObserver follows the messages of the node that will never be delivered.
type FailureObserver interface {
	// Undelivered returns what such a message was about, in the words of the owner's notice, and what changes in the step
	// that gives it up. quiet reports that the owner need not be told.
	Undelivered(ctx context.Context, u Undelivered) (about string, quiet bool, changes []store.Change)
}

// Answerer takes what the owner says to the tasks of its kind, see [Mesh].Lay.
type Answerer interface {
	// Answer carries it out, in one unit with the changes that a.Ends returns, and returns what the owner is shown of the
	// result. It refuses with a *wire.Error if a.Turn is over.
	Answer(ctx context.Context, a Answer) (wire.Value, error)
}

// Answer is what the owner, or the owner's agent, says to a task: the payload of a reply.
type Answer struct {
	About, Turn string
	Payload     wire.Value
	// Ends returns what changes with the task: over reports that this ends its turn, else it counts as taken. The unit
	// fails with store.ErrConflict if somebody else answered first.
	Ends func(over bool) []store.Change
}

// Carrier takes signed messages to agents of the mesh by another way than their endpoints.
type Carrier interface {
	// Carry returns what the agent answered, and false if it knows no way to this agent. An error that says whether to try
	// again is a *client.SendError. The node verifies the answer like that of an endpoint, so a carrier need not be trusted.
	Carry(ctx context.Context, to wire.AgentID, message []byte) (answer []byte, carried bool, err error)
}
