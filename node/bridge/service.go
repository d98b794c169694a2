package bridge

import (
	"context"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Service is what a process runs for a [Kind]: the links, and what the node hosts for others. Nothing runs before Run.
//
// A service may also be a [Handler], an [Observer], a [FailureObserver], an [Answerer], a [Carrier] and a
// [PageMounter].
type Service interface {
	Transport // to the peers behind the links

	// Mount adds the routes that foreign clients call.
	Mount(e *echo.Echo)
	// Operations returns the bridge's part of the owner API, under /<kind>.
	Operations() []owner.Operation
	// Run works until ctx ends and returns when everything that it started has stopped.
	Run(ctx context.Context) error
	// Links returns the status of each link, in the order of the configuration.
	Links() []LinkStatus
	// PutLink adds a link, or replaces the one with the same name. It starts and stops no other link and nothing that the
	// service hosts. After an error, nothing has changed.
	PutLink(l Link, token client.Credential) error
	// RemoveLink stops a link and removes it.
	RemoveLink(name string)
	// Test connects a link as if for the first time and returns the error that prevents it from working, or nil.
	Test(ctx context.Context, link string) error
}

// PutLinks adds links with their tokens, by the name of the link.
func PutLinks(s interface {
	PutLink(l Link, token client.Credential) error
}, links []Link, tokens map[string]client.Credential) error {
	for _, l := range links {
		if err := s.PutLink(l, tokens[l.Name]); err != nil {
			return err
		}
	}
	return nil
}

// PageMounter is a [Service] that has its own part of the owner's page.
type PageMounter interface {
	// MountPage adds an entry to the navigation and the routes below it.
	MountPage(pages *httpapi.Pages)
}

// CardReader is a [Service] whose agents publish cards.
type CardReader interface {
	// ReadCard fetches the card of an agent. It pins nothing.
	ReadCard(ctx context.Context, address Address) (wire.Value, error)
}

// Handler handles the messages whose intents match [Kind].Intents, in place of the owner's hook.
type Handler interface {
	// Handle is called at least once for each message. If it returns an error, the message waits in the owner's inbox.
	Handle(ctx context.Context, c Call) (Reply, error)
}

// Call is a message for a [Handler]. Its sender is established, and the owner's rules admitted it.
type Call struct {
	From     wire.AgentID
	Address  string // of a foreign peer
	Conv     wire.ConversationID
	ID       wire.MessageID
	Intent   wire.Intent
	Payload  wire.Value
	Approved bool // the owner approved it
}

// Reply is the answer of a [Handler]. The zero value only confirms that the message arrived.
type Reply struct {
	Payload *wire.Value
	Hold    string      // why the owner must decide; only the owner sees it
	Refusal *wire.Error // for the sender
}

// Observer sees the messages that come from peers but go to no handler: a close, and the notice that the peer's owner
// must approve first.
type Observer interface {
	// Observe returns the changes to make in the step that accepts the message.
	Observe(in Inbound) []store.Change
}

// FailureObserver learns which messages of the node will never be delivered.
type FailureObserver interface {
	// Undelivered returns what the message was about, as text for the owner's notice, and the changes to make in the
	// step that gives the message up. If quiet is true, the owner gets no notice.
	Undelivered(ctx context.Context, u Undelivered) (about string, quiet bool, changes []store.Change)
}

// Answerer executes what the owner answers to the tasks of its kind; see [Mesh].PutTask.
type Answerer interface {
	// Answer executes the answer and returns the result to show to the owner. It commits the effect of the answer
	// together with the changes that a.TaskChanges returns. It returns a *wire.Error if a.Turn is no longer current.
	Answer(ctx context.Context, a Answer) (wire.Value, error)
}

// Answer is what the owner, or an agent of the owner, answers to a task: the payload of a reply.
type Answer struct {
	About, Turn string // as in the [Task]
	Payload     wire.Value
	// TaskChanges returns the changes to the task itself. If final is true, the answer ends the turn; otherwise the task
	// counts as taken. Committing the changes fails with store.ErrConflict if another answer came first.
	TaskChanges func(final bool) []store.Change
}

// Carrier delivers signed messages to agents of the mesh by a way other than their endpoints.
type Carrier interface {
	// Carry returns what the agent answered; carried is false if the carrier knows no way to the agent. Only a
	// *client.SendError can ask for another attempt. The node verifies the answer like that of an endpoint, so it need
	// not trust a carrier.
	Carry(ctx context.Context, to wire.AgentID, message []byte) (answer []byte, carried bool, err error)
}
