package bridge

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Inbound is a message with an established sender, native or foreign, on its way into the node.
type Inbound struct {
	Principal string        // the subject of access rules, blocks and limits (native: the agent id)
	Peer      wire.AgentID  // the other party of the conversation (native: the agent id; foreign: the pseudonym)
	Address   string        // of a foreign peer, as [Address.String]; empty for a native peer
	Name      string        // what the peer calls itself: untrusted, only for the owner's eyes
	Verified  string        // how the sender was authenticated: VerifiedSignature, VerifiedBearer, VerifiedNone
	Unproven  *UnprovenKey  // of a native sender whose key the owner must accept first; otherwise nil
	Sources   []rate.Source // where the message came from, for limits that strangers share (AM-42); empty if unknown
	// EndpointProven: the endpoint on the sender's card is proven (AM-63).
	EndpointProven bool

	MessageID wire.MessageID
	ConvID    wire.ConversationID
	Intent    wire.Intent
	Payload   wire.Value

	Time     time.Time // the time that the sender wrote into the message
	Received time.Time // when it arrived here, or in the mailbox from which the node took it

	Raw    []byte        // the bytes as received, for the transcript
	Digest [32]byte      // distinguishes a repeat from another message with the same id (AM-21)
	Native *wire.Message // the whole message if it is an AgentMesh message; otherwise nil

	// Cancels is the hex digest of the one held message that a withdrawal takes back; empty: all held messages of the
	// conversation.
	Cancels string
	Records []store.Change // the bridge's own state, changed in the atomic step that accepts the message
	// Unattended: the sender does not wait for the answer. The reply of a hook goes through the outbox.
	Unattended bool
	// Reply: the message answers one of ours, and the foreign protocol has no answer to an answer. Only a hook that also
	// handles replies gets the message. The bridge sets Unattended too.
	Reply bool
	// Screen checks a hook's answer to a sender that waits for it. If it returns an error, the node stores that error
	// instead of the answer, and leaves the message to the owner. If the error is nil, the step that stores the answer
	// makes the changes, too; when the node repeats the step, it calls Screen again. A nil Screen lets every answer pass.
	// Screen is not called for an answer in the outbox: the bridge's transport checks it.
	Screen func(ctx context.Context, answer wire.Value) ([]store.Change, *wire.Error)
	// Deadline ends the conversation that the message opens; zero: a period of silence ends it. At Purge the node
	// deletes the message and what it stores of the conversation; zero: the owner's retention decides.
	Deadline, Purge time.Time
	// Meter is the meter of the link that the message came over, and Draw is what the message takes from it. The
	// node's own limits apply to a message without a meter, and to a signed AgentMesh message over any transport
	// (AM-41).
	Meter *LinkMeter
	Draw  Draw
	Hold  bool // the foreign protocol requires the owner's approval, whoever the sender is (MS-28, MS-34)
}

// UnprovenKey is the key of an agent whose id is not derived from that key, as shown to the owner (AM-2).
type UnprovenKey = client.UnprovenKey

// The values of [Inbound.Verified].
const (
	VerifiedSignature = "signature" // the sender signed the message
	VerifiedBearer    = "bearer"    // the sender presented a token that only this peer has
	VerifiedNone      = "none"      // only the foreign side names the sender
)

// IsProof reports whether a sender that was verified like this has proven who it is.
func IsProof(verified string) bool { return verified != "" && verified != VerifiedNone }

// Outcome is how the node answered a message.
type Outcome struct {
	Status    int           // the HTTP status: 200, or 202 if the answer comes later
	Reply     *wire.Message // signed; nil if Raw repeats an earlier answer
	Raw       []byte        // the signed answer as sent
	Held      bool          // the message waits for the owner
	Duplicate bool          // the message was accepted before; nothing changed
	Ask       string        // with Held, the id of the question to the owner
}

// Receiver takes messages in; the node implements it. Accept returns a *[wire.Error] if it refuses the message; then
// it has stored nothing, in.Records included. A repeat of an accepted message gets the same answer, so a bridge that
// is unsure may hand a message in again.
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

// Delivered is how the other side took a delivery.
type Delivered struct {
	Reply  *wire.Message // the verified answer; nil if it did not come at once
	Raw    []byte        // the answer as received
	Digest [32]byte      // of the bytes over which the signature of Reply verified; zero if those are in JCS form
	Queued bool          // handed to a service that stores it; the answer comes later (AM-49)
}

// Undelivered is a message of the node that will never be delivered. Code and Status are those of the peer's refusal;
// Code is empty if no peer refused the message.
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

// Transport delivers messages of the node to addresses of one kind. Only a *client.SendError can ask for another
// attempt; any other error is final. Deliver must tolerate a repeat of an attempt that arrived although it was reported
// as failed, and must return when ctx ends.
type Transport interface {
	Deliver(ctx context.Context, d Delivery) (Delivered, error)
}

// Screener is a [Transport] that lets some content never leave, whoever approves it.
type Screener interface {
	Transport
	// Screen returns why a message with this payload would be refused now, or nil. It changes nothing: Deliver decides
	// again.
	Screen(ctx context.Context, to Address, payload wire.Value) error
}

// Loss is a field that a mapping cannot translate. A bridge declares its losses per kind of message; its test checks
// that everything else survives the round trip.
type Loss struct {
	Field  string // of the native message: "payload.message.priority"
	Reason string
}
