package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/subprocess"
	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Handler is the agent behind the node: [Exec], [Webhook], [OpenClaw], [A2A], [Calendar].
//
// Handle must return when ctx ends. It may be called more than once for a message; Call.Attempt counts the calls
// (AM-75). If its error is an *[Error] with the fault [Unreachable], the node tries again. After any other error, the
// message is left to the owner.
type Handler interface {
	Handle(ctx context.Context, c Call) (Answer, error)
}

// Call is one message for a handler. Everything in it that a peer wrote is untrusted text.
type Call struct {
	Message      wire.Message // without Tree and Signature if it came from another network, over a bridge
	Payload      []byte       // canonical form of what was verified (AM-13)
	Conversation conversations.Conversation
	TurnsLeft    int           // that the agent may still take in the conversation without the owner; negative: any number
	History      []store.Entry // the newest messages of the conversation so far
	Sender       Sender
	ActionKnown  bool // the intent defines the action of the message
	Sealed       bool // the message came sealed (AM-85), and the answer is sealed too; Payload is opened
	Attempt      int  // 1 for the first
	Reply        bool // the message answers one of ours, so nobody waits for an answer to it; see node.Route.Replies
	Approved     bool // the owner approved the message
	// Reminder is set if the handler announced a later reply to the message, and that reply did not come. A message has
	// at most one reminder.
	Reminder bool
	// Progress gets what the handler reports before it answers. It never blocks, and may lose reports. It may be nil.
	Progress func(Result)

	tap io.Writer // gets a copy of the output as the hook wrote it; may be nil
}

// event returns the type and id of the call, which are the same in every repeat of the call.
func (c Call) event() (kind, id string) {
	if c.Reminder {
		return "message.reminder", string(c.Message.ID) + "-reminder"
	}
	return "message.received", string(c.Message.ID)
}

// Sender describes the author of a message and the owner's rule about the author.
type Sender struct {
	AgentID  wire.AgentID
	Name     untrusted.Text // from its card
	Verified string         // "signature", "bearer", "none"
	Trust    string         // the owner's rule, such as "allowed" or "approved"; "" for a stranger
}

// Answer is the answer of a handler (AM-72). With the zero value, the node answers "received" (AM-71).
type Answer struct {
	Payload *wire.Value // the reply; [ReadResult] returns the result in it
	Hold    string      // why the owner must decide; only the owner sees it
	Err     *wire.Error // wire.ErrIntent or wire.ErrOwnerRejected
	Async   bool        // the reply will come later through the owner API
}

// Fault classifies how a handler failed.
type Fault string

const (
	Timeout     Fault = "timeout"     // it did not answer in time and was stopped
	Crashed     Fault = "crashed"     // it could not run, or reported a failure
	Unreachable Fault = "unreachable" // its URL did not answer, or answered that it cannot work now
	Malformed   Fault = "rubbish"     // its output is not an answer
	TooLarge    Fault = "too-large"   // its output is too large
)

// Error is the failure of a handler. Its text is for the log, because it may quote the handler's output, made
// printable.
type Error struct {
	Fault  Fault
	Route  string // the program or host that was called
	Exit   int    // exit status of a program; 0 if it did not exit by itself with an error
	Stderr string // the last 2 KiB of a program's standard error; untrusted, and only for the owner
	cause  error
}

// maxStderr is how many bytes of a program's standard error are logged, and kept with a message.
const maxStderr = 2 << 10

// newProgramError returns the failure of a program, with its exit status and the end of its standard error.
func newProgramError(fault Fault, name string, cause error, stderr string) error {
	e := newError(faultOf(cause, fault), name, cause)
	e.Stderr = lastStderr(stderr)
	if exit, ok := errors.AsType[*exec.ExitError](cause); ok {
		e.Exit = max(0, exit.ExitCode())
	}
	return e
}

func lastStderr(text string) string {
	return strings.ToValidUTF8(text[max(0, len(text)-maxStderr):], "")
}

// FaultOf returns how a handler failed, or "" if err is not the error of a handler.
func FaultOf(err error) Fault {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Fault
	}
	return ""
}

// Note returns what the owner learns about the failure. The handler's own output stays in the log.
func (f Fault) Note() string { return cmp.Or(faultNotes[f], "the hook failed; see the log") }

var faultNotes = map[Fault]string{
	Timeout:     "the hook took too long",
	Unreachable: "the hook could not be reached",
	Malformed:   "the hook's output is not an answer; see the log",
	TooLarge:    "the hook's output is too large",
}

// IsAsync reports whether a handler never answers at once, so that the sender need not wait.
func IsAsync(h Handler) bool {
	a, ok := h.(interface{ IsAsync() bool })
	return ok && a.IsAsync()
}

func (e *Error) Error() string { return fmt.Sprintf("hook %s: %s: %v", e.Route, e.Fault, e.cause) }
func (e *Error) Unwrap() error { return e.cause }

// newError returns the failure of a handler. The fault becomes Timeout if the deadline of the call has passed.
func newError(fault Fault, route string, cause error) *Error {
	// A connection attempt that times out is a context.DeadlineExceeded too. It is not a Timeout of the handler,
	// because it ends long before the context does.
	op, ok := errors.AsType[*net.OpError](cause)
	if dial := ok && op.Op == "dial"; !dial && errors.Is(cause, context.DeadlineExceeded) {
		fault = Timeout
	}
	return &Error{Fault: fault, Route: route, cause: cause}
}

// faultOf returns TooLarge if the output was too large, and otherwise fault.
func faultOf(err error, fault Fault) Fault {
	if errors.Is(err, errTooLarge) || errors.Is(err, subprocess.ErrOutputTooLarge) || errors.Is(err, client.ErrAnswerTooLarge) {
		return TooLarge
	}
	return fault
}

// DefaultTimeout bounds a call whose context has no deadline (AM-74).
const DefaultTimeout = 5 * time.Minute

const (
	maxOutput  = 256 << 10 // AM-72
	maxHistory = 64 << 10  // bytes of earlier messages of the conversation
)

// document returns the JSON document that a hook gets (AM-72).
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
	return wire.Obj(
		wire.Member{Key: "type", Value: wire.Text(kind)},
		wire.Member{Key: "attempt", Value: wire.Int(int64(c.Attempt))},
		wire.Member{Key: "untrusted", Value: wire.Texts([]string{
			"message.payload", "message.message_id", "message.conversation_id", "message.intent",
			"message.from", "conversation.conversation_id", "conversation.history", "sender.name", "sender.agent_id",
		})},
		wire.Member{Key: "sender", Value: wire.Obj(
			wire.Member{Key: "agent_id", Value: wire.Text(string(c.Sender.AgentID))},
			wire.Member{Key: "name", Value: wire.Text(wire.OneLine(string(c.Sender.Name), 256))},
			wire.Member{Key: "verified", Value: wire.Text(c.Sender.Verified)},
			wire.Member{Key: "trust", Value: wire.Text(cmp.Or(c.Sender.Trust, "unknown"))},
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
			wire.Member{Key: "turns", Value: wire.Int(int64(conv.Turns))},
			wire.Member{Key: "turns_left", Value: c.turnsLeft()},
			wire.Member{Key: "history", Value: c.history()},
		)},
	).JSON()
}

// turnsLeft returns the number of turns, or null if there is no bound.
func (c Call) turnsLeft() wire.Value {
	if c.TurnsLeft < 0 {
		return wire.Value{}
	}
	return wire.Int(int64(c.TurnsLeft))
}

// history returns the newest messages that fit, oldest first, without the message itself.
func (c Call) history() wire.Value {
	room := maxHistory
	var turns []wire.Value
	for _, e := range slices.Backward(c.History) {
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
		if content, ok := conversations.ReadContent(e); ok {
			turn = append(turn, wire.Member{Key: "intent", Value: wire.Text(string(content.Intent))}, wire.Member{Key: "payload", Value: content.Payload})
		}
		turns = append([]wire.Value{wire.Obj(turn...)}, turns...)
	}
	return wire.Arr(turns...)
}

// loggerOr returns l, or a logger that discards everything if l is nil.
func loggerOr(l *slog.Logger) *slog.Logger {
	return cmp.Or(l, slog.New(slog.DiscardHandler))
}

// boundedContext adds the default deadline to a context without one (AM-74).
func boundedContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}
