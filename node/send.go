package node

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Outgoing is a message that somebody on our side wants to send.
type Outgoing struct {
	To        wire.AgentID        `json:"to"`
	Address   string              `json:"address,omitempty"`         // foreign address of the peer; To is its pseudonym
	Conv      wire.ConversationID `json:"conversation_id,omitempty"` // empty: opens a new conversation
	Intent    wire.Intent         `json:"intent"`
	Payload   wire.Value          `json:"payload"`
	InReplyTo wire.MessageID      `json:"in_reply_to,omitempty"` // the peer's message that this one answers
	Answers   string              `json:"answers,omitempty"`     // the inbox item that this message answers
	Once      bool                `json:"once,omitempty"`        // send only if that item still waits for an answer
	Via       string              `json:"via"`                   // who wrote it: "owner", "agent", "hook", "bridge", "node"
	Seal      owner.SealChoice    `json:"seal,omitempty"`
	// Records are changes for the step that stores the message. They are lost if the owner must approve it first.
	Records []store.Change `json:"-"`

	repeat     *repeatKey          // makes a repeated call send nothing; may be nil
	entryID    string              // id of the outbox entry; empty: enqueue makes one
	fetchable  bool                // the step also stores the message as an answer for a repeat of the peer's message (AM-22)
	askExpires time.Time           // when the question to the owner would have expired; zero: no question
	sealTo     string              // age recipient; empty: no seal
	answered   wire.Intent         // of the message that this one answers, whose hold rules apply, too (AM-89); may be empty
	seen       wire.MessageID      // the message with the proposal that the writer saw, or ""
	unproven   *bridge.UnprovenKey // the owner must accept this key of the recipient first; may be nil
	mandate    *acl.HoldRule       // under whose mandate the message leaves, or nil
	proven     bool                // the recipient is an agent whose key is proven, or accepted by the owner
}

func (o Outgoing) key() store.ConvKey { return store.ConvKey{Peer: string(o.To), ID: string(o.Conv)} }

func (o Outgoing) isClose() bool { return o.Payload.GetStr("action") == wire.ActionClose }

// decision returns who decided about the message, once it leaves.
func (o Outgoing) decision() conversations.Decision {
	switch {
	case o.Via == "owner" || !o.askExpires.IsZero():
		return conversations.Decision{DecidedBy: conversations.ByOwner}
	case o.Via != "hook" && o.Via != httpapi.DoorOfAgent:
		return conversations.Decision{}
	case o.mandate != nil:
		return conversations.Decision{DecidedBy: conversations.ByAgent, Rule: o.mandate.Name}
	}
	return conversations.Decision{DecidedBy: conversations.ByAgent}
}

// ErrNoRecipient means that no configured directory lists the agent and the owner has not added its card (AM-45).
var ErrNoRecipient = &wire.Error{Code: wire.AgentUnavailable, Status: http.StatusNotFound, Message: "no configured directory lists this agent"}

// ErrRecipientChanged means that the recipient's key differs from the one that the owner was shown.
var ErrRecipientChanged = &wire.Error{
	Code: wire.InvalidSignature, Status: http.StatusConflict, Message: "the recipient's key is not the one you were shown; reject this and send it again",
}

// ErrOutboxFull means that too many messages wait for delivery, or were sent with an idempotency key in this hour.
var ErrOutboxFull = &wire.Error{Code: wire.AgentUnavailable, Status: http.StatusServiceUnavailable, Retry: true, Message: "too many messages wait for delivery, or were sent with an idempotency key in this hour"}

// ErrConversationFull means that the transcript has reached its maximum size. A close is still sent.
var ErrConversationFull = &wire.Error{
	Code: wire.RateLimited, Status: http.StatusTooManyRequests, Message: "the conversation is full; close it and start a new one",
}

// ErrAnswered means that the inbox item no longer waits for an answer.
var ErrAnswered = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusConflict, Message: "this inbox item does not wait for an answer any more"}

// Send sends a message, or asks the owner first if the outbound policy requires it. It stores the message before the
// first attempt (AM-46), and then waits for the outcome of that attempt, but no longer than wait. The error is a
// *[wire.Error] that explains what is wrong with the message, or an error of the store. After store.ErrUnavailable the
// message may be stored nevertheless. After any other error, nothing is stored.
func (n *Node) Send(ctx context.Context, out Outgoing, wait time.Duration) (owner.Sent, error) {
	if out.Conv == "" {
		out.Conv = wire.NewConversationID()
	}
	if err := n.checkSendable(ctx, &out); err != nil {
		return owner.Sent{}, err
	}
	if err := n.bindAnswer(ctx, &out, time.Now()); err != nil {
		return owner.Sent{}, err
	}
	if err := n.resolveSeal(ctx, &out, time.Now()); err != nil {
		return owner.Sent{}, err
	}
	p, err := n.permitJudged(ctx, out)
	if err != nil {
		return owner.Sent{}, err
	}
	if p.NeedsOwner {
		return n.askOutgoing(ctx, out, p)
	}
	out.mandate = p.Mandate
	queued, err := n.dispatch(ctx, out)
	if errors.Is(err, ErrOutboxFull) { // or other messages took the agent's last turns, or the last place of a mandate, meanwhile
		if p, err := n.permit(ctx, out, time.Now()); err == nil && p.NeedsOwner {
			return n.askOutgoing(ctx, out, p)
		}
	}
	if err != nil {
		return owner.Sent{}, err
	}
	sent := queued.await(ctx, wait)
	n.countSent(out, p)
	return sent, nil
}

// checkSendable checks and normalizes the message, and looks up the recipient.
func (n *Node) checkSendable(ctx context.Context, out *Outgoing) error {
	switch {
	case !out.To.Valid() || !out.Conv.Valid():
		return wire.ErrSchema.At("to and conversation must be ids")
	case out.To == n.ID():
		return owner.Fault(http.StatusBadRequest, "the recipient is this agent itself", "choose another agent: agentmesh discover lists some")
	case !out.Intent.IsStandard() && !out.Intent.IsCustom():
		return wire.ErrIntent
	}
	payload, err := conversations.CheckOwn(out.Intent, out.Payload)
	if err != nil {
		return wire.ErrPayload.At(err.Error()).Because(err)
	}
	out.Payload = payload
	if out.Address != "" {
		a, err := bridge.ParseAddress(out.Address)
		if err != nil || a.Pseudonym() != out.To {
			return wire.ErrSchema.At("to must be the pseudonym of the address")
		}
		if err := n.bridges.checkAddress(a); err != nil {
			return owner.Fault(http.StatusBadRequest, err.Error(), "")
		}
		return n.bridges.screen(ctx, a, payload)
	}
	_, out.unproven, err = n.findRecipient(ctx, out.To)
	out.proven = err == nil && out.unproven == nil
	if errors.Is(err, client.ErrUnknownAgent) {
		return ErrNoRecipient
	}
	return nil // other faults may be gone at the delivery
}

// dispatch adds the message to its conversation and to the outbox in one unit. The caller must call await or unwatch on
// the result.
func (n *Node) dispatch(ctx context.Context, out Outgoing) (queuedMessage, error) {
	p := posting{queuedMessage: queuedMessage{n: n}}
	err := n.book.Do(ctx, out.key(), func(u *conversations.Unit) error {
		p.unit, p.out = u, out
		return p.fill(ctx)
	})
	return p.result(err)
}

// queuedMessage is a message in the outbox whose first attempt is watched.
type queuedMessage struct {
	n       *Node
	out     Outgoing
	queued  owner.Sent
	first   <-chan owner.Sent // receives the outcome of the first attempt
	unwatch func()            // stops the watch
}

// await returns the outcome of the first attempt, or the state "queued" if wait passes first.
func (p queuedMessage) await(ctx context.Context, wait time.Duration) owner.Sent {
	defer p.unwatch()
	if wait <= 0 {
		return p.queued
	}
	select {
	case sent := <-p.first:
		if sent.State == owner.SendDelivered && sent.Reply == nil {
			return p.addReply(ctx, sent)
		}
		return sent
	case <-time.After(wait):
	case <-ctx.Done():
	}
	return p.queued
}

// addReply adds the reply to the outcome of an attempt by another process, if the reply can be read.
func (p queuedMessage) addReply(ctx context.Context, sent owner.Sent) owner.Sent {
	n := p.n
	e, err := n.loadEntry(ctx, p.out.entryID)
	if err != nil || e.Reply == "" {
		return sent
	}
	m, err := n.originalMessage(ctx, Item{Item: owner.Item{Peer: e.To, Conversation: e.Conversation, MessageID: e.Reply}})
	if err != nil {
		n.log.WarnContext(ctx, "reply cannot be read; the caller gets none", entryLogKey, e.ID, "err", err)
		return sent
	}
	opened, seal, _ := n.unsealReply(bridge.Delivered{Reply: &m})
	sent.Reply, sent.ReplyTree, sent.ReplySealed = &opened, m.Tree, seal.sealed
	if seal.sealed {
		sent.ReplyTree = m.Tree.With("payload", opened.Payload)
	}
	return sent
}

// posting builds the [conversations.Unit] that stores an outgoing message.
type posting struct {
	queuedMessage // what the unit stores
	unit          *conversations.Unit
	item          Item // the inbox item that the message answers; zero if it answers none
	approved      bool // by the owner
}

// result returns the queued message. If the commit failed with err, result returns err, translated for the caller.
func (p *posting) result(err error) (queuedMessage, error) {
	if errors.Is(err, store.ErrQuota) && !isRefusal(err) {
		err = ErrOutboxFull
	}
	return p.queuedMessage, err
}

// fill adds the message and everything that follows from it to the unit. It does not withdraw a question that the
// caller's changes already decide.
func (p *posting) fill(ctx context.Context) (err error) {
	u := p.unit
	p.item = Item{} // an earlier attempt at the unit may have set it
	if p.out.Answers != "" {
		if p.item, err = p.n.Item(ctx, p.out.Answers); err != nil {
			return err
		}
		p.out.fetchable = p.item.Pending && p.item.canRepeat()
	}
	if !u.IsNew() {
		p.out.Address = u.Conversation().Address // another network may have an agent with the same id
	}
	if u.IsFull() && !p.out.isClose() {
		return ErrConversationFull
	}
	if err := u.EndHold(p.out.askExpires); err != nil {
		return err
	}
	if err := p.release(ctx); err != nil {
		return err
	}
	p.out.entryID = p.n.newEntryID(u)
	opens := u.IsNew()
	s, err := p.n.enqueue(ctx, u, p.out)
	if err != nil {
		return err
	}
	if err := p.letIn(ctx, opens); err != nil {
		return err
	}
	if err := p.answer(ctx, s.Raw); err != nil {
		return err
	}
	if p.out.isTurn(p.item) {
		if err := p.takeTurn(ctx, p.out.asItem(s.Message.ID)); err != nil {
			return err
		}
	}
	if p.out.mandate != nil {
		p.n.useMandate(u, p.out, p.out.mandate)
	}
	u.Add(p.out.Records...)
	p.queued = owner.Sent{MessageID: s.Message.ID, Conversation: p.out.Conv, State: owner.SendQueued}
	u.Add(p.out.repeat.changes(p.queued, p.out.entryID, u.Now)...)
	p.first, p.unwatch = p.n.outbox.waiters.Expect(p.out.entryID)
	u.Otherwise(p.unwatch) // if the unit is not committed
	return nil
}

// takeTurn adds the agent's turn to the unit. The error is store.ErrQuota if none is left, unless the owner approved the
// message.
func (p *posting) takeTurn(ctx context.Context, turn Item) error {
	if p.approved {
		return p.n.turns.take(p.unit, turn, Route{}, nil)
	}
	spent, lifted, err := p.n.turns.findSpentInAll(ctx, p.unit.Conversation(), turn, p.unit.Now)
	if err == nil && spent != "" {
		err = store.ErrQuota
	}
	if err != nil {
		return err
	}
	return p.n.turns.take(p.unit, turn, Route{}, lifted)
}

// release lets in the held message that the outgoing message answers, as an approval would: it withdraws the question
// about the held message, whose proposal or accept then takes effect. If the outgoing message is a close, release
// instead withdraws all questions of the conversation, except those that the unit decides.
func (p *posting) release(ctx context.Context) error {
	item, u := &p.item, p.unit
	switch {
	case p.out.Once && !item.State.IsUnanswered():
		return ErrAnswered
	case p.out.isClose():
		_, err := p.n.withdrawAsks(ctx, u, func(ask acl.Ask) bool { return !u.HasChange(acl.AskNamespace, ask.ID) })
		return err
	case item.State != owner.ItemHeld || u.HasChange(acl.AskNamespace, item.Ask):
		return nil
	}
	ended := conversations.Event{Kind: conversations.HoldEnded, At: u.Now}
	withdrawn, err := p.n.asks.Withdraw(ctx, p.out.key(), func(ask acl.Ask) (isAbout bool) {
		if isAbout = ask.ID == item.Ask; isAbout {
			ended.Until = ask.Expires
		}
		return isAbout
	}, u.Now)
	switch {
	case err == nil && ended.Until.IsZero() && item.Deferred: // the question has expired, so the message stays out
		return ErrAnswered
	case err != nil || ended.Until.IsZero(): // no pending question is about the item
		return err
	}
	_, cancelled, err := item.prepareRelease(ctx, p.n, &ended)
	if err != nil {
		return err
	}
	u.Add(append(withdrawn, cancelled...)...)
	return u.Record(ended)
}

// letIn lets in the peer to which the owner writes (AM-97): for good if the owner opens the conversation, and otherwise in
// this conversation. A peer that proves nothing, and one that has a rule of the owner, is not let in.
func (p *posting) letIn(ctx context.Context, opens bool) error {
	u, out := p.unit, p.out
	switch {
	case out.Via != "owner" || out.isClose():
		return nil
	case !opens && !u.Conversation().WroteFirst && (out.Address == "" || bridge.IsProof(p.item.Verified)):
		return u.Record(conversations.Event{Kind: conversations.OwnerAdmitted, At: u.Now})
	case !opens || !out.proven:
		return nil
	}
	standing, err := p.n.rules.Standing(ctx, string(out.To), u.Now)
	if err != nil || standing != acl.Unknown {
		return err
	}
	u.Add(p.n.rules.Change(string(out.To), acl.Approved, u.Now), p.n.audit.Change(acl.AuditEntry{
		At: u.Now, Kind: acl.AuditRule, Subject: string(out.To), By: out.Via, Conversation: string(out.Conv), Note: "approve: the owner wrote first",
	}))
	return nil
}

// answer marks the inbox item as answered. If the peer got a provisional answer, the bytes in raw now answer a repeat of
// the peer's message (AM-22).
func (p *posting) answer(ctx context.Context, raw []byte) error {
	if p.out.Answers == "" {
		return nil
	}
	item, u := p.item, p.unit
	item.State = owner.ItemAnswered
	if item.Pending {
		u.Answer = item.newReplay(http.StatusOK, raw)
	}
	u.Add(item.change())
	return p.n.countAccept(ctx, u, item, "") // an accept may have waited for this answer
}

// enqueue signs a message and adds it to the conversation, the transcript and the outbox.
func (n *Node) enqueue(ctx context.Context, u *conversations.Unit, out Outgoing) (signedMessage, error) {
	if out.InReplyTo != "" {
		out.Payload = withMeta(out.Payload, "in_reply_to", string(out.InReplyTo)) // AM-16, AM-34
	}
	s, err := n.signFor(wire.Draft{
		Conversation: out.Conv, To: out.To, Time: u.Now, Intent: out.Intent, Payload: out.Payload,
	}, out.sealTo)
	if err != nil {
		return s, err
	}
	event := conversations.Event{
		Kind: conversations.Sent, At: u.Now, Intent: out.Intent, Payload: out.Payload, Principal: principal(out), Address: out.Address,
		Idle: n.bridges.silence(out.Intent), Sealed: out.sealTo != "",
	}
	event.ID, event.Answers, event.Decision = s.Message.ID, out.InReplyTo, out.decision()
	switch {
	case out.isClose():
		event.Kind = conversations.ClosedByUs
	case out.InReplyTo != "":
		event.Kind = conversations.Replied
	}
	// A close that reports a rejection is not an event, because the rejection ended the conversation (AM-35).
	if !out.isClose() || !u.Conversation().Rejected {
		if err := n.record(ctx, u, event); err != nil {
			return s, err
		}
	}
	if out.Via == "owner" {
		if err := u.Record(conversations.Event{Kind: conversations.OwnerActed, At: u.Now}); err != nil {
			return s, err
		}
	}
	u.Append(s.transcriptEntry(out.Via))
	if out.entryID == "" {
		out.entryID = n.newEntryID(u)
	}
	entry := OutboxEntry{Raw: s.Raw, Signer: n.fingerprint(), OutboxEntry: owner.OutboxEntry{
		ID: out.entryID, State: owner.SendQueued, To: out.To, Address: out.Address, Conversation: out.Conv,
		MessageID: s.Message.ID, First: s.Message.ID, Intent: out.Intent, Action: out.Payload.GetStr("action"), Via: out.Via,
		Created: u.Now, Signed: u.Now, InFlight: n.work.IsRunning(nsOutbox), Fetchable: out.fetchable,
	}}
	change := entry.change()
	change.Max = maxQueued
	u.Add(change)
	return s, nil
}

// newEntryID returns an id that sorts after all outbox entries of the conversation, whichever process stored them.
func (n *Node) newEntryID(u *conversations.Unit) string {
	id, number := n.outbox.newID(u.Now, u.Conversation().LastSent)
	u.SetLastSent(number)
	return id
}

// principal returns the recipient's foreign address, or else its agent id. A more exact principal is unknown until the
// recipient answers.
func principal(out Outgoing) string {
	return cmp.Or(out.Address, string(out.To))
}

// withMeta sets one of our extensions in the payload's metadata (AM-16).
func withMeta(payload wire.Value, key, value string) wire.Value {
	meta, _ := payload.Get("metadata")
	return payload.With("metadata", meta.With(key, wire.Text(value)))
}

// errOtherMatter refuses an answer under another intent than the proposal or agreement that its action is about.
var errOtherMatter = &wire.Error{
	Code: wire.InvalidMessage, Status: http.StatusConflict,
	Message: "what stands in this conversation has another intent: leave the intent out, or answer the message of the proposal",
}

// bindAnswer makes an answer refer to the proposal or agreement that its action is about, unless the caller answers one
// particular inbox item (AM-89). It refuses an answer under another intent, one to a proposal that no longer stands, and
// an accept that leaves open which proposal or time it accepts (AM-88).
func (n *Node) bindAnswer(ctx context.Context, out *Outgoing, now time.Time) error {
	u, err := n.book.Load(ctx, out.key(), now)
	if err != nil || u.IsNew() {
		return err
	}
	conv := u.Conversation()
	item, err := n.Item(ctx, out.Answers)
	switch {
	case err != nil && out.Answers != "": // without Answers, item is zero
		return err
	case item.State == owner.ItemHeld:
		ended := conversations.Event{Kind: conversations.HoldEnded, At: now}
		if _, _, err := item.prepareRelease(ctx, n, &ended); err != nil {
			return err
		}
		conv, _ = conv.Next(ended, n.book.IdleFor()) // an error is possible only before the first message
	}
	out.answered = item.Intent
	action := out.Payload.GetStr("action")
	about, isAbout := conv.Matter(action, out.Intent, out.seen)
	p := conv.Deal(about.Intent).Proposal
	switch {
	case isAbout && out.seen != "" && p != nil && p.Message != out.seen:
		return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusConflict, Message: "another proposal stands now (" + string(p.Message) + "): " + wire.OneLine(p.String(), 300)}
	case isAbout && out.Intent != about.Intent:
		return errOtherMatter
	case about.Message != "" && !out.Once:
		out.InReplyTo = about.Message
	}
	if action != "accept" || out.Intent != wire.Schedule && out.Intent != wire.Negotiate {
		return nil
	}
	accept := conversations.Event{Kind: conversations.Replied, At: now, Intent: out.Intent, Payload: out.Payload, Answers: out.InReplyTo}
	_, err = conv.Next(accept, n.book.IdleFor())
	return err
}
