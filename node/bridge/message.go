package bridge

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Inbound is a message whose sender is established, native or foreign, on its way into the node.
type Inbound struct {
	Principal string        // who access rules, block list and limits act on (native: the agent id)
	Peer      wire.AgentID  // who the conversation is with (native: the agent id; foreign: the pseudonym)
	Address   string        // of a foreign peer, as [Address.String]; empty for a native one
	Name      string        // what the peer calls itself: untrusted, for the owner's eyes
	Verified  string        // how the sender is known: VerifiedSignature, VerifiedBearer, VerifiedNone
	Unproven  *UnprovenKey  // of a native sender whose key the owner must accept first; nil for everybody else
	Sources   []rate.Source // where the message came from, for what strangers share (AM-42); empty if nothing tells
	Proven    bool          // the endpoint on the sender's card is proven (AM-63)

	MessageID wire.MessageID
	ConvID    wire.ConversationID
	Intent    wire.Intent
	Payload   wire.Value

	Time     time.Time // when the sender says it wrote
	Received time.Time

	Raw    []byte        // what was received, for the transcript
	Digest [32]byte      // what tells a repeat from another message under the same id (AM-21)
	Native *wire.Message // the whole message where it is an AgentMesh one

	Records []store.Change // the bridge's own state, changed in the step that accepts the message
	// Unattended: nobody waits for the answer. What a hook replies goes through the outbox.
	Unattended bool
	// Deadline ends the conversation that the message opens; zero: silence does. Purge is when the message must be gone,
	// and with it what is kept of its conversation; zero: when the owner's retention says.
	Deadline, Purge time.Time
	// Meter is the meter of the link that the message came over, and Draw what the message takes from it. Without a
	// meter, and for a signed AgentMesh message whatever carried it, the node's own limits hold (AM-41).
	Meter *LinkMeter
	Draw  Draw
	Hold  bool // the foreign protocol asks for the owner's word, whoever the sender is (MS-28, MS-34)
}

// UnprovenKey is the key of an agent whose id does not lead to it, as the owner is shown it (AM-2).
type UnprovenKey = client.UnprovenKey

// The values of [Inbound.Verified].
const (
	VerifiedSignature = "signature" // the sender signed the message
	VerifiedBearer    = "bearer"    // it holds a token that is the peer's alone
	VerifiedNone      = "none"      // the foreign side says so
)

// Outcome is how a message was answered.
type Outcome struct {
	Status    int           // as an HTTP endpoint would answer: 200, or 202 where the answer comes later
	Reply     *wire.Message // signed; nil if it is that of a repeat, or tells a foreign peer again that the owner decides: then it is in Raw
	Raw       []byte        // the signed answer as it leaves
	Held      bool          // it waits for the owner
	Duplicate bool          // it was accepted before; nothing changed
	Ask       string        // with Held, the id of the ask
}

// Receiver takes messages in: it is the node. Accept returns a *[wire.Error] where it refuses, and then nothing was
// stored, in.Records included. A repeat of an accepted message gets the same answer, so a bridge may hand a message in
// again whenever it is not sure.
type Receiver interface {
	Accept(ctx context.Context, in Inbound) (Outcome, error)
}

// Delivery is a message of the node that leaves the outbox.
type Delivery struct {
	ID      string // of the outbox entry: the same at every attempt
	To      wire.AgentID
	Address string // of a foreign peer; empty for a native one
	Message wire.Message
	Raw     []byte // the signed bytes
	Attempt int    // 1 for the first
}

// Delivered says how the other side took a delivery.
type Delivered struct {
	Reply  *wire.Message // the verified answer, where there was one at once
	Raw    []byte        // the answer as received
	Digest [32]byte      // of the reply's canonical bytes that verified; zero: of its JCS form
	Queued bool          // handed to somebody who keeps it; the answer comes later (AM-49)
}

// Undelivered is a message of the node that was given up. Code is that of the peer's refusal, with its HTTP status; it is
// empty where nobody refused the message.
type Undelivered struct {
	To        wire.AgentID
	Address   string // of a foreign peer
	ConvID    wire.ConversationID
	MessageID wire.MessageID
	Intent    wire.Intent
	Status    int
	Code      wire.Code
	Reason    string
}

// Transport delivers messages of the node to addresses of one kind. A failure that says whether to try again is a
// *client.SendError; any other error is final. Deliver must tolerate an attempt that did arrive although it was
// reported as failed, and it must end when ctx does.
type Transport interface {
	Deliver(ctx context.Context, d Delivery) (Delivered, error)
}

// Loss is something that a mapping cannot carry. A bridge declares its losses, per kind of message; its test holds it
// to carrying everything else.
type Loss struct {
	Field  string // of the native message: "payload.message.priority"
	Reason string
}
