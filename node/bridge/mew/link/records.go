package link

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsLinks is the namespace of the records of all links. Each key begins with the name of its link.
const nsLinks = "mew/links"

// records stores the state of a link.
type records struct {
	link  string
	store store.Records
	log   *slog.Logger
}

// These are the lifetimes of records. keepOpen follows the default lifetime of a conversation in a node.
const (
	keepOpen         = 24 * time.Hour
	keepSent         = 7 * 24 * time.Hour
	keepChat         = 30 * 24 * time.Hour
	keepConversation = 90 * 24 * time.Hour
)

// storedChat is a chat message that came to the node.
type storedChat struct {
	Message      wire.MessageID      `json:"message_id"`
	Conv         wire.ConversationID `json:"conversation_id"`
	From         string              `json:"from"`
	Envelope     string              `json:"envelope"`
	Digest       string              `json:"digest,omitempty"` // of the message, with which a later chat may cancel it
	Acknowledged string              `json:"said,omitempty"`   // the last acknowledgement
}

// statusRead is the acknowledgement of a chat that the owner has read or answered.
const statusRead = "read"

// sentEnvelope is an envelope of the node that somebody may answer.
type sentEnvelope struct {
	Conv     wire.ConversationID `json:"conversation_id"`
	Peer     string              `json:"peer"`               // the participant in the conversation
	Proposal string              `json:"proposal,omitempty"` // id of the proposal that the envelope fulfills
	To       []string            `json:"to,omitempty"`       // if Proposal is set: the participants who may answer, instead of Peer
}

// storedProposal is an unsettled proposal to the node. Its key is the conversation, because envelope ids may repeat.
type storedProposal struct {
	Conv     wire.ConversationID `json:"conversation_id"`
	From     string              `json:"from"`
	Envelope string              `json:"envelope"`
	Reason   string              `json:"reason,omitempty"` // the owner's reason for a rejection
}

// storedRequest is a request to the node that has no response yet.
type storedRequest struct {
	From     string          `json:"from"`
	Envelope string          `json:"envelope"`
	ID       json.RawMessage `json:"jsonrpc_id"` // any JSON value: a wire.Value refuses some numbers when it is read
}

// load reads a record of the link. ok is false if the record does not exist or cannot be read.
func load[T any](ctx context.Context, r *records, kind, rest string) (v T, ok bool) {
	if rest == "" || len(rest) > 300 { // a foreign id may be too long for a key
		return v, false
	}
	_, ok, err := store.ReadRecord(ctx, r.store, nsLinks, r.key(kind, rest), &v, time.Now())
	if err != nil && ctx.Err() == nil {
		r.log.Warn("state of the link cannot be read", "err", err)
	}
	return v, ok && err == nil
}

// openKey returns the part of a record key that names a conversation with a peer.
func openKey(peer wire.AgentID, conv wire.ConversationID) string {
	return string(peer) + "/" + string(conv)
}

const maxCounted = 1000 // records in the context of a link

// key returns the store key of a record. rest distinguishes the records of one kind.
func (r *records) key(kind, rest string) string { return r.link + "/" + kind + "/" + rest }

// remember returns the change that stores a record.
func (r *records) remember(kind, rest string, body any, keep time.Duration) store.Change {
	rec := store.Record{NS: nsLinks, Key: r.key(kind, rest), Body: wire.MustMarshal(body), Expires: time.Now().Add(keep), Terms: []string{r.link + "/" + kind}}
	return store.Change{Record: rec, IfRev: store.Any}
}

// rememberInContext works like remember, but the record also belongs to the context of the link, which
// participants may count and clear (MEW-L5).
func (r *records) rememberInContext(kind, rest string, body any, keep time.Duration) store.Change {
	c := r.remember(kind, rest, body, keep)
	c.Record.Terms = append(c.Record.Terms, r.link+"/context")
	return c
}

// drop returns the change that deletes a record.
func (r *records) drop(kind, rest string) store.Change {
	return store.Change{Record: store.Record{NS: nsLinks, Key: r.key(kind, rest)}, IfRev: store.Any, Delete: true}
}

// apply makes changes. It logs an error and does not return it.
func (r *records) apply(ctx context.Context, changes ...store.Change) {
	if err := r.store.Apply(ctx, changes, time.Now()); err != nil && ctx.Err() == nil {
		r.log.Warn("state of the link not stored", "err", err)
	}
}

// markOpen returns the change that records an open conversation with a participant; see onlyOpen.
func (r *records) markOpen(peer wire.AgentID, conv wire.ConversationID) store.Change {
	c := r.remember("open", openKey(peer, conv), conv, keepOpen)
	c.Record.Terms = []string{r.key("open", string(peer))}
	return c
}

// onlyOpen returns the only open conversation with a participant, or "" unless exactly one is open.
func (r *records) onlyOpen(ctx context.Context, peer wire.AgentID) wire.ConversationID {
	page, err := r.store.List(ctx, nsLinks, r.key("open", string(peer)), "", 2, time.Now())
	if err != nil || len(page.Records) != 1 {
		return ""
	}
	var conv wire.ConversationID
	if json.Unmarshal(page.Records[0].Body, &conv) != nil {
		return ""
	}
	return conv
}

// inContext counts the records in the context of the link: unread chats, and proposals and requests that wait (MEW-L5).
func (r *records) inContext(ctx context.Context) int {
	n, err := r.store.Count(ctx, nsLinks, r.link+"/context", maxCounted, time.Now())
	if err != nil {
		return 0
	}
	return n
}

// clear empties the context of the link. Questions to the owner and transcripts stay (MEW-L5).
func (r *records) clear(ctx context.Context) error {
	for {
		page, err := r.store.List(ctx, nsLinks, r.link+"/context", "", 200, time.Now())
		if err != nil || len(page.Records) == 0 {
			return err
		}
		changes := make([]store.Change, 0, len(page.Records))
		for _, rec := range page.Records {
			// The record stays, but no longer counts.
			rec.Terms = slices.DeleteFunc(rec.Terms, func(t string) bool { return t == r.link+"/context" })
			changes = append(changes, store.Change{Record: rec, IfRev: rec.Rev})
		}
		// After a conflict, the next turn reads what changed.
		if err := r.store.Apply(ctx, changes, time.Now()); err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}
