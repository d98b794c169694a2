package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Handler is the agent behind the node, as one route reaches it: [Exec], [Webhook], [OpenClaw].
//
// Handle must end when ctx does. It is called at least once for a message and told the attempt (AM-75). Its error is
// a *[Error]; the message then stays with the owner.
type Handler interface {
	Handle(ctx context.Context, c Call) (Answer, error)
}

// Call is one message for a handler. Everything a peer wrote in it is untrusted text.
type Call struct {
	Message      wire.Message // of a foreign peer: without Tree and signature
	Payload      []byte       // canonical form of what was verified (AM-13)
	Conversation conversations.Conversation
	History      []store.Entry // the conversation so far, bounded
	Sender       Sender
	ActionKnown  bool
	Sealed       bool // it came sealed (AM-85); Payload is what was inside, and an answer is sealed as well
	Attempt      int  // 1 for the first
	Reply        bool // the message answers one of ours on its connection; see [Route].Replies
	Approved     bool // the owner was asked about the message and let it through
	// Reminder says that the handler was told of the message before and answered that the reply comes later. It did not
	// come. There is one reminder.
	Reminder bool
}

// event is the type of the call, and id is its own, stable over repetitions.
func (c Call) event() (kind, id string) {
	if c.Reminder {
		return "message.reminder", string(c.Message.ID) + "-reminder"
	}
	return "message.received", string(c.Message.ID)
}

// Sender is who wrote, and what the owner thinks of it.
type Sender struct {
	AgentID  wire.AgentID
	Name     string // from its card: untrusted text
	Verified string // "signature", "bearer", "none"
	Trust    string // the standing: "allowed", "approved", "" for a stranger
}

// Answer is what a handler says (AM-72). The zero value is nothing, which is answered with "received" (AM-71).
type Answer struct {
	Payload *wire.Value // the reply
	Hold    string      // why the owner must decide; shown to the owner alone
	Err     *wire.Error // wire.ErrIntent or wire.ErrOwnerRejected
	Async   bool        // the reply comes later through the owner API
}

// Fault is how a handler failed.
type Fault string

const (
	Timeout     Fault = "timeout"     // it hung and was stopped
	Crashed     Fault = "crashed"     // it could not be run, or said that it failed
	Unreachable Fault = "unreachable" // its URL did not answer
	Malformed   Fault = "rubbish"     // what it said is not an answer
	TooLarge    Fault = "too-large"   // it said too much
)

// Error is a handler that failed. Its text is for the log: it may quote what the handler printed, made printable.
type Error struct {
	Fault Fault
	Route string // what was called: a program, a host
	cause error
}

func (e *Error) Error() string { return fmt.Sprintf("hook %s: %s: %v", e.Route, e.Fault, e.cause) }
func (e *Error) Unwrap() error { return e.cause }

func failed(fault Fault, route string, cause error) error {
	if errors.Is(cause, context.DeadlineExceeded) {
		fault = Timeout
	}
	return &Error{Fault: fault, Route: route, cause: cause}
}

// DefaultTimeout is how long a handler may take if nothing else is said (AM-74).
const DefaultTimeout = 5 * time.Minute

const (
	maxOutput  = 256 << 10 // AM-72
	maxHistory = 64 << 10  // of the conversation so far, in bytes of messages
)

// parseAnswer reads what a handler said about a message of intent. It can say a payload, a hold or an error and
// nothing else, so that it never reaches the envelope.
func parseAnswer(said []byte, intent wire.Intent) (Answer, error) {
	if len(strings.TrimSpace(string(said))) == 0 {
		return Answer{}, nil
	}
	v, err := wire.ParseObject(said)
	if err != nil {
		return Answer{}, fmt.Errorf("its answer is not one strict JSON object: %w", err)
	}
	if v.Len() == 0 {
		return Answer{}, nil
	}
	if v.Len() > 1 {
		return Answer{}, errors.New("its answer must have one member: payload, hold or error")
	}
	member := v.Members()[0]
	if member.Value.Kind() != wire.Object {
		return Answer{}, errors.New("the member of its answer must be an object")
	}
	switch member.Key {
	case "payload":
		payload, err := conversations.CheckOwn(intent, member.Value)
		return Answer{Payload: &payload}, err
	case "hold":
		reason := member.Value.GetStr("reason")
		if reason == "" {
			reason = "the agent asks for a decision"
		}
		return Answer{Hold: wire.OneLine(reason, 500)}, nil
	case "error":
		switch wire.Code(member.Value.GetStr("code")) {
		case wire.IntentNotSupported:
			return Answer{Err: wire.ErrIntent}, nil
		case wire.OwnerRejected:
			return Answer{Err: wire.ErrOwnerRejected}, nil
		}
		return Answer{}, errors.New("error.code must be INTENT_NOT_SUPPORTED or OWNER_REJECTED")
	}
	return Answer{}, errors.New("its answer must have one member: payload, hold or error")
}

// document is what a hook is told (AM-72).
func (c Call) document() []byte {
	m := c.Message
	kind, _ := c.event()
	payload, err := wire.Parse(c.Payload)
	if err != nil {
		payload = m.Payload
	}
	message := wire.Draft{
		ID: m.ID, Conversation: m.Conversation, From: m.From, To: m.To, Time: m.Time, Intent: m.Intent, Payload: payload,
	}
	conv := c.Conversation
	trust := c.Sender.Trust
	if trust == "" {
		trust = "unknown"
	}
	return wire.Obj(
		wire.Member{Key: "type", Value: wire.Text(kind)},
		wire.Member{Key: "attempt", Value: wire.Int(int64(c.Attempt))},
		wire.Member{Key: "untrusted", Value: wire.Texts([]string{"message.payload", "conversation.history", "sender.name"})},
		wire.Member{Key: "sender", Value: wire.Obj(
			wire.Member{Key: "agent_id", Value: wire.Text(string(c.Sender.AgentID))},
			wire.Member{Key: "name", Value: wire.Text(wire.OneLine(c.Sender.Name, 256))},
			wire.Member{Key: "verified", Value: wire.Text(c.Sender.Verified)},
			wire.Member{Key: "trust", Value: wire.Text(trust)},
		)},
		wire.Member{Key: "action_known", Value: wire.Bool(c.ActionKnown)},
		wire.Member{Key: "approved", Value: wire.Bool(c.Approved)},
		wire.Member{Key: "sealed", Value: wire.Bool(c.Sealed)},
		wire.Member{Key: "message", Value: message.Tree()},
		wire.Member{Key: "conversation", Value: wire.Obj(
			wire.Member{Key: "conversation_id", Value: wire.Text(conv.Key.ID)},
			wire.Member{Key: "state", Value: wire.Text(string(conv.State))},
			wire.Member{Key: "opened_by_us", Value: wire.Bool(conv.Mine)},
			wire.Member{Key: "opened", Value: wire.Text(wire.FormatTime(conv.Opened))},
			wire.Member{Key: "history", Value: c.history()},
		)},
	).JSON()
}

// history is the newest of the conversation that fits, oldest first, without the message itself.
func (c Call) history() wire.Value {
	room := maxHistory
	var turns []wire.Value
	for i := len(c.History) - 1; i >= 0; i-- {
		e := c.History[i]
		if e.MessageID == string(c.Message.ID) && !e.Out {
			continue
		}
		if room -= len(e.Raw); room < 0 {
			break
		}
		from := "peer"
		if e.Out {
			from = "us"
		}
		turn := []wire.Member{
			{Key: "from", Value: wire.Text(from)},
			{Key: "at", Value: wire.Text(wire.FormatTime(e.At))},
		}
		if said, ok := conversations.ReadContent(e); ok {
			turn = append(turn, wire.Member{Key: "intent", Value: wire.Text(string(said.Intent))}, wire.Member{Key: "payload", Value: said.Payload})
		}
		turns = append([]wire.Value{wire.Obj(turn...)}, turns...)
	}
	return wire.Arr(turns...)
}

// loggerOr returns a logger that can be used.
func loggerOr(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// boundedContext bounds a call that came without a deadline (AM-74).
func boundedContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

// pause waits between two attempts; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
