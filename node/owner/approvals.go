package owner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The kinds of questions that a node asks; those of bridges are their own.
const (
	AskMessage     = "message"     // a message that came in and waits (AM-31)
	AskOutgoing    = "outgoing"    // a message of ours that waits (AM-50)
	AskTask        = "task"        // an answer of ours to a task that waits (AM-50)
	AskInterrupted = "interrupted" // a hook that a crash interrupted (AM-75)
	AskKeyChange   = "key-change"  // a peer's key is not the pinned one (AM-11)
)

// RuleUnproven is the rule of a question about an agent whose id, which is made of a key, does not lead to the key on its
// card.
const RuleUnproven = "id=unproven"

// Approval is a question as the owner is shown it: who it is about, what is said, and every message it is about.
type Approval struct {
	acl.Ask
	Name     string        `json:"name,omitempty"`    // as the other side calls itself: untrusted
	Summary  string        `json:"summary,omitempty"` // the words or the subject of the first message, on a line: untrusted
	Messages []HeldMessage `json:"messages,omitempty"`
}

// HeldMessage is one of the messages that a question is about.
type HeldMessage struct {
	Ask          string              `json:"ask"`
	Hash         string              `json:"hash"` // of its canonical bytes
	Conversation wire.ConversationID `json:"conversation_id"`
	At           time.Time           `json:"at"`
	Summary      string              `json:"summary,omitempty"`

	HeldBody
}

// HeldBody is what a question about a message says of the message. The store keeps it as the body of the question.
type HeldBody struct {
	Item string `json:"item"`
	// Hold is "sender" if the question is whether this sender may write at all, "intent" if it is this message.
	Hold    string          `json:"hold"`
	From    wire.AgentID    `json:"from"`
	Address string          `json:"address,omitempty"`
	Name    string          `json:"name,omitempty"` // as the sender's card says it: untrusted
	Proof   string          `json:"verified"`
	Intent  wire.Intent     `json:"intent"`
	Reason  string          `json:"reason,omitempty"`
	Sealed  bool            `json:"sealed,omitempty"`
	Payload json.RawMessage `json:"payload"`
	// Unproven is the key that approval accepts as the sender's.
	Unproven *client.UnprovenKey `json:"unproven,omitempty"`
}

// Address returns the foreign address of the party that the question is about, or else its principal.
func (a Approval) Address() string {
	if len(a.Messages) > 0 {
		return a.Messages[0].Address
	}
	return a.Subject
}

// Says returns what the question is about on a line: what is said, or our title if nobody says anything. It is untrusted
// text.
func (a Approval) Says() string {
	if a.Summary == "" {
		return a.Title
	}
	return a.Summary
}

// Decision is what the owner decides about a question. Hash must be that of what was shown.
type Decision struct {
	Choice acl.Choice `json:"choice"`
	Hash   string     `json:"hash"`
	By     string     `json:"by"` // the door; empty: that of the request
	// WaitSeconds, for a message of ours that is approved, is how long to wait for what comes of it.
	WaitSeconds int `json:"wait_seconds,omitempty"`
}

// Decided is the question after a decision.
type Decided struct {
	acl.Ask
	Sent *Sent `json:"sent,omitempty"` // what became of a message of ours that was approved
}

// Rejection rejects every sender that waits and that the owner does not know.
type Rejection struct {
	By string `json:"by"` // as in [Decision]
}

// Rejected is how many it were.
type Rejected struct {
	Rejected int `json:"rejected"`
}

// Approvals is what waits for the owner.
type Approvals interface {
	ListApprovals(ctx context.Context, state acl.AskState, after string, limit int) (List[Approval], error)
	// FindApproval returns the question with an id or a unique beginning of one. A message that waits behind another is
	// found as that one.
	FindApproval(ctx context.Context, id string) (Approval, error)
	// Decide carries out a decision and waits up to wait for what becomes of a message of ours that it lets go. With
	// acl.ErrAskGone it returns the question as it ended.
	Decide(ctx context.Context, id string, d Decision, wait time.Duration) (Decided, error)
	RejectStrangers(ctx context.Context, by string) (int, error)
}

// The operations of approvals.
var (
	ListApprovals   = Endpoint[None, List[Approval]]{http.MethodGet, "/approvals", Read}
	ShowApproval    = Endpoint[None, Approval]{http.MethodGet, "/approvals/:id", Read}
	DecideApproval  = Endpoint[Decision, Decided]{http.MethodPost, "/approvals/:id", Decide}
	RejectStrangers = Endpoint[Rejection, Rejected]{http.MethodPost, "/approvals/reject-strangers", Decide}
)

// RejectFor bounds the rejection of all strangers.
const RejectFor = 2 * time.Minute

func approvalOperations(n Approvals) []Operation {
	return []Operation{
		ListApprovals.Serve(func(c echo.Context, _ None) (List[Approval], error) {
			q, err := ReadQuery(c, acl.AskPending, acl.AskApproved, acl.AskRejected, acl.AskWithdrawn, acl.AskExpired)
			if err != nil {
				return List[Approval]{}, err
			}
			return n.ListApprovals(c.Request().Context(), acl.AskState(q.State), q.After, q.Limit)
		}),
		ShowApproval.Serve(func(c echo.Context, _ None) (Approval, error) {
			return n.FindApproval(c.Request().Context(), c.Param("id"))
		}),
		DecideApproval.Serve(func(c echo.Context, in Decision) (Decided, error) {
			wait, err := waitFor(c, in.WaitSeconds)
			if err != nil {
				return Decided{}, err
			}
			in.By = decidedBy(c, in.By)
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
			rejected, err := n.RejectStrangers(c.Request().Context(), decidedBy(c, in.By))
			return Rejected{rejected}, err
		}),
	}
}

// DescribeEnd says how a question ended that somebody wants to decide.
func DescribeEnd(ask acl.Ask) string {
	at := ask.Decided.UTC().Format("2 Jan 15:04:05 MST")
	switch ask.State {
	case acl.AskApproved, acl.AskRejected:
		return fmt.Sprintf("too late: it was decided (%s) by %s at %s", ask.Choice, ask.By, at)
	case acl.AskWithdrawn:
		return "too late: it was taken back, answered by hand, or its conversation ended, at " + at
	}
	if !ask.Displaced.IsZero() {
		return "too late: the list was full, and another sender got its place at " + ask.Displaced.UTC().Format("2 Jan 15:04:05 MST")
	}
	return "too late: nobody decided until " + ask.Expires.UTC().Format("2 Jan 15:04:05 MST") + ", and it expired"
}

// decidedBy returns the door that a request names in its body, or else in its header.
func decidedBy(c echo.Context, by string) string {
	if doorForm.MatchString(by) {
		return by
	}
	return Door(c)
}
