package node

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
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
type SendState string

const (
	SendQueued     SendState = "queued"           // waits for its next attempt
	SendDelivered  SendState = "delivered"        // the peer, or a relay for it, has it
	SendUnverified SendState = "reply_unverified" // delivered, but what came back is not the peer's reply (AM-18)
	SendFailed     SendState = "failed"           // it will not be delivered
	SendUnknown    SendState = "unknown"          // it may have been delivered, and trying again could do it twice (AM-48)
	SendHeld       SendState = "held"             // waits for the owner (AM-50)
)

// Sent is what is known of a message when [Node.Send] returns.
type Sent struct {
	MessageID    wire.MessageID      `json:"message_id,omitempty"`
	Conversation wire.ConversationID `json:"conversation_id,omitempty"`
	State        SendState           `json:"state"`
	Reply        *wire.Message       `json:"-"`              // verified
	ReplyTree    wire.Value          `json:"reply,omitzero"` // opened where it came sealed
	ReplySealed  bool                `json:"reply_sealed,omitempty"`
	Status       int                 `json:"status,omitempty"` // HTTP, of the newest attempt
	Err          *SendFailure        `json:"error,omitempty"`
	Hint         string              `json:"hint,omitempty"` // what the owner can do
	Ask          string              `json:"ask,omitempty"`  // with SendHeld
}

// SendFailure says why the newest attempt failed. Message may hold words of the peer, made printable.
type SendFailure struct {
	Code    wire.Code `json:"code,omitempty"`
	Message string    `json:"message"`
}

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
	left, err := n.dispatch(ctx, out, out.Records)
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
		if guide, ok := n.transports[a.Kind].(bridge.Guide); ok {
			if err := guide.Leads(a); err != nil {
				return fault(http.StatusBadRequest, err.Error(), "")
			}
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

// dispatch makes the message part of its conversation and of the outbox in one step, with the changes of whoever
// decided that it may leave. Whoever gets a posted must await it or let it go.
func (n *Node) dispatch(ctx context.Context, out Outgoing, decided []store.Change) (posted, error) {
	for range maxConflicts {
		p := posting{n: n, out: out, now: time.Now()}
		m, err := p.apply(ctx, decided)
		switch {
		case isConflict(err) && decided == nil:
			continue
		case errors.Is(err, store.ErrQuota):
			return posted{}, ErrOutboxFull
		case err != nil:
			return posted{}, err
		}
		queued := Sent{MessageID: m.ID, Conversation: m.Conversation, State: SendQueued}
		return posted{out: p.out, queued: queued, first: p.first, letGo: func() { n.outbox.unwatch(p.out.letter) }}, nil
	}
	return posted{}, store.ErrConflict
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

// posting is the step of a message that leaves.
type posting struct {
	n     *Node
	out   Outgoing
	now   time.Time
	first <-chan Sent // what the first attempt brings

	thread *conversations.Thread
	item   Item // the inbox item that the message answers; zero if it answers none
	step   store.Step
}

func (p *posting) apply(ctx context.Context, decided []store.Change) (m wire.Message, err error) {
	if p.thread, err = p.n.book.Load(ctx, p.out.key(), p.now); err != nil {
		return m, err
	}
	if p.out.Answers != "" {
		if p.item, err = p.n.Item(ctx, p.out.Answers); err != nil {
			return m, err
		}
		p.out.fetchable = p.item.Pending && p.item.repeats()
	}
	if !p.thread.New() {
		p.out.Address = p.thread.Conversation().Address // whoever has the same id elsewhere is not meant
	}
	if p.thread.Full() && !p.out.closes() {
		return m, ErrConversationFull
	}
	if !p.out.waited.IsZero() && !p.thread.New() {
		ended := conversations.Event{Kind: conversations.HoldEnded, At: p.now, Until: p.out.waited}
		if err := p.thread.Record(ended); err != nil {
			return m, err
		}
	}
	_, cancelled, err := p.n.uncalendar(ctx, p.out.Intent, p.out.Payload, p.thread.Conversation(), p.now)
	if err != nil {
		return m, err
	}
	p.out.letter = p.n.outbox.newID(p.now) // after the load, so that ids are in the order of the conversation
	m, raw, letter, err := p.n.enqueue(p.thread, p.out, p.now)
	if err != nil {
		return m, err
	}
	p.step = store.Step{Records: append(append(letter, decided...), cancelled...), Now: p.now}
	if err := p.takesBack(ctx, decided); err != nil {
		return m, err
	}
	if err := p.answers(ctx, raw, decided); err != nil {
		return m, err
	}
	p.thread.Into(&p.step)
	p.first = p.n.outbox.watch(p.out.letter)
	if _, err := p.n.store.Steps().Apply(ctx, p.step); err != nil {
		p.n.outbox.unwatch(p.out.letter)
		return m, err
	}
	return m, nil
}

// takesBack withdraws what waits for the owner in a conversation that we close, but for what was just decided.
func (p *posting) takesBack(ctx context.Context, decided []store.Change) error {
	if !p.out.closes() {
		return nil
	}
	waits := func(ask acl.Ask) bool { return !isAmong(decided, ask.ID) }
	asks, items, err := p.n.withdraw(ctx, p.out.key(), waits, p.now)
	p.step.Records = append(append(p.step.Records, asks...), items...)
	return err
}

func isAmong(changes []store.Change, key string) bool {
	return slices.ContainsFunc(changes, func(c store.Change) bool { return c.Record.Key == key })
}

// answers marks the inbox item that the message answers; a repetition of a message that was told to wait gets this
// one from now on (AM-22). What the owner was asked about it is answered with it.
func (p *posting) answers(ctx context.Context, raw []byte, decided []store.Change) error {
	if p.out.Answers == "" {
		return nil
	}
	item := p.item
	if p.out.Once {
		if err := item.answerable(); err != nil {
			return err
		}
	}
	if item.State == ItemHeld && !p.out.closes() { // what closes takes every question back
		var ends []time.Time
		gone, err := p.n.asks.Withdraw(ctx, p.out.key(), func(ask acl.Ask) bool {
			mine := ask.ID == item.Ask && !isAmong(decided, ask.ID)
			if mine {
				ends = append(ends, ask.Expires)
			}
			return mine
		}, p.now)
		if err != nil {
			return err
		}
		p.step.Records = append(p.step.Records, gone...)
		for _, end := range ends {
			if err := p.thread.Record(conversations.Event{Kind: conversations.HoldEnded, At: p.now, Until: end}); err != nil {
				return err
			}
		}
	}
	item.State = ItemAnswered
	agreed, err := p.n.concludedBy(p.thread, item, "", p.now) // an accept that waited for this answer
	if err != nil {
		return err
	}
	p.step.Records = append(append(p.step.Records, item.change()), agreed...)
	if item.Pending {
		p.step.Answer = item.answer(http.StatusOK, raw)
	}
	return nil
}

// enqueue signs a message, records it on t and returns it with the change that puts it into the outbox, for the step
// that t goes into.
func (n *Node) enqueue(t *conversations.Thread, out Outgoing, now time.Time) (wire.Message, []byte, []store.Change, error) {
	if out.InReplyTo != "" {
		out.Payload = withMeta(out.Payload, "in_reply_to", string(out.InReplyTo)) // AM-16, AM-34
	}
	s, err := n.signFor(wire.Draft{
		Conversation: out.Conv, To: out.To, Time: now, Intent: out.Intent, Payload: out.Payload,
	}, out.sealTo)
	if err != nil {
		return wire.Message{}, nil, nil, err
	}
	event := conversations.Event{
		Kind: conversations.Sent, At: now, Intent: out.Intent, Payload: out.Payload, Principal: principal(out), Address: out.Address,
		Idle: n.idle[out.Intent], Sealed: out.sealTo != "", Deadline: out.Deadline,
	}
	event.ID, event.Answers = s.Message.ID, out.InReplyTo
	switch {
	case out.closes():
		event.Kind = conversations.ClosedByUs
	case out.InReplyTo != "":
		event.Kind = conversations.Replied
	}
	// The close that tells of a rejection follows the rejection, which ended the conversation already (AM-35).
	if !out.closes() || !t.Conversation().Rejected {
		if err := t.Record(event); err != nil {
			return wire.Message{}, nil, nil, err
		}
	}
	t.Append(s.entry())
	if out.letter == "" {
		out.letter = n.outbox.newID(now)
	}
	letter := Letter{
		ID: out.letter, State: SendQueued, To: out.To, Address: out.Address, Conversation: out.Conv,
		MessageID: s.Message.ID, First: s.Message.ID, Intent: out.Intent, Action: out.Payload.GetStr("action"), Via: out.Via,
		Created: now, Signed: now, InFlight: true, Raw: s.Raw,
		Signer: n.fingerprint(), Fetchable: out.fetchable,
	}
	change := letter.change()
	change.Max = maxQueued
	return s.Message, s.Raw, []store.Change{change}, nil
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
	thread, err := n.book.Load(ctx, out.key(), now)
	if err != nil || thread.New() {
		return err
	}
	if answers := thread.Conversation().Acceptable(out.Intent); answers != "" && !out.Once {
		out.InReplyTo = answers
	}
	return thread.Record(conversations.Event{
		Kind: conversations.Replied, At: now, Intent: out.Intent, Payload: out.Payload, Answers: out.InReplyTo,
	})
}
