package owner

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Conversation is a conversation as shown to the owner, with its current state.
type Conversation struct {
	ID   string `json:"conversation_id"`
	Peer string `json:"peer"`
	PeerNames
	Principal string              `json:"principal,omitempty"` // the party to which the owner's rules apply, if not the peer
	State     conversations.State `json:"state"`
	Rejected  bool                `json:"rejected,omitempty"`
	Mine      bool                `json:"opened_by_us"`
	Sealed    bool                `json:"sealed,omitempty"`
	Intent    wire.Intent         `json:"intent"`
	Opened    time.Time           `json:"opened"`
	Last      time.Time           `json:"last"`
	Holds     int                 `json:"holds,omitempty"` // messages that wait for the owner
	// Unreleased is the number of messages of the peer that no agent of the owner sees: the owner has not released them,
	// or the guard has not let them through.
	Unreleased int         `json:"unreleased,omitempty"`
	Turns      *Turns      `json:"turns,omitempty"`      // of the owner's agent since the owner's last act in the conversation
	Proposals  []Proposal  `json:"proposals,omitempty"`  // at most one for each intent, the newest first
	Agreements []Agreement `json:"agreements,omitempty"` // at most one for each intent, the newest first
	Entries    uint64      `json:"entries"`
	Bytes      int64       `json:"bytes"`             // of the messages in the transcript
	Address    string      `json:"address,omitempty"` // of a foreign peer
}

// Proposal is a current proposal of a conversation, before it is agreed.
type Proposal struct {
	conversations.Terms
	By       conversations.Side `json:"by"`
	Intent   wire.Intent        `json:"intent,omitempty"`
	Message  wire.MessageID     `json:"message_id,omitempty"`    // the message with the proposal; name it in an answer
	Accepted conversations.Side `json:"accepted_by,omitempty"`   // the side that accepted, until the other side answers
	Selected string             `json:"selected_time,omitempty"` // the time that side selected, if several are offered
	at       time.Time
}

// NewProposals returns the current proposals of a conversation, the newest first.
func NewProposals(conv conversations.Conversation) (list []Proposal) {
	for _, d := range conv.Deals() {
		if !d.Stands() {
			continue
		}
		v := Proposal{Terms: d.Proposal.Terms, By: d.Proposal.By, Intent: d.Proposal.Intent, Message: d.Proposal.Message, at: d.Proposal.At}
		if a := d.Accept; a != nil {
			v.Accepted = a.By
			v.Location = a.Location
			if len(a.Times) == 1 && len(v.Times) > 1 {
				v.Selected = a.Times[0]
			}
		}
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b Proposal) int { return b.at.Compare(a.at) })
	return list
}

// Standing is the state of an agreement.
type Standing string

const (
	StandingAgreed    Standing = "agreed"
	StandingCancelled Standing = "cancelled"
	StandingDoubtful  Standing = "perhaps cancelled" // by a decline that may also mean a later proposal
	StandingFailed    Standing = "failed"            // the conversation failed later; perhaps the other side no longer agrees
)

// Agreement is what was agreed in a conversation. It is valid only if Standing is StandingAgreed.
type Agreement struct {
	conversations.Agreement
	Standing Standing `json:"standing"`
}

// Entry is a transcript entry. Message has the exact bytes that were received or sent. Opened is the decrypted payload
// of a sealed message.
type Entry struct {
	N         uint64          `json:"n"`
	Direction string          `json:"direction"`        // "in" or "out"
	Author    string          `json:"author,omitempty"` // of an entry of ours: "owner", "agent", "hook", "bridge", "node"
	At        time.Time       `json:"at"`
	MessageID string          `json:"message_id"`
	Message   json.RawMessage `json:"message"`
	Sealed    bool            `json:"sealed,omitempty"`
	Opened    *wire.Value     `json:"opened,omitempty"`
	Chain     string          `json:"chain"` // hash that links the entry to the one before it, in hex

	Unreleased bool `json:"unreleased,omitempty"` // the owner has not released it, so no agent of the owner sees it
}

// Transcript is a conversation with a page of its transcript. For the next page, pass Next as "after".
type Transcript struct {
	Conversation
	Transcript []Entry `json:"transcript"`
	Next       uint64  `json:"next,omitempty"`
}

// ConversationList is a page of conversations. For the next page, pass Next as "before".
type ConversationList struct {
	Items []Conversation `json:"items"`
	Next  uint64         `json:"next,omitempty"`
}

// Close ends a conversation.
type Close struct {
	Peer        string `json:"peer,omitempty"` // needed if two peers use the same conversation id
	Status      string `json:"status"`         // "completed" or "failed"
	WaitSeconds int    `json:"wait_seconds"`
	By          string `json:"-"` // as in [NewMessage]
}

// Conversations are the conversations of a node. An id may be a unique prefix; peer may be empty.
type Conversations interface {
	ListConversations(ctx context.Context, q Query) (ConversationList, error)
	// ReadTranscript returns a page of a transcript: the entries whose numbers are greater than after.
	ReadTranscript(ctx context.Context, id, peer string, after uint64) (Transcript, error)
	// OpenExport finds a conversation and returns a function that writes it as a self-verifying file. If openSealed is
	// true, the file also has the decrypted payloads of sealed messages, and the keys that prove them.
	OpenExport(ctx context.Context, id, peer string, openSealed bool) (write func(http.ResponseWriter) error, err error)
	CloseConversation(ctx context.Context, id string, in Close, wait time.Duration) (Sent, error)
	DeleteConversation(ctx context.Context, id, peer string) error
}

// The operations of conversations.
var (
	ListConversations  = Endpoint[None, ConversationList]{http.MethodGet, "/conversations", Read}
	ShowConversation   = Endpoint[None, Transcript]{http.MethodGet, "/conversations/:id", Read}
	ExportConversation = Endpoint[None, None]{http.MethodGet, "/conversations/:id/export", Decide}
	CloseConversation  = Endpoint[Close, Sent]{http.MethodPost, "/conversations/:id/close", Send}
	DeleteConversation = Endpoint[None, None]{http.MethodDelete, "/conversations/:id", Decide}
)

// exportTime bounds an export. By default, a conversation has at most 64 MiB of messages.
const exportTime = 5 * time.Minute

func conversationOperations(n Conversations) []Operation {
	return []Operation{
		serveList(ListConversations, n.ListConversations, conversations.Open, conversations.Completed, conversations.Failed, conversations.Expired),
		ShowConversation.Serve(func(c echo.Context, _ None) (Transcript, error) {
			var after uint64
			if s := c.QueryParam("after"); s != "" {
				var err error
				if after, err = strconv.ParseUint(s, 10, 64); err != nil {
					return Transcript{}, Fault(http.StatusBadRequest, "after must be a number", "")
				}
			}
			return n.ReadTranscript(c.Request().Context(), c.Param("id"), c.QueryParam("peer"), after)
		}),
		Raw(ExportConversation.Method, ExportConversation.Path, ExportConversation.Right, func(c echo.Context) error {
			write, err := n.OpenExport(c.Request().Context(), c.Param("id"), c.QueryParam("peer"), c.QueryParam("opened") == "true")
			if err != nil {
				return Explain(err)
			}
			if err := httpapi.KeepOpen(c, exportTime); err != nil {
				return err
			}
			c.Response().Header().Set("Content-Type", "application/jsonl")
			c.Response().WriteHeader(http.StatusOK)
			return write(c.Response())
		}),
		CloseConversation.Serve(func(c echo.Context, in Close) (Sent, error) {
			if in.Status != "completed" && in.Status != "failed" {
				return Sent{}, Fault(http.StatusBadRequest, "status must be completed or failed", "")
			}
			wait, err := parseWait(c, in.WaitSeconds)
			if err != nil {
				return Sent{}, err
			}
			in.By = Door(c)
			return n.CloseConversation(c.Request().Context(), c.Param("id"), in, wait)
		}),
		DeleteConversation.Serve(func(c echo.Context, _ None) (None, error) {
			return None{}, n.DeleteConversation(c.Request().Context(), c.Param("id"), c.QueryParam("peer"))
		}),
	}
}
