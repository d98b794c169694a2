package node

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const nsInbox = "inbox"

// ItemState says what became of an inbox item.
type ItemState string

const (
	ItemNew         ItemState = "new"         // waits for the owner or the owner's agent
	ItemRead        ItemState = "read"        // acknowledged without a reply
	ItemRunning     ItemState = "running"     // a hook works on it
	ItemAnswered    ItemState = "answered"    // a reply is stored
	ItemHeld        ItemState = "held"        // waits for the owner's decision
	ItemRejected    ItemState = "rejected"    // the owner, or the agent, refused it
	ItemWithdrawn   ItemState = "withdrawn"   // its sender took it back while it was held, or the conversation ended
	ItemExpired     ItemState = "expired"     // the owner did not decide in time
	ItemFailed      ItemState = "failed"      // the hook failed; the owner may still answer
	ItemInterrupted ItemState = "interrupted" // a crash came between; the owner decides whether the hook runs again
)

var itemStates = []ItemState{
	ItemNew, ItemRead, ItemRunning, ItemAnswered, ItemHeld, ItemRejected, ItemWithdrawn, ItemExpired,
	ItemFailed, ItemInterrupted,
}

// unanswered are the states of an item that the owner, or the owner's agent, may still answer.
var unanswered = []ItemState{ItemNew, ItemRead, ItemFailed, ItemInterrupted, ItemHeld}

func (i Item) answerable() error {
	if !slices.Contains(unanswered, i.State) {
		return ErrAnswered
	}
	return nil
}

// Item is one message in the inbox. Payload, and everything else a peer wrote, is untrusted text.
type Item struct {
	ID    string    `json:"id"`
	State ItemState `json:"state"`
	Kind  string    `json:"kind"` // "message", "reply" for a synchronous answer to one of ours, "task" for what a bridge lays there

	Peer         wire.AgentID        `json:"peer"`
	PeerName     string              `json:"peer_name,omitempty"`
	Principal    string              `json:"principal,omitempty"` // where it is not the peer
	Address      string              `json:"address,omitempty"`   // of a foreign peer
	Conversation wire.ConversationID `json:"conversation_id"`
	MessageID    wire.MessageID      `json:"message_id"`
	Intent       wire.Intent         `json:"intent"`
	Payload      json.RawMessage     `json:"payload"` // canonical form of what was verified
	Verified     string              `json:"verified"`
	Trust        string              `json:"trust"`
	ActionKnown  bool                `json:"action_known"`
	Sealed       bool                `json:"sealed,omitempty"` // only this node could read it on its way

	At      time.Time `json:"at"`
	Route   string    `json:"route,omitempty"` // name of the hook that has it
	Attempt int       `json:"attempt,omitempty"`
	Pending bool      `json:"pending,omitempty"`  // the sender was told pending_approval
	Let     bool      `json:"approved,omitempty"` // the owner let it through to the hook
	Ask     string    `json:"ask,omitempty"`      // what the owner was asked
	Note    string    `json:"note,omitempty"`     // why it failed; ours, not the peer's

	About string `json:"about,omitempty"` // with a task: its matter, "mess/2026-11-22-001"
	Turn  string `json:"turn,omitempty"`  // and what is to be done about it, in the bridge's words

	Cancels  string    `json:"cancels,omitempty"`      // UID of the agreed event that it takes back
	Takes    bool      `json:"takes_accept,omitempty"` // with it the peer took our accept, which waited for its answer
	Woken    time.Time `json:"woken,omitzero"`         // when an agent was woken that answers later
	Reminded time.Time `json:"reminded,omitzero"`      // when it was woken a second time

	Digest  string    `json:"digest"` // hex SHA-256 of the canonical bytes
	Expires time.Time `json:"expires"`
	rev     store.Rev
}

// newItem returns the record of an accepted message.
func (a *acceptance) newItem(state ItemState) Item {
	in := a.in
	item := Item{
		ID: newItemID(a.now), State: state, Kind: kindMessage,
		Peer: in.Peer, PeerName: in.Name, Address: in.Address,
		Conversation: in.ConvID, MessageID: in.MessageID, Intent: in.Intent,
		Payload: signing.Canonical(in.Payload, signing.JCS), Verified: in.Verified, Trust: string(a.standing),
		ActionKnown: a.known, Sealed: a.seal.sealed,
		Cancels: a.event, Takes: a.takes, At: a.now, Digest: fmt.Sprintf("%x", in.Digest),
		Expires: conversations.Sooner(a.now.Add(a.n.cfg.Retention), in.Purge),
	}
	if in.Principal != string(in.Peer) {
		item.Principal = in.Principal
	}
	return item
}

// newItemID returns a unique id whose order is the order of arrival.
func newItemID(at time.Time) string {
	return fmt.Sprintf("in_%012x%03x%s", at.UnixMilli(), at.UnixMicro()%1000, strings.ToLower(rand.Text()[:8]))
}

func (i Item) key() store.ConvKey {
	return store.ConvKey{Peer: string(i.Peer), ID: string(i.Conversation)}
}

// acts is who access rules act on.
func (i Item) acts() string {
	if i.Principal != "" {
		return i.Principal
	}
	return string(i.Peer)
}

// change writes the item if its revision is still the one it was read at.
func (i Item) change() store.Change {
	body, err := json.Marshal(i)
	if err != nil {
		panic(fmt.Sprintf("encode inbox item: %v", err)) // only fields we filled
	}
	return store.Change{IfRev: i.rev, Record: store.Record{
		NS: nsInbox, Key: i.ID, Body: body, Expires: i.Expires,
		Terms: i.terms(),
	}}
}

// termWoken finds the items that an agent was woken for and has not dealt with.
const termWoken = "woken"

func (i Item) terms() []string {
	terms := []string{"state:" + string(i.State)}
	switch {
	case i.Kind != kindTask:
		terms = append(terms, convTerm(i.key()))
	case i.answerable() == nil:
		terms = append(terms, aboutTerm(i.About))
	}
	if i.State == ItemNew && !i.Woken.IsZero() {
		terms = append(terms, termWoken)
	}
	return terms
}

func decodeItem(r store.Record) (Item, error) {
	var i Item
	if err := json.Unmarshal(r.Body, &i); err != nil {
		return Item{}, fmt.Errorf("decode inbox item: %w", err)
	}
	i.rev = r.Rev
	return i, nil
}

// Item returns one inbox item; store.ErrNotFound where there is none.
func (n *Node) Item(ctx context.Context, id string) (Item, error) {
	r, err := n.store.Records().Get(ctx, nsInbox, id, time.Now())
	if err != nil {
		return Item{}, err
	}
	return decodeItem(r)
}

// Inbox lists items in the order of their arrival, those in state (all where it is empty), after the item named
// after. next is empty on the last page.
func (n *Node) Inbox(ctx context.Context, state ItemState, after string, limit int) (items []Item, next string, err error) {
	term := ""
	if state != "" {
		term = "state:" + string(state)
	}
	page, err := n.store.Records().List(ctx, nsInbox, term, after, limit, time.Now())
	if err != nil {
		return nil, "", err
	}
	for _, r := range page.Records {
		item, err := decodeItem(r)
		if err != nil {
			return nil, "", err
		}
		items = append(items, item)
	}
	return items, page.Next, nil
}

// WaitInbox is [Node.Inbox] that waits up to wait for a first item.
func (n *Node) WaitInbox(ctx context.Context, state ItemState, after string, limit int, wait time.Duration) ([]Item, string, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		news := n.fresh.wait()
		items, next, err := n.Inbox(context.WithoutCancel(ctx), state, after, limit)
		if err != nil || len(items) > 0 {
			return items, next, err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, "", nil
		}
	}
}

// Acknowledge marks a new item as read.
func (n *Node) Acknowledge(ctx context.Context, id string) (Item, error) {
	var item Item
	err := n.book.Do(ctx, noConversation, func(u *conversations.Unit) (err error) {
		if item, err = n.Item(ctx, id); err != nil || item.State != ItemNew && item.State != ItemFailed {
			return err
		}
		item.State = ItemRead
		u.Add(item.change())
		return nil
	})
	return item, err
}

// noConversation is the key of a unit that changes records alone.
var noConversation store.ConvKey

// itemsOf returns the items of a conversation that are in one of states, in any where none is named.
func (n *Node) itemsOf(ctx context.Context, key store.ConvKey, states ...ItemState) (items []Item, err error) {
	for after := ""; ; {
		page, err := n.store.Records().List(ctx, nsInbox, convTerm(key), after, 100, time.Now())
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			item, err := decodeItem(r)
			if err != nil {
				return nil, err
			}
			if len(states) == 0 || slices.Contains(states, item.State) {
				items = append(items, item)
			}
		}
		if after = page.Next; after == "" {
			return items, nil
		}
	}
}

func convTerm(key store.ConvKey) string { return "conv:" + key.Peer + "/" + key.ID }

// call is what a hook is told about the item.
func (n *Node) call(ctx context.Context, item Item, m wire.Message, conv conversations.Conversation) hook.Call {
	const history = 20 // entries a hook is shown; older ones are in the owner API
	after := conv.Entries - min(conv.Entries, history)
	entries, err := n.book.Transcript(ctx, item.key(), after, history)
	if err != nil {
		n.log.Warn("read transcript for hook", "conversation", item.Conversation, "err", err)
	}
	if m.ID == "" { // of a foreign peer
		m = wire.Message{
			ID: item.MessageID, Conversation: item.Conversation, From: item.Peer, To: n.ID(), Time: item.At, Intent: item.Intent,
		}
	}
	return hook.Call{
		Message: m, Payload: item.Payload, Conversation: conv, History: entries,
		Sender:      hook.Sender{AgentID: item.Peer, Name: item.PeerName, Verified: item.Verified, Trust: item.Trust},
		ActionKnown: item.ActionKnown, Sealed: item.Sealed, Attempt: item.Attempt, Approved: item.Let, Reply: item.Kind == kindReply,
		Reminder: !item.Reminded.IsZero(),
	}
}
