package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Outgoing is a message that somebody on our side wants to send.
type Outgoing struct {
	To        wire.AgentID        `json:"to"`
	Address   string              `json:"address,omitempty"`         // of a foreign peer; To is its pseudonym
	Conv      wire.ConversationID `json:"conversation_id,omitempty"` // empty opens one
	Intent    wire.Intent         `json:"intent"`
	Payload   wire.Value          `json:"payload"`
	InReplyTo wire.MessageID      `json:"in_reply_to,omitempty"` // the message that it answers
	Answers   string              `json:"answers,omitempty"`     // the inbox item that it answers
	Once      bool                `json:"once,omitempty"`        // only if nobody has answered that item
	Via       string              `json:"via"`                   // "owner", "hook", "bridge", "node"
	Seal      SealChoice          `json:"seal,omitempty"`
	Deadline  time.Time           `json:"deadline,omitzero"` // of the conversation that it opens; zero: silence ends it

	// Records change in the step that stores the message; not where the owner is asked first.
	Records []store.Change `json:"-"`

	letter    string    // id of its letter, where somebody waits for it
	fetchable bool      // the step that stores it also stores it as the answer to a message of the peer (AM-22)
	waited    time.Time // where the owner was asked: when that question would have expired
	sealTo    string    // age recipient; empty where it leaves open

	unproven *bridge.UnprovenKey // the recipient's, which the owner must accept first
}

func (o Outgoing) key() store.ConvKey { return store.ConvKey{Peer: string(o.To), ID: string(o.Conv)} }

func (o Outgoing) closes() bool { return o.Payload.GetStr("action") == wire.ActionClose }

// SendState is what became of a message of ours.
type SendState = owner.SendState

const (
	SendQueued     = owner.SendQueued
	SendDelivered  = owner.SendDelivered
	SendUnverified = owner.SendUnverified
	SendFailed     = owner.SendFailed
	SendUnknown    = owner.SendUnknown
	SendHeld       = owner.SendHeld
)

// Sent is what is known of a message when [Node.Send] returns.
type Sent = owner.Sent

// SendFailure is why the newest attempt failed.
type SendFailure = owner.SendFailure

// ErrNoRecipient: no configured directory lists the agent and the owner gave no card of it (AM-45).
var ErrNoRecipient = &wire.Error{Code: wire.AgentUnavailable, Status: http.StatusNotFound, Message: "no configured directory lists this agent"}

// ErrOutbound: the outbound allowlist does not name the recipient (AM-50).
var ErrOutbound = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "the outbound allowlist does not name this agent"}

// ErrBlocked: the owner blocked the recipient.
var ErrBlocked = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "you blocked this agent"}

// ErrRecipientChanged: the recipient's key is not the one that the owner was shown.
var ErrRecipientChanged = &wire.Error{
	Code: wire.InvalidSignature, Status: http.StatusConflict, Message: "the recipient's key is not the one you were shown; reject this and send it again",
}

// ErrOutboxFull: too many messages wait for delivery.
var ErrOutboxFull = &wire.Error{Code: wire.AgentUnavailable, Status: http.StatusServiceUnavailable, Retry: true, Message: "too many messages wait for delivery"}

// ErrConversationFull: the transcript holds as much as one may. A close is still sent.
var ErrConversationFull = &wire.Error{
	Code: wire.RateLimited, Status: http.StatusTooManyRequests, Message: "the conversation is full; close it and start a new one",
}

// ErrAnswered: the inbox item that the message answers was answered, or waits for nobody any more.
var ErrAnswered = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusConflict, Message: "this inbox item does not wait for an answer any more"}

// Send sends a message, or asks the owner first where the outbound policy says so. The message is stored before the
// first attempt (AM-46); then Send waits up to wait for what that attempt brings. Nothing was changed where it returns
// an error: a *[wire.Error] that says what is wrong with the message, or the store's.
func (n *Node) Send(ctx context.Context, out Outgoing, wait time.Duration) (Sent, error) {
	if out.Conv == "" {
		out.Conv = wire.NewConversationID()
	}
	if err := n.sendable(ctx, &out); err != nil {
		return Sent{}, err
	}
	if err := n.accepting(ctx, &out, time.Now()); err != nil {
		return Sent{}, err
	}
	if err := n.sealing(ctx, &out, time.Now()); err != nil {
		return Sent{}, err
	}
	p, err := n.permit(ctx, out, time.Now())
	switch {
	case err != nil:
		return Sent{}, err
	case p.asks:
		return n.askOutgoing(ctx, out, p)
	}
	left, err := n.dispatch(ctx, out)
	if err != nil {
		return Sent{}, err
	}
	sent := left.await(ctx, wait)
	n.countSent(out, p)
	return sent, nil
}

// sendable checks what the caller wants before anything is stored, and writes the payload as it will leave.
func (n *Node) sendable(ctx context.Context, out *Outgoing) error {
	switch {
	case !out.To.Valid() || !out.Conv.Valid():
		return wire.ErrSchema.At("to and conversation must be ids")
	case out.To == n.ID():
		return wire.ErrRecipient.At("it is this agent itself")
	case !out.Intent.Standard() && !out.Intent.Custom():
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
		return nil
	}
	_, err = n.cards.Find(ctx, out.To, time.Now())
	if errors.Is(err, client.ErrUnknownAgent) {
		return ErrNoRecipient
	}
	_, out.unproven = doubtIn(err)
	return nil // whatever else is wrong with the recipient may be over by the time of the attempt
}

// dispatch makes the message part of its conversation and of the outbox in one unit. The caller must await what it
// returns, or let it go.
func (n *Node) dispatch(ctx context.Context, out Outgoing) (posted, error) {
	p := posting{n: n, out: out}
	err := n.book.Do(ctx, out.key(), func(u *conversations.Unit) error {
		p.unit, p.out = u, out
		return p.fill(ctx)
	})
	return p.done(err)
}

// posted is a message in the outbox.
type posted struct {
	out    Outgoing
	queued Sent
	first  <-chan Sent // what the first attempt brings
	letGo  func()      // of first
}

// await waits up to wait for what the first attempt brings.
func (p posted) await(ctx context.Context, wait time.Duration) Sent {
	defer p.letGo()
	if wait <= 0 {
		return p.queued
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case sent := <-p.first:
		return sent
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.queued
}

// posting is the unit of a message that leaves.
type posting struct {
	n     *Node
	out   Outgoing
	unit  *conversations.Unit
	item  Item         // the inbox item that the message answers; zero if it answers none
	sent  wire.Message // as it was signed
	first <-chan Sent  // what the first attempt brings
}

// done returns the message once its unit is committed.
func (p *posting) done(err error) (posted, error) {
	if errors.Is(err, store.ErrQuota) && !isRefusal(err) {
		err = ErrOutboxFull
	}
	if err != nil {
		return posted{}, err
	}
	queued := Sent{MessageID: p.sent.ID, Conversation: p.sent.Conversation, State: SendQueued}
	letter := p.out.letter
	return posted{out: p.out, queued: queued, first: p.first, letGo: func() { p.n.outbox.unwatch(letter) }}, nil
}

// fill puts the message into the unit. What the unit changes already is what its caller decided.
func (p *posting) fill(ctx context.Context) (err error) {
	u := p.unit
	p.item = Item{}
	if p.out.Answers != "" {
		if p.item, err = p.n.Item(ctx, p.out.Answers); err != nil {
			return err
		}
		p.out.fetchable = p.item.Pending && p.item.repeats()
	}
	if !u.New() {
		p.out.Address = u.Conversation().Address // whoever has the same id elsewhere is not meant
	}
	if u.Full() && !p.out.closes() {
		return ErrConversationFull
	}
	if !p.out.waited.IsZero() && !u.New() {
		ended := conversations.Event{Kind: conversations.HoldEnded, At: u.Now, Until: p.out.waited}
		if err := u.Record(ctx, ended); err != nil {
			return err
		}
	}
	p.out.letter = p.n.outbox.NewID(u.Now) // after the load, so that ids are in the order of the conversation
	m, raw, err := p.n.enqueue(ctx, u, p.out)
	if err != nil {
		return err
	}
	if err := p.takeBack(ctx); err != nil {
		return err
	}
	if err := p.answer(ctx, raw); err != nil {
		return err
	}
	u.Add(p.out.Records...)
	p.sent, p.first = m, p.n.outbox.watch(p.out.letter)
	letter := p.out.letter
	u.Otherwise(func() { p.n.outbox.unwatch(letter) })
	return nil
}

// takeBack withdraws what waits for the owner in a conversation that we close, except what the unit decides.
func (p *posting) takeBack(ctx context.Context) error {
	if !p.out.closes() {
		return nil
	}
	_, err := p.n.withdraw(ctx, p.unit, func(ask acl.Ask) bool { return !p.unit.Changes(acl.AskNamespace, ask.ID) })
	return err
}

// answer marks the inbox item that the message answers; a repetition of a message that was told to wait gets this one
// from now on (AM-22). The unit takes back what the owner was asked about the item.
func (p *posting) answer(ctx context.Context, raw []byte) error {
	if p.out.Answers == "" {
		return nil
	}
	item, u := p.item, p.unit
	if p.out.Once {
		if err := item.answerable(); err != nil {
			return err
		}
	}
	if item.State == ItemHeld && !p.out.closes() && !u.Changes(acl.AskNamespace, item.Ask) { // a close takes every question back
		var ends []time.Time
		gone, err := p.n.asks.Withdraw(ctx, p.out.key(), func(ask acl.Ask) bool {
			if ask.ID == item.Ask {
				ends = append(ends, ask.Expires)
			}
			return ask.ID == item.Ask
		}, u.Now)
		if err != nil {
			return err
		}
		u.Add(gone...)
		for _, end := range ends {
			if err := u.Record(ctx, conversations.Event{Kind: conversations.HoldEnded, At: u.Now, Until: end}); err != nil {
				return err
			}
		}
	}
	item.State = ItemAnswered
	if item.Pending {
		u.Answer = item.answer(http.StatusOK, raw)
	}
	u.Add(item.change())
	return acceptCounts(ctx, u, item, "") // an accept may have waited for this answer
}

// enqueue signs a message and puts it into the unit: into the conversation, the transcript and the outbox.
func (n *Node) enqueue(ctx context.Context, u *conversations.Unit, out Outgoing) (wire.Message, []byte, error) {
	if out.InReplyTo != "" {
		out.Payload = withMeta(out.Payload, "in_reply_to", string(out.InReplyTo)) // AM-16, AM-34
	}
	s, err := n.signFor(wire.Draft{
		Conversation: out.Conv, To: out.To, Time: u.Now, Intent: out.Intent, Payload: out.Payload,
	}, out.sealTo)
	if err != nil {
		return wire.Message{}, nil, err
	}
	event := conversations.Event{
		Kind: conversations.Sent, At: u.Now, Intent: out.Intent, Payload: out.Payload, Principal: principal(out), Address: out.Address,
		Idle: n.bridges.silence(out.Intent), Sealed: out.sealTo != "", Deadline: out.Deadline,
	}
	event.ID, event.Answers = s.Message.ID, out.InReplyTo
	switch {
	case out.closes():
		event.Kind = conversations.ClosedByUs
	case out.InReplyTo != "":
		event.Kind = conversations.Replied
	}
	// The close that tells of a rejection follows the rejection, which ended the conversation already (AM-35).
	if !out.closes() || !u.Conversation().Rejected {
		if err := u.Record(ctx, event); err != nil {
			return wire.Message{}, nil, err
		}
	}
	u.Append(s.entry())
	if out.letter == "" {
		out.letter = n.outbox.NewID(u.Now)
	}
	letter := Letter{Raw: s.Raw, Signer: n.fingerprint(), OutboxEntry: owner.OutboxEntry{
		ID: out.letter, State: SendQueued, To: out.To, Address: out.Address, Conversation: out.Conv,
		MessageID: s.Message.ID, First: s.Message.ID, Intent: out.Intent, Action: out.Payload.GetStr("action"), Via: out.Via,
		Created: u.Now, Signed: u.Now, InFlight: true, Fetchable: out.fetchable,
	}}
	change := letter.change()
	change.Max = maxQueued
	u.Add(change)
	return s.Message, s.Raw, nil
}

// principal is who access rules act on at the other side, as far as the sender of a first message knows it.
func principal(out Outgoing) string {
	if out.Address != "" {
		return out.Address
	}
	return string(out.To)
}

// withMeta sets one of our extensions (AM-16).
func withMeta(payload wire.Value, key, value string) wire.Value {
	meta, _ := payload.Get("metadata")
	return payload.With("metadata", meta.With(key, wire.Text(value)))
}

// accepting makes an accept answer the proposal that stands, unless its sender named what it answers, and refuses one
// that does not say what it accepts (AM-88).
func (n *Node) accepting(ctx context.Context, out *Outgoing, now time.Time) error {
	if out.Payload.GetStr("action") != "accept" || out.Intent != wire.Schedule && out.Intent != wire.Negotiate {
		return nil
	}
	u, err := n.book.Load(ctx, out.key(), now)
	if err != nil || u.New() {
		return err
	}
	conv := u.Conversation()
	if answers := conv.Acceptable(out.Intent); answers != "" && !out.Once {
		out.InReplyTo = answers
	}
	_, err = conv.Next(conversations.Event{
		Kind: conversations.Replied, At: now, Intent: out.Intent, Payload: out.Payload, Answers: out.InReplyTo,
	}, n.book.IdleFor())
	return err
}
