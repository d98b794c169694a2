package node

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Send implements [owner.Messages].
func (o OwnerAPI) Send(ctx context.Context, m owner.NewMessage, wait time.Duration) (owner.Sent, error) {
	to, address, err := o.resolveRecipient(ctx, m.To)
	if err != nil {
		return owner.Sent{}, err
	}
	if m.Conversation != "" && !m.Conversation.Valid() {
		return owner.Sent{}, owner.Fault(http.StatusBadRequest, "conversation must be a conversation id (conv_…)", "leave it out to start one")
	}
	out := Outgoing{To: to, Address: address, Conv: m.Conversation, Intent: m.Intent, Payload: m.Payload, Seal: m.Seal, Via: owner.Author(m.By)}
	if m.IdempotencyKey == "" {
		sent, err := o.send(ctx, out, wait)
		sent.To = to
		return sent, err
	}
	if out.repeat, err = newRepeatKey(m); err != nil {
		return owner.Sent{}, err
	}
	sent, err := out.repeat.find(ctx, o.n)
	sent = o.hideReply(ctx, out, sent)
	if errors.Is(err, store.ErrNotFound) {
		if sent, err = o.send(ctx, out, wait); errors.Is(err, store.ErrConflict) { // the same call came twice at once
			sent, err = out.repeat.find(ctx, o.n)
		}
	}
	sent.To = to
	return sent, err
}

// nsRepeats holds the results of calls with an idempotency key, each for keepRepeats. maxRepeats bounds how many results
// are added in an hour; it is more than the number of messages that the agent may send.
const (
	nsRepeats   = "repeats"
	keepRepeats = 24 * time.Hour
	maxRepeats  = 10_000
)

// repeatKey recognizes a repeated call of Send.
type repeatKey struct {
	key    string // of the record
	digest string // of the call
}

// repeatResult is the stored result of a call.
type repeatResult struct {
	Digest string     `json:"digest"`
	Sent   owner.Sent `json:"sent"`
	Entry  string     `json:"entry,omitempty"` // in the outbox; empty for a message that waited for the owner
}

func newRepeatKey(m owner.NewMessage) (*repeatKey, error) {
	if len(m.IdempotencyKey) > 128 {
		return nil, owner.Fault(http.StatusBadRequest, "idempotency_key must have at most 128 bytes", "")
	}
	call := wire.Texts([]string{m.To, string(m.Conversation), string(m.Intent), string(m.Payload.JSON()), string(m.Seal)})
	return &repeatKey{acl.HashBody([]byte(owner.Author(m.By) + "\n" + m.IdempotencyKey)), acl.HashBody(call.JSON())}, nil
}

// changes returns the change that stores the result of the call, if k is not nil. It fails with store.ErrConflict if a
// result with the same key is stored.
func (k *repeatKey) changes(sent owner.Sent, entry string, now time.Time) []store.Change {
	if k == nil {
		return nil
	}
	hour := []string{now.UTC().Format("2006-01-02T15")}
	return []store.Change{{Max: maxRepeats, Record: store.Record{NS: nsRepeats, Key: k.key, Body: wire.MustMarshal(repeatResult{k.digest, sent, entry}), Terms: hour, Expires: now.Add(keepRepeats)}}}
}

// find returns what is known now of the message of an earlier call with the key, or store.ErrNotFound if there was none.
// If that call sent another message, it returns a fault with status 409.
func (k *repeatKey) find(ctx context.Context, n *Node) (owner.Sent, error) {
	rec, err := n.store.Records().Get(ctx, nsRepeats, k.key, time.Now())
	if err != nil {
		return owner.Sent{}, err
	}
	r, err := store.Decode[repeatResult](rec)
	if err != nil {
		return owner.Sent{}, err
	}
	if r.Digest != k.digest {
		return owner.Sent{}, owner.Fault(http.StatusConflict, "another message was sent with this idempotency_key", "choose a new key for a new message")
	}
	if r.Sent.Ask != "" {
		return n.releasedNow(ctx, r.Sent)
	}
	return n.sentNow(ctx, r.Entry, r.Sent)
}

// sentNow returns what is known now of the message in an outbox entry.
func (n *Node) sentNow(ctx context.Context, entry string, before owner.Sent) (owner.Sent, error) {
	e, err := n.loadEntry(ctx, entry)
	if errors.Is(err, store.ErrNotFound) { // deleted with its conversation
		before.State = owner.SendUnknown
		return before, nil
	}
	return queuedMessage{n: n, out: Outgoing{entryID: entry}}.addReply(ctx, e.sent()), err
}

// releasedNow returns what is known now of a message that waited for the owner.
func (n *Node) releasedNow(ctx context.Context, before owner.Sent) (owner.Sent, error) {
	ask, err := n.asks.Get(ctx, before.Ask, time.Now())
	switch {
	case errors.Is(err, store.ErrNotFound):
		before.State = owner.SendUnknown
		return before, nil
	case err != nil || ask.State == acl.AskPending:
		return before, err
	case ask.State != acl.AskApproved:
		before.State, before.Err = owner.SendFailed, &owner.SendFailure{Message: "the owner did not approve it: " + string(ask.State)}
		return before, nil
	}
	for e, err := range n.allEntries(ctx, convTerm(ask.Conv)) {
		if err != nil || e.Created.Equal(ask.Decided) { // both have the time of the decision
			return n.sentNow(ctx, e.ID, before)
		}
	}
	before.State = owner.SendUnknown
	return before, nil
}

// resolveRecipient returns the agent id for what the owner typed. For a foreign address, such as
// "agentrelay:free/agent-042", that is the pseudonym, and the address is returned too.
func (o OwnerAPI) resolveRecipient(ctx context.Context, name string) (to wire.AgentID, address string, err error) {
	a, err := bridge.ParseAddress(name)
	if _, ok := o.n.bridges.find(a.Kind); ok && err == nil {
		return a.Pseudonym(), a.String(), nil
	}
	to, err = o.resolveShown(ctx, name)
	return to, "", err
}

// Reply implements [owner.Messages].
func (o OwnerAPI) Reply(ctx context.Context, m owner.NewReply, wait time.Duration) (owner.Sent, error) {
	var out Outgoing
	if m.Item != "" {
		item, err := o.findItem(ctx, m.Item)
		if err != nil {
			return owner.Sent{}, err
		}
		if item.Kind == kindTask {
			sent, err := o.answerTask(ctx, item, m)
			return sent, explainSeal(err)
		}
		if out, err = o.newAnswer(ctx, item); err != nil {
			return owner.Sent{}, err
		}
	} else {
		key, err := o.resolveConversation(ctx, m.Conversation, m.Peer)
		if err != nil {
			return owner.Sent{}, err
		}
		if out, err = o.newReply(ctx, key, m); err != nil {
			return owner.Sent{}, err
		}
	}
	out.Payload, out.Seal, out.Via, out.seen = m.Payload, m.Seal, owner.Author(m.By), m.Proposal
	out.Intent = cmp.Or(m.Intent, out.Intent)
	return o.send(ctx, out, wait)
}

// newReply returns a message that continues a conversation with m. It answers the standing proposal or the
// agreement if the action is about one. Otherwise it answers the newest message that waits for an answer, if any.
func (o OwnerAPI) newReply(ctx context.Context, key store.ConvKey, m owner.NewReply) (Outgoing, error) {
	conv, err := o.loadConversation(ctx, key, time.Now())
	if err != nil {
		return Outgoing{}, err
	}
	out := newFollowUp(conv)
	items, err := o.n.itemsOf(ctx, key)
	if err != nil {
		return Outgoing{}, err
	}
	about, isAbout := conv.Matter(m.Payload.GetStr("action"), m.Intent, m.Proposal)
	for _, item := range items {
		if item.Kind != kindMessage || !item.State.IsUnanswered() {
			continue
		}
		isAbout = isAbout && !item.isHeldProposal() // the owner may answer it before it takes effect
		if !isAbout || item.Intent == about.Intent {
			out.InReplyTo, out.Answers, out.Intent = item.MessageID, item.ID, item.Intent
		}
	}
	if isAbout {
		out.Intent, out.InReplyTo = about.Intent, cmp.Or(about.Message, out.InReplyTo)
	}
	return out, nil
}

// newAnswer returns an answer to one inbox item, or ErrAnswered if the item does not wait any more.
func (o OwnerAPI) newAnswer(ctx context.Context, item Item) (Outgoing, error) {
	if !item.State.IsUnanswered() {
		return Outgoing{}, ErrAnswered
	}
	conv, err := o.loadConversation(ctx, item.key(), time.Now())
	if err != nil {
		return Outgoing{}, err
	}
	out := newFollowUp(conv)
	out.Answers, out.Once, out.Intent = item.ID, true, item.Intent
	if item.Kind == kindMessage {
		out.InReplyTo = item.MessageID
	}
	return out, nil
}

// isHeldProposal reports whether the item is a proposal that waits for the owner.
func (i Item) isHeldProposal() bool {
	payload, err := wire.Parse(i.Payload)
	return err == nil && i.State == owner.ItemHeld && slices.Contains([]string{"propose", "counter"}, payload.GetStr("action"))
}

// newFollowUp returns a message without a payload, with the intent of the peer's newest message.
func newFollowUp(conv conversations.Conversation) Outgoing {
	return Outgoing{
		To: wire.AgentID(conv.Key.Peer), Address: conv.Address, Conv: wire.ConversationID(conv.Key.ID),
		Intent: cmp.Or(conv.HeardIntent, conv.Intent), Via: "owner",
	}
}

// send checks a message that the owner wrote, and sends it.
func (o OwnerAPI) send(ctx context.Context, out Outgoing, wait time.Duration) (owner.Sent, error) {
	if !out.Seal.IsValid() {
		return owner.Sent{}, owner.Fault(http.StatusBadRequest, `seal must be "seal" or "open"`, "leave it out to follow outgoing.seal")
	}
	if out.Payload.Kind() != wire.Object {
		return owner.Sent{}, owner.Fault(http.StatusBadRequest, "payload must be a JSON object", "")
	}
	if !out.Intent.IsStandard() && !out.Intent.IsCustom() {
		return owner.Sent{}, owner.Fault(http.StatusBadRequest, "intent is neither a mesh.* name nor a reverse-domain name", "for example mesh.schedule, com.example.invoice")
	}
	if _, err := wire.CheckPayload(out.Intent, out.Payload); err != nil {
		return owner.Sent{}, owner.Fault(http.StatusBadRequest, err.Error(), "")
	}
	if err := checkReleased(ctx, o, out); err != nil {
		return owner.Sent{}, err
	}
	sent, err := o.n.SendForAnswer(ctx, out, wait)
	sent = o.hideReply(ctx, out, sent)
	if errors.Is(err, wire.ErrConversationClosed) {
		err = owner.Fault(http.StatusConflict, "the conversation has ended", "start a new one with: agentmesh send")
	}
	return sent, explainSeal(err)
}

// checkReleased returns [httpapi.ErrOwnerDecides] if the owner's agent wrote the message and another message waits for
// the owner in the same conversation: an answer would release the waiting message.
func checkReleased(ctx context.Context, o OwnerAPI, out Outgoing) error {
	if out.Via != httpapi.DoorOfAgent || out.Conv == "" {
		return nil
	}
	held, err := o.n.itemsOf(ctx, out.key(), owner.ItemHeld)
	for _, item := range held {
		ask, err := o.findAsk(ctx, item.Ask)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		// If the question is no longer stored, it may have been about the message.
		if err != nil || ask.Kind == owner.AskMessage {
			return httpapi.ErrOwnerDecides
		}
	}
	return err
}

// explainSeal adds a hint to ErrCannotSeal.
func explainSeal(err error) error {
	if errors.Is(err, ErrCannotSeal) {
		return owner.Fault(http.StatusUnprocessableEntity, wire.OneLine(err.Error(), 300), "a card that its owner gave you counts as proven; add it with: agentmesh peers add FILE")
	}
	return err
}

// CancelEvent implements [owner.Messages].
func (o OwnerAPI) CancelEvent(ctx context.Context, m owner.Cancellation, wait time.Duration) (owner.Sent, error) {
	sent, err := o.n.CancelEvent(ctx, m, wait)
	return sent, explainSeal(err)
}

// ListOutbox implements [owner.Messages].
func (o OwnerAPI) ListOutbox(ctx context.Context, q owner.Query) (owner.List[owner.OutboxEntry], error) {
	if err := q.CheckAfter("out_", "an outbox entry"); err != nil {
		return owner.List[owner.OutboxEntry]{}, err
	}
	entries, next, err := o.n.listEntries(ctx, q.Newest, stateTerm(owner.SendState(q.State)), q.After, q.Limit)
	list := make([]owner.OutboxEntry, len(entries))
	for i, e := range entries {
		list[i] = e.OutboxEntry
	}
	return owner.Page(list, next), err
}
