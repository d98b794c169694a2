package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// settlement is the second unit of a hook route.
type settlement struct {
	run    *run
	late   bool
	answer hook.Answer
	err    error

	item Item
	unit *conversations.Unit
}

// commit stores what came of the hook. A run that was settled in another way meanwhile changes nothing.
func (s *settlement) commit(ctx context.Context) (out bridge.Outcome, err error) {
	n := s.run.n
	item, err := n.Item(ctx, s.run.itemID)
	if errors.Is(err, store.ErrNotFound) { // deleted meanwhile
		return bridge.Outcome{Status: http.StatusServiceUnavailable, Raw: wire.ErrUnavailable.AppendJSON(nil)}, nil
	}
	if err != nil {
		return out, err
	}
	err = n.book.Insist(ctx, item.key(), func(u *conversations.Unit) (err error) {
		s.unit = u
		out, err = s.settle(ctx)
		return err
	})
	return out, err
}

func (s *settlement) settle(ctx context.Context) (out bridge.Outcome, err error) {
	s.item, err = s.run.n.Item(ctx, s.run.itemID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return out, err
	}
	if err != nil || s.item.State != ItemRunning {
		return s.provisional(ctx), nil // deleted, or answered by another way meanwhile
	}
	if out, err = s.outcome(ctx); err == nil {
		s.unit.Add(s.item.change())
	}
	return out, err
}

// outcome fills item and unit by what the hook said.
func (s *settlement) outcome(ctx context.Context) (bridge.Outcome, error) {
	n := s.run.n
	switch {
	case s.unit.New():
		s.item.State, s.item.Note = ItemFailed, noteDeleted
		return s.provisional(ctx), nil
	case s.unit.Conversation().At(s.unit.Now, n.book.IdleFor()) != conversations.Open:
		s.item.State, s.item.Note = ItemFailed, "the conversation ended before the agent answered"
		return s.waits(ctx)
	case s.err != nil:
		s.item.State, s.item.Note = ItemFailed, hookFault(s.err)
		s.unit.Add(n.notices.Change(n.notice("hook-failed", s.item.Peer, s.item.PeerName, s.item.key(), s.unit.Now)))
		return s.waits(ctx)
	case s.answer.Async:
		s.item.State, s.item.Woken = ItemNew, s.unit.Now
		return s.waits(ctx)
	case s.item.Kind == kindReply && s.answer.Payload == nil:
		s.leave()
		return s.provisional(ctx), nil
	case s.answer.Hold != "":
		return s.hold(ctx)
	case s.answer.Err != nil:
		return s.refuse(ctx)
	}
	payload := received()
	if s.answer.Payload != nil {
		payload = *s.answer.Payload
		if held, err := s.guard(ctx, payload); held || err != nil {
			return s.provisional(ctx), err
		}
	}
	s.item.State = ItemAnswered
	out, err := s.reply(ctx, payload)
	if err != nil {
		return out, err
	}
	// After the reply: it may close the conversation. An accept of ours that leaves through the outbox counts when the peer
	// has answered it.
	var own wire.MessageID
	if out.Reply != nil {
		own = out.Reply.ID
	}
	return out, acceptCounts(ctx, s.unit, s.item, own)
}

// guard asks the owner's rules about what the hook wants to say (AM-50). held: it waits for the owner, and its sender
// gets the provisional answer.
func (s *settlement) guard(ctx context.Context, payload wire.Value) (held bool, err error) {
	n := s.run.n
	out := s.item.reply(payload)
	out.Via, out.Answers = "hook", s.item.ID
	if s.run.sealTo == nil { // once, however often the unit is decided again: it may ask a directory
		recipient, err := n.sealTo(ctx, out, s.unit.Conversation())
		if err == nil && recipient != "" {
			err = sealable(payload)
		}
		if err != nil {
			return false, err
		}
		s.run.sealTo = &recipient
	}
	out.sealTo = *s.run.sealTo
	p, err := n.permit(ctx, out, s.unit.Now)
	if err != nil {
		return false, err
	}
	if !p.asks {
		s.unit.Then(func() { n.countSent(out, p) })
		return false, nil
	}
	if s.run.to == nil {
		to := n.recipientOf(ctx, out)
		s.run.to = &to
	}
	ask, changes, err := n.outgoingQuestion(out, *s.run.to, p, s.unit.Now)
	if err != nil {
		return false, err
	}
	s.item.State, s.item.Ask = ItemHeld, ask.ID
	event := conversations.Event{Kind: conversations.HoldOpened, At: s.unit.Now, Until: ask.Expires}
	if err := s.unit.Record(ctx, event); err != nil {
		return false, err
	}
	s.unit.Add(changes...)
	_, err = s.waits(ctx)
	return true, err
}

// sealTo is what the reply is sealed to; what the node says itself is not.
func (s *settlement) sealTo() string {
	if s.run.sealTo == nil {
		return ""
	}
	return *s.run.sealTo
}

// reply answers on the connection, or through the outbox where nobody waits any more.
func (s *settlement) reply(ctx context.Context, payload wire.Value) (bridge.Outcome, error) {
	n := s.run.n
	if s.late {
		answer := s.item.reply(payload)
		answer.sealTo = s.sealTo()
		_, raw, err := n.enqueue(ctx, s.unit, answer)
		s.unit.Answer = s.item.answer(http.StatusOK, raw)
		return bridge.Outcome{}, err
	}
	reply, err := n.signFor(wire.Draft{
		Conversation: s.item.Conversation, To: s.item.Peer, Time: s.unit.Now, Intent: s.item.Intent, Payload: payload,
	}, s.sealTo())
	if err != nil {
		return bridge.Outcome{}, err
	}
	event := conversations.Event{
		Kind: conversations.Replied, At: s.unit.Now, Intent: s.item.Intent, Payload: payload, Sealed: s.sealTo() != "",
		ID: reply.Message.ID, Answers: s.item.MessageID, Direct: true,
	}
	if payload.GetStr("action") == wire.ActionClose {
		event.Kind = conversations.ClosedByUs
	}
	if err := s.unit.Record(ctx, event); err != nil {
		return bridge.Outcome{}, err
	}
	s.unit.Append(reply.entry())
	s.unit.Answer = s.item.answer(http.StatusOK, reply.Raw)
	return bridge.Outcome{Status: http.StatusOK, Reply: &reply.Message, Raw: reply.Raw}, nil
}

// hold turns the message into a question to the owner, because the agent said so.
func (s *settlement) hold(ctx context.Context) (bridge.Outcome, error) {
	a := acceptance{n: s.run.n, key: s.item.key(), now: s.unit.Now}
	ask := a.question(s.item, "intent", s.answer.Hold)
	ask, changes := s.run.n.asks.Open(ask, acl.ConversationSlot(a.key, ask.ID))
	s.item.State, s.item.Ask = ItemHeld, ask.ID
	err := s.unit.Record(ctx, conversations.Event{Kind: conversations.HoldOpened, At: s.unit.Now, Until: ask.Expires})
	if err != nil {
		return bridge.Outcome{}, err
	}
	notice := s.run.n.notice("approval", s.item.Peer, s.item.PeerName, s.item.key(), s.unit.Now)
	s.unit.Add(append(changes, s.run.n.notices.Change(notice))...)
	return s.waits(ctx)
}

// refuse carries the agent's refusal: as an error to a sender who waits, as a failed close to one who does not.
func (s *settlement) refuse(ctx context.Context) (bridge.Outcome, error) {
	s.item.State = ItemRejected
	if s.late {
		return s.reply(ctx, rejection(s.answer.Err.Code))
	}
	raw := s.answer.Err.AppendJSON(nil)
	s.unit.Answer = s.item.answer(s.answer.Err.Status, raw)
	return bridge.Outcome{Status: s.answer.Err.Status, Raw: raw}, nil
}

// waits is the answer to a sender whose message is safe but not answered: the provisional one, which is stored.
func (s *settlement) waits(ctx context.Context) (bridge.Outcome, error) {
	if s.late {
		return bridge.Outcome{}, nil
	}
	out := s.provisional(ctx)
	if out.Raw == nil {
		return out, wire.ErrUnavailable
	}
	reply := store.Entry{Out: true, At: s.unit.Now, Raw: out.Raw}
	if m, digest, err := parseOwn(out.Raw); err == nil {
		reply.MessageID, reply.At, reply.Digest = string(m.ID), m.Time, digest
		out.Reply = &m
	}
	s.unit.Append(reply)
	s.item.Pending = true
	return out, nil
}

// provisional returns the 202 that the first unit stored.
func (s *settlement) provisional(ctx context.Context) bridge.Outcome {
	rec, err := s.run.n.store.Steps().FindReplay(ctx, string(s.item.Peer), string(s.item.MessageID), time.Now())
	if err != nil {
		return bridge.Outcome{Status: http.StatusServiceUnavailable, Raw: wire.ErrUnavailable.AppendJSON(nil)}
	}
	return bridge.Outcome{Status: rec.Status, Raw: rec.Answer}
}

// hookFault is the note for the owner; what a hook printed stays in the log.
func hookFault(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "the hook took too long"
	case errors.Is(err, ErrOutbound), errors.Is(err, ErrBlocked):
		return "your rules do not let your agent write to this peer"
	case errors.Is(err, ErrCannotSeal):
		return wire.OneLine("the answer must be sealed: "+err.Error(), 300)
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok && refusal.Status == http.StatusConflict {
		return wire.OneLine("the answer cannot be sent: "+refusal.Message, 300)
	}
	return "the hook failed; see the log"
}

func decodeDigest(s string) (d [32]byte, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(d) {
		return d, fmt.Errorf("bad digest in the store")
	}
	return [32]byte(b), nil
}
