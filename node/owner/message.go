package owner

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// SealChoice decides whether one message is sealed. The empty choice leaves it to the owner's rule.
type SealChoice string

const (
	Sealed   SealChoice = "seal"
	Unsealed SealChoice = "open" // refused if the owner's rule seals every message
)

// IsValid reports whether c is a choice or empty.
func (c SealChoice) IsValid() bool { return c == "" || c == Sealed || c == Unsealed }

// SendState is the state of an outgoing message.
type SendState string

const (
	SendQueued     SendState = "queued"           // waits for its next attempt
	SendDelivered  SendState = "delivered"        // the peer has it, or a relay that stores it for the peer
	SendUnverified SendState = "reply_unverified" // delivered, but the answer is not a valid reply of the peer (AM-18)
	SendFailed     SendState = "failed"           // it will not be delivered
	SendUnknown    SendState = "unknown"          // perhaps delivered; another attempt could deliver it twice (AM-48)
	SendHeld       SendState = "held"             // waits for the owner (AM-50)
)

// Sent is what is known of a message when the call that sends it returns.
type Sent struct {
	MessageID    wire.MessageID      `json:"message_id,omitempty"`
	Conversation wire.ConversationID `json:"conversation_id,omitempty"`
	State        SendState           `json:"state"`
	Reply        *wire.Message       `json:"-"`              // verified
	ReplyTree    wire.Value          `json:"reply,omitzero"` // decrypted if it was sealed
	ReplySealed  bool                `json:"reply_sealed,omitempty"`
	Status       int                 `json:"status,omitempty"` // HTTP status of the newest attempt
	Err          *SendFailure        `json:"error,omitempty"`
	Hint         string              `json:"hint,omitempty"` // what the owner can do
	Ask          string              `json:"ask,omitempty"`  // with SendHeld: id of the question to the owner
	To           wire.AgentID        `json:"-"`              // the recipient that the owner named
}

// SendFailure is why the newest attempt failed. Message may contain text of the peer, made printable.
type SendFailure struct {
	Code    wire.Code `json:"code,omitempty"`
	Message string    `json:"message"`
}

// String returns the failure on one line, or "" for nil.
func (f *SendFailure) String() string {
	switch {
	case f == nil:
		return ""
	case f.Code == "":
		return f.Message
	}
	return string(f.Code) + ": " + f.Message
}

// OutboxEntry is an outgoing message in the outbox.
type OutboxEntry struct {
	ID    string    `json:"id"` // ids sort in the order of sending
	State SendState `json:"state"`

	To wire.AgentID `json:"to"`
	PeerNames
	Address      string              `json:"address,omitempty"` // of a foreign peer
	Conversation wire.ConversationID `json:"conversation_id"`
	MessageID    wire.MessageID      `json:"message_id"`       // of the bytes that are sent now
	First        wire.MessageID      `json:"first_message_id"` // of the bytes that were sent first (AM-48)
	Intent       wire.Intent         `json:"intent"`
	Action       string              `json:"action,omitempty"`
	Via          string              `json:"via,omitempty"` // who wrote it: "owner", "agent", "hook", "bridge", "node"

	Created  time.Time `json:"created"`
	Signed   time.Time `json:"signed"` // when the bytes that are sent now were signed
	Due      time.Time `json:"next_attempt,omitzero"`
	Attempts int       `json:"attempts"`
	// InFlight is stored before an attempt begins. After a crash it shows that the outcome of the attempt is unknown.
	InFlight bool `json:"in_flight,omitempty"`
	// Processed reports that the peer may have processed an attempt, whatever it answered (AM-48).
	Processed bool `json:"maybe_processed,omitempty"`
	// Doubtful reports that the peer may have processed an attempt that was signed again, so that its message id
	// differs from that of the first attempt.
	Doubtful bool `json:"resend_maybe_processed,omitempty"`
	// Fetchable reports that the entry was stored as the answer to a message of the peer. The peer gets the entry by
	// repeating that message. The conversation does not fail if the entry cannot be delivered (AM-22).
	Fetchable bool `json:"fetchable,omitempty"`

	Status int          `json:"status,omitempty"` // HTTP status of the newest attempt
	Err    *SendFailure `json:"error,omitempty"`
	Hint   string       `json:"hint,omitempty"`
	Ended  time.Time    `json:"ended,omitzero"`
}

// NewMessage starts a conversation with an agent or continues one.
type NewMessage struct {
	To           string              `json:"to"` // agent id, alias, or address of a foreign peer
	Conversation wire.ConversationID `json:"conversation,omitempty"`
	Intent       wire.Intent         `json:"intent"`
	Payload      wire.Value          `json:"payload,omitzero"`
	Seal         SealChoice          `json:"seal,omitempty"`
	WaitSeconds  int                 `json:"wait_seconds"`
	// If a call with the same IdempotencyKey was made within a day, this call sends nothing. The result has the ids of
	// the first call, and the state that its message has now.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	By             string `json:"-"` // the interface that the caller used, see [Door]; empty: the owner's page
}

// NewReply answers the newest waiting message of a conversation. If none waits, it adds a message to the conversation.
// With Item it answers only the message of that item, and fails if this message was answered already, because two
// agents may read one inbox.
type NewReply struct {
	Conversation string      `json:"conversation,omitempty"`
	Peer         string      `json:"peer,omitempty"`
	Item         string      `json:"item,omitempty"`
	Intent       wire.Intent `json:"intent,omitempty"` // empty: that of the message that it answers (AM-89)
	Payload      wire.Value  `json:"payload,omitzero"`
	Seal         SealChoice  `json:"seal,omitempty"`
	WaitSeconds  int         `json:"wait_seconds"`
	By           string      `json:"-"` // as in [NewMessage]
	// Proposal is the message with the proposal that the writer saw. If another one stands now, the answer is refused.
	Proposal wire.MessageID `json:"proposal,omitempty"`
}

// Cancellation cancels an agreed event.
type Cancellation struct {
	Event       string `json:"event"` // id or a unique prefix
	Reason      string `json:"reason,omitempty"`
	WaitSeconds int    `json:"wait_seconds"`
	By          string `json:"-"` // as in [NewMessage]
}

// Messages sends messages of the owner. Each call waits for the result, but no longer than wait.
type Messages interface {
	Send(ctx context.Context, m NewMessage, wait time.Duration) (Sent, error)
	Reply(ctx context.Context, m NewReply, wait time.Duration) (Sent, error)
	CancelEvent(ctx context.Context, m Cancellation, wait time.Duration) (Sent, error)
	// ListOutbox lists outgoing messages in the order of sending.
	ListOutbox(ctx context.Context, q Query) (List[OutboxEntry], error)
}

// The operations of messages.
var (
	SendMessage = Endpoint[NewMessage, Sent]{http.MethodPost, "/send", Send}
	Reply       = Endpoint[NewReply, Sent]{http.MethodPost, "/reply", Send}
	CancelEvent = Endpoint[Cancellation, Sent]{http.MethodPost, "/calendar/cancel", Send}
	ListOutbox  = Endpoint[None, List[OutboxEntry]]{http.MethodGet, "/outbox", Read}
)

func messageOperations(n Messages) []Operation {
	return []Operation{
		SendMessage.Serve(func(c echo.Context, in NewMessage) (Sent, error) {
			in.By = Door(c)
			return serveSend(c, in, in.WaitSeconds, n.Send)
		}),
		Reply.Serve(func(c echo.Context, in NewReply) (Sent, error) {
			in.By = Door(c)
			return serveSend(c, in, in.WaitSeconds, n.Reply)
		}),
		CancelEvent.Serve(func(c echo.Context, in Cancellation) (Sent, error) {
			in.By = Door(c)
			return serveSend(c, in, in.WaitSeconds, n.CancelEvent)
		}),
		serveList(ListOutbox, n.ListOutbox, SendQueued, SendDelivered, SendUnverified, SendFailed, SendUnknown, SendHeld),
	}
}

// serveSend makes a call that may wait for the result of a message.
func serveSend[In any](c echo.Context, in In, seconds int, send func(context.Context, In, time.Duration) (Sent, error)) (Sent, error) {
	wait, err := parseWait(c, seconds)
	if err != nil {
		return Sent{}, err
	}
	return send(c.Request().Context(), in, wait)
}
