package owner

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ItemState is the state of an inbox item.
type ItemState string

const (
	ItemNew         ItemState = "new"         // waits for the owner or the owner's agent
	ItemRead        ItemState = "read"        // read or acknowledged; nothing more is expected
	ItemRunning     ItemState = "running"     // a hook is working on it
	ItemWaiting     ItemState = "waiting"     // its hook could not be reached; the node tries again
	ItemAnswered    ItemState = "answered"    // a reply is stored
	ItemHeld        ItemState = "held"        // waits for the owner's decision
	ItemRejected    ItemState = "rejected"    // the owner, or the agent, refused it
	ItemWithdrawn   ItemState = "withdrawn"   // its sender took it back, or the matter ended
	ItemExpired     ItemState = "expired"     // the owner did not decide in time
	ItemFailed      ItemState = "failed"      // the hook failed; the owner may still answer
	ItemInterrupted ItemState = "interrupted" // a crash interrupted the hook; the owner decides whether to run it again
)

// ItemStates lists every state of an inbox item.
func ItemStates() []ItemState {
	return []ItemState{
		ItemNew, ItemRead, ItemRunning, ItemWaiting, ItemAnswered, ItemHeld, ItemRejected, ItemWithdrawn, ItemExpired, ItemFailed, ItemInterrupted,
	}
}

// IsUnanswered reports whether the owner, or an agent of the owner, may still answer an item in this state.
func (s ItemState) IsUnanswered() bool {
	return slices.Contains([]ItemState{ItemNew, ItemRead, ItemWaiting, ItemFailed, ItemInterrupted, ItemHeld}, s)
}

// Item is one message in the inbox. Payload, and all other text of a peer, is untrusted.
type Item struct {
	ID    string    `json:"id"`
	State ItemState `json:"state"`
	Kind  string    `json:"kind"` // "message", "task", or "reply" for an answer to our message that itself gets no answer

	Peer         wire.AgentID        `json:"peer"`
	PeerName     string              `json:"peer_name,omitempty"`  // what the peer calls itself: untrusted
	PeerAlias    string              `json:"peer_alias,omitempty"` // the owner's name for the peer
	Principal    string              `json:"principal,omitempty"`  // the party to which the owner's rules apply, if not the peer
	Address      string              `json:"address,omitempty"`    // of a foreign peer
	Conversation wire.ConversationID `json:"conversation_id"`
	MessageID    wire.MessageID      `json:"message_id"`
	Intent       wire.Intent         `json:"intent"`
	Payload      json.RawMessage     `json:"payload"`          // canonical form of the verified bytes
	Verified     string              `json:"verified"`         // how the sender was verified: "signature", "bearer", "none"
	Trust        string              `json:"trust"`            // what the rules said about the sender; "" for a stranger
	ActionKnown  bool                `json:"action_known"`     // the intent defines the action of the payload
	Sealed       bool                `json:"sealed,omitempty"` // only this node could decrypt it

	At       time.Time `json:"at"`
	Route    string    `json:"route,omitempty"` // name of the hook that handles it
	Attempt  int       `json:"attempt,omitempty"`
	Pending  bool      `json:"pending,omitempty"`  // the sender got pending_approval
	Approved bool      `json:"approved,omitempty"` // the owner released it to the hook
	Ask      string    `json:"ask,omitempty"`      // id of the question to the owner
	Note     string    `json:"note,omitempty"`     // why it failed; our text, not the peer's

	Unjudged bool     `json:"unjudged,omitempty"` // the guard has not let it through, so no agent of the owner sees it
	Verdict  *Verdict `json:"verdict,omitempty"`  // of the guard; for the owner only

	Failure *HookFailure `json:"failure,omitempty"` // with the states waiting and failed, if the hook failed
	RetryAt time.Time    `json:"retry_at,omitzero"` // with the state waiting

	About string `json:"about,omitempty"` // with a task: what it is about, such as "mess/2026-11-22-001"
	Turn  string `json:"turn,omitempty"`  // with a task: what is to be done, as the bridge names it

	Cancels        string    `json:"cancels,omitempty"`      // UID of the agreed event that it cancels
	ConfirmsAccept bool      `json:"takes_accept,omitempty"` // this item is the peer's answer that makes our accept count
	Woken          time.Time `json:"woken,omitzero"`         // when the hook woke an agent that answers later
	Reminded       time.Time `json:"reminded,omitzero"`      // when that agent was woken a second time

	Digest  string    `json:"digest"` // hex SHA-256 of the canonical bytes
	Expires time.Time `json:"expires"`
}

// Verdict is what the guard said about a message.
type Verdict struct {
	Key      string `json:"key"`      // of what the guard was asked
	Decision string `json:"decision"` // "allow", "review" or "deny"
	Reason   string `json:"reason,omitempty"`
}

// Guarded is the state in a [Query] for the items that the guard stopped, see [Item.Judgment]. No item has it, and only the
// owner may ask for it.
const Guarded ItemState = "guard"

// Judgment returns why the guard stopped the item, for the owner, or "".
func (i Item) Judgment() string {
	switch v := i.Verdict; {
	case v == nil && i.Unjudged && i.State == ItemFailed:
		return "no verdict"
	case v == nil || v.Decision == "allow":
		return ""
	case v.Reason == "":
		return v.Decision
	}
	return i.Verdict.Decision + ": " + i.Verdict.Reason
}

// NeedsOwner is the state in a [Query] for the items that need the owner, see [Item.NeedsOwner]. No item has it.
const NeedsOwner = "needs-owner"

// NeedsOwner reports whether the item waits for a person: its hook failed, or it is new and is more than a receipt, the
// end of a matter, or a message that asks for nothing. A new item always waits for a person if it has a note, cancels
// an agreed event, or has a custom intent and is not a reply. An accept asks for nothing if plainAccept is true, that
// is, if it leaves nothing for the owner to clarify.
func (i Item) NeedsOwner(plainAccept bool) bool {
	switch {
	case i.State != ItemNew:
		return i.State == ItemFailed
	case i.Note != "" || i.Cancels != "":
		return true
	}
	payload, err := wire.ParseObject(i.Payload)
	isReply := i.Kind == "reply"
	if err != nil || !isReply && !i.Intent.IsStandard() {
		return true
	}
	switch payload.GetStr("action") {
	case wire.ActionReceived, wire.ActionPending, wire.ActionClose, "decline", "reject", "withdraw", "cancel":
		return false
	case "accept":
		return !plainAccept
	case "propose", "counter", "ask", "request_human":
		return true
	}
	message, _ := payload.Get("message")
	wants, _ := message.Get("reply_requested")
	return wants.Kind() == wire.True || !isReply && wants.Kind() != wire.False // only a reply needs no reply by default
}

// showAt returns the item for a request that came through a door, see [Door]. Only the owner, not the owner's agent,
// sees how a hook failed.
func (i Item) showAt(door string) Item {
	if door == httpapi.DoorOfAgent {
		i.Failure = nil
	}
	return i
}

// HookFailure is how a hook failed for an item. It is only for the owner: Stderr may have secrets of the owner.
type HookFailure struct {
	Fault  string    `json:"fault,omitempty"`       // "timeout", "crashed", "unreachable", "rubbish" or "too-large"
	Reason string    `json:"reason"`                // our text
	Exit   int       `json:"exit_status,omitempty"` // of a program that reported an error
	Stderr string    `json:"stderr,omitempty"`      // the last 2 KiB; untrusted
	Since  time.Time `json:"since"`                 // of the first failure in a row
	At     time.Time `json:"at"`
	Times  int       `json:"times"` // failures in a row
}

// Inbox has the messages that were accepted for the owner.
type Inbox interface {
	// ListItems lists items in the order of arrival. It waits up to q.Wait for a first item. If q names a conversation,
	// it does not wait, and returns all items of that conversation.
	ListItems(ctx context.Context, q Query) (List[Item], error)
	// FindItem returns the item with an id or a unique prefix of one.
	FindItem(ctx context.Context, id string) (Item, error)
	// Acknowledge marks a new, failed or waiting item as read. Any other item stays as it is.
	Acknowledge(ctx context.Context, id string) (Item, error)
	// RetryItem runs the hook of a waiting or failed item again at once.
	RetryItem(ctx context.Context, id string) (Item, error)
}

// The operations of the inbox.
var (
	ListInbox   = Endpoint[None, List[Item]]{http.MethodGet, "/inbox", Read}
	ShowItem    = Endpoint[None, Item]{http.MethodGet, "/inbox/:id", Read}
	Acknowledge = Endpoint[None, Item]{http.MethodPost, "/inbox/:id/ack", Read}
	RetryItem   = Endpoint[None, Item]{http.MethodPost, "/inbox/:id/retry", Decide}
)

func inboxOperations(n Inbox) []Operation {
	return []Operation{
		ListInbox.Serve(func(c echo.Context, _ None) (List[Item], error) {
			states := ItemStates()
			if Door(c) != httpapi.DoorOfAgent {
				states = append(states, Guarded)
			}
			q, err := ReadQuery(c, states...)
			if err != nil {
				return List[Item]{}, err
			}
			if err := httpapi.KeepOpen(c, q.Wait+10*time.Second); err != nil {
				return List[Item]{}, err
			}
			list, err := n.ListItems(c.Request().Context(), q)
			for i := range list.Items {
				list.Items[i] = list.Items[i].showAt(Door(c))
			}
			return list, err
		}),
		ShowItem.Serve(func(c echo.Context, _ None) (Item, error) {
			item, err := n.FindItem(c.Request().Context(), c.Param("id"))
			return item.showAt(Door(c)), err
		}),
		Acknowledge.Serve(func(c echo.Context, _ None) (Item, error) {
			item, err := n.Acknowledge(c.Request().Context(), c.Param("id"))
			return item.showAt(Door(c)), err
		}),
		RetryItem.Serve(func(c echo.Context, _ None) (Item, error) {
			return n.RetryItem(c.Request().Context(), c.Param("id"))
		}),
	}
}
