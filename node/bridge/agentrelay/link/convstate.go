package link

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The link stores the state of conversations (AR-57): which ref belongs to which conversation, the latest conversation
// of each peer, what an answer to each message refers to, and what each message of the node answers. A record expires a
// day after the message that last wrote it. The node stores the messages themselves.
const (
	nsRefs  = "agentrelay/refs"
	nsConvs = "agentrelay/talk"

	keepConv = 24 * time.Hour
)

// convState is what the link stores about a conversation.
type convState struct {
	Conv      wire.ConversationID `json:"conv"`
	Ref       string              `json:"ref,omitempty"`       // the ref of a reply to the peer's last message (AR-28)
	Answering string              `json:"answering,omitempty"` // type of the peer's last message
	Answer    wire.MessageID      `json:"answer,omitempty"`    // the node's answer to the peer's last message, if the peer asked a question
	Asked     bool                `json:"asked,omitempty"`     // the last question in the conversation was the node's
	LastOurs  bool                `json:"ours,omitempty"`      // the node wrote last; its provisional answers do not count
	Mesh      bool                `json:"mesh,omitempty"`      // the peer is an AgentMesh node
}

// answeringTo returns the type of the peer's message that a message of the node answers. id is the id of the node's
// message. If another message of the node has already answered, answeringTo returns "".
func (s convState) answeringTo(id wire.MessageID) string {
	if s.Answer != "" && s.Answer != id {
		return ""
	}
	return s.Answering
}

// convStore stores the conversation states of a link.
type convStore struct {
	records store.Records
	link    string
}

func (c convStore) refKey(peer, ref string) string {
	return c.link + "/" + wire.HashOf(peer, "ref", ref)
}
func (c convStore) lastKey(peer string) string { return c.link + "/" + wire.HashOf(peer, "last") }
func (c convStore) key(peer string, conv wire.ConversationID) string {
	return c.link + "/" + wire.HashOf(peer, "conv", string(conv))
}

// messageKey returns the key of the state that a conversation had after a message of the peer.
func (c convStore) messageKey(peer string, id wire.MessageID) string {
	return c.link + "/" + wire.HashOf(peer, "message", string(id))
}

// baseKey returns the key of the state that decides what a message of the node answers.
func (c convStore) baseKey(peer string, id wire.MessageID) string {
	return c.link + "/" + wire.HashOf(peer, "asked", string(id))
}

// putFor returns the change that stores a record until keepConv after now.
func putFor(now time.Time, ns, key string, body []byte) store.Change {
	return store.Change{IfRev: store.Any, Record: store.Record{NS: ns, Key: key, Body: body, Expires: now.Add(keepConv)}}
}

// findByRef returns the conversation that a ref or message id belongs to. It reports false if it finds none.
func (c convStore) findByRef(ctx context.Context, peer, ref string, now time.Time) (wire.ConversationID, bool, error) {
	if ref == "" {
		return "", false, nil
	}
	rec, err := c.records.Get(ctx, nsRefs, c.refKey(peer, ref), now)
	if errors.Is(err, store.ErrNotFound) {
		return "", false, nil
	}
	return wire.ConversationID(rec.Body), err == nil, err
}

// read returns the state under key, or the zero state if no record exists.
func (c convStore) read(ctx context.Context, key string, now time.Time) (convState, error) {
	var out convState
	_, _, err := store.ReadRecord(ctx, c.records, nsConvs, key, &out, now)
	return out, err
}

// readBase returns the state that decides what a message of the node answers: the state that its first attempt
// stored, or else the state after the peer's message that m names, or else current. A later attempt must send the
// same frame, whatever the peer has sent meanwhile.
func (c convStore) readBase(ctx context.Context, peer string, m wire.Message, current convState, now time.Time) (convState, error) {
	keys := []string{c.baseKey(peer, m.ID)}
	if id := conversations.AnswersIn(m.Payload); id != "" {
		keys = append(keys, c.messageKey(peer, id))
	}
	for _, key := range keys {
		if base, err := c.read(ctx, key, now); err != nil || base.Conv != "" {
			return base, err
		}
	}
	return current, nil
}

// putBase returns the change that stores the state that readBase returned, for later attempts at the message.
func (c convStore) putBase(peer string, m wire.Message, base convState, now time.Time) store.Change {
	base.Conv = m.Conversation // base has no id yet if the message opens the conversation
	return putFor(now, nsConvs, c.baseKey(peer, m.ID), wire.MustMarshal(base))
}

// changes returns the changes that store the state of a conversation after a message. receivedID is the id of the
// message if the peer wrote it, else "". refs are the ids by which the peer may refer to the conversation.
func (c convStore) changes(peer string, next convState, receivedID wire.MessageID, refs []string, now time.Time) []store.Change {
	body := wire.MustMarshal(next)
	out := []store.Change{putFor(now, nsConvs, c.key(peer, next.Conv), body), putFor(now, nsConvs, c.lastKey(peer), body)}
	if receivedID != "" {
		out = append(out, putFor(now, nsConvs, c.messageKey(peer, receivedID), body))
	}
	for i, ref := range refs {
		if ref != "" && !slices.Contains(refs[:i], ref) { // the store accepts each record only once
			out = append(out, putFor(now, nsRefs, c.refKey(peer, ref), []byte(next.Conv)))
		}
	}
	return out
}

// conversation returns the first of these that exists (AR-57): the conversation that an AgentMesh node names, the one
// to which the message's id or ref belongs, the peer's latest if the node wrote last in it, or a new one.
func (c convStore) conversation(ctx context.Context, h *incoming, now time.Time) (wire.ConversationID, error) {
	if h.conv != "" {
		return h.conv, nil
	}
	for _, ref := range []string{h.id, h.ref} {
		if conv, ok, err := c.findByRef(ctx, h.from, ref, now); ok || err != nil {
			return conv, err
		}
	}
	last, err := c.read(ctx, c.lastKey(h.from), now)
	if err != nil {
		return "", err
	}
	if last.LastOurs && last.Conv.Valid() {
		return last.Conv, nil
	}
	return c.newID(h), nil
}

// newID returns the id of the conversation that a message opens. It is the same for each delivery of the message.
func (c convStore) newID(h *incoming) wire.ConversationID {
	return wire.ConversationID("conv_" + wire.HashOf(c.link, h.from, "opens", h.id))
}
