package owner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The kinds of questions that a node asks its owner. [AskQuestion] is another one, and bridges add their own.
const (
	AskMessage     = "message"     // may an incoming message come in? (AM-31)
	AskOutgoing    = "outgoing"    // may a message of ours leave? (AM-50)
	AskTask        = "task"        // may our answer to a task leave? (AM-50)
	AskInterrupted = "interrupted" // may a hook that a crash interrupted run again? (AM-75)
	AskKeyChange   = "key-change"  // is a peer's new key, which is not the pinned one, valid? (AM-11)
)

// RuleUnproven is the rule of a question about an agent whose card does not prove the agent's derived id.
const RuleUnproven = "id=unproven"

// Approval is a question as shown to the owner, with the names of the party that it is about and every message that it
// covers.
type Approval struct {
	acl.Ask
	PeerNames
	Name     string        `json:"name,omitempty"`    // what the other side calls itself: untrusted
	Summary  string        `json:"summary,omitempty"` // text or subject of the first message, on one line: untrusted
	Messages []HeldMessage `json:"messages,omitempty"`
}

// HeldMessage is one of the messages that a question covers.
type HeldMessage struct {
	Ask          string              `json:"ask"`  // id of the question that was opened for this message
	Hash         string              `json:"hash"` // of the canonical bytes of the message
	Conversation wire.ConversationID `json:"conversation_id"`
	At           time.Time           `json:"at"`
	Summary      string              `json:"summary,omitempty"`

	HeldBody
}

// HeldBody describes a held message. The store keeps it as the body of the question.
type HeldBody struct {
	Item string `json:"item"` // id of the inbox item
	// Hold is "sender" if the question is whether this sender may write at all, "intent" if it is about this message,
	// and "turns" if the owner's agent has no turn left at Bound (AM-93).
	Hold    string          `json:"hold"`
	Bound   string          `json:"bound,omitempty"`
	From    wire.AgentID    `json:"from"`
	Address string          `json:"address,omitempty"`
	Name    string          `json:"name,omitempty"` // from the sender's card: untrusted
	Proof   string          `json:"verified"`       // how the sender was verified, as in [Item]
	Intent  wire.Intent     `json:"intent"`
	Reason  string          `json:"reason,omitempty"`
	Sealed  bool            `json:"sealed,omitempty"`
	Payload json.RawMessage `json:"payload"`
	// Unproven is a key that is not proven to be the sender's. If the owner approves, the node accepts it as such.
	Unproven *client.UnprovenKey `json:"unproven,omitempty"`
}

// Address returns the foreign address of the sender of the first message, or "" if it is an agent of the mesh. For a
// question without messages, Address returns the subject.
func (a Approval) Address() string {
	if len(a.Messages) > 0 {
		return a.Messages[0].Address
	}
	return a.Subject
}

// Says returns the text of the question on one line: what the party wrote, or our title if it wrote nothing. The text
// is untrusted.
func (a Approval) Says() string {
	return cmp.Or(a.Summary, a.ShowTitle())
}

// Because returns why the question is asked: the rule that holds the first message, or the reason that a hook or the
// calendar gave. It returns "" if neither exists.
func (a Approval) Because() string {
	if a.Rule == "" && len(a.Messages) > 0 {
		return a.Messages[0].Reason
	}
	return a.Rule
}

// ShowTitle returns our title of the question, with the name of the subject (untrusted) or a short form of its id.
func (a Approval) ShowTitle() string {
	if wire.AgentID(a.Subject).Valid() { // the stored title has the id
		return strings.ReplaceAll(a.Title, a.Subject, a.Shown().String())
	}
	return a.Title
}

// Decision is the owner's answer to a question. Hash must be that of the question as shown.
type Decision struct {
	Choice acl.Choice `json:"choice"`
	Hash   string     `json:"hash"`
	By     string     `json:"by"`             // through which interface the owner decided; if empty, that of the request ([Door])
	Text   string     `json:"text,omitempty"` // the answer to a question of the agent
	// WaitSeconds is how long to wait for the result if the decision releases a message of ours.
	WaitSeconds int `json:"wait_seconds,omitempty"`
}

// Decided is a question after the decision.
type Decided struct {
	acl.Ask
	PeerNames
	Sent *Sent `json:"sent,omitempty"` // the result for an approved outgoing message
}

// Rejection rejects all waiting senders that the owner does not know.
type Rejection struct {
	By string `json:"by"` // as in [Decision]
}

// Rejected is the number of rejected senders.
type Rejected struct {
	Rejected int `json:"rejected"`
}

// Approvals are the questions that wait for the owner.
type Approvals interface {
	ListApprovals(ctx context.Context, q Query) (List[Approval], error)
	// FindApproval returns the question with this id. id may be a prefix that only one question has. If the message of
	// that question waits behind another message, FindApproval returns the question about the first message.
	FindApproval(ctx context.Context, id string) (Approval, error)
	// Decide carries out a decision. If the decision releases a message of ours, Decide waits for the result, but no
	// longer than wait. With acl.ErrAskGone it returns the question in its final state.
	Decide(ctx context.Context, id string, d Decision, wait time.Duration) (Decided, error)
	// RejectStrangers rejects all waiting senders that the owner does not know, and returns their number.
	RejectStrangers(ctx context.Context, by string) (int, error)
}

// The operations of approvals. Each of them, even the listing, needs the right [Decide].
var (
	ListApprovals   = Endpoint[None, List[Approval]]{http.MethodGet, "/approvals", Decide}
	ShowApproval    = Endpoint[None, Approval]{http.MethodGet, "/approvals/:id", Decide}
	DecideApproval  = Endpoint[Decision, Decided]{http.MethodPost, "/approvals/:id", Decide}
	RejectStrangers = Endpoint[Rejection, Rejected]{http.MethodPost, "/approvals/reject-strangers", Decide}
)

// RejectFor bounds the time for rejecting all strangers.
const RejectFor = 2 * time.Minute

func approvalOperations(n Approvals) []Operation {
	return []Operation{
		serveList(ListApprovals, n.ListApprovals, acl.AskPending, acl.AskApproved, acl.AskRejected, acl.AskWithdrawn, acl.AskExpired),
		ShowApproval.Serve(func(c echo.Context, _ None) (Approval, error) {
			return n.FindApproval(c.Request().Context(), c.Param("id"))
		}),
		DecideApproval.Serve(func(c echo.Context, in Decision) (Decided, error) {
			wait, err := parseWait(c, in.WaitSeconds)
			if err != nil {
				return Decided{}, err
			}
			in.By = doorOf(c, in.By)
			decided, err := n.Decide(c.Request().Context(), c.Param("id"), in, wait)
			if errors.Is(err, acl.ErrAskGone) {
				err = Fault(http.StatusConflict, DescribeEnd(decided.Ask), "")
			}
			return decided, err
		}),
		RejectStrangers.Serve(func(c echo.Context, in Rejection) (Rejected, error) {
			if err := httpapi.KeepOpen(c, RejectFor); err != nil {
				return Rejected{}, err
			}
			rejected, err := n.RejectStrangers(c.Request().Context(), doorOf(c, in.By))
			return Rejected{rejected}, err
		}),
	}
}

// DescribeEnd returns how a question ended, for a caller that wanted to decide it.
func DescribeEnd(ask acl.Ask) string {
	at := ask.Decided.UTC().Format("2 Jan 15:04:05 MST")
	switch ask.State {
	case acl.AskApproved, acl.AskRejected:
		return fmt.Sprintf("too late: it was decided (%s) by %s at %s", ask.Choice, ask.By, at)
	case acl.AskWithdrawn:
		return "too late: at " + at + " it was taken back or answered by hand, or its conversation ended"
	}
	if !ask.Displaced.IsZero() {
		return "too late: the list was full, and another sender got its place at " + ask.Displaced.UTC().Format("2 Jan 15:04:05 MST")
	}
	return "too late: it expired undecided at " + ask.Expires.UTC().Format("2 Jan 15:04:05 MST")
}
