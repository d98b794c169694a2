package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// errUndeliverable means that another attempt does not help.
var errUndeliverable = errors.New("the message cannot be delivered")

// undeliverableError says why a message cannot be delivered. It matches errUndeliverable.
type undeliverableError struct{ reason string }

func (e undeliverableError) Error() string        { return e.reason }
func (e undeliverableError) Is(target error) bool { return target == errUndeliverable }

// These texts tell the owner why a message waits.
const (
	reasonStore  = "the link could not read or store the state of the conversation"
	reasonBudget = "the link waits because of the relay's rate limit"
	reasonUnread = "the link waits until the relay has read earlier messages"
)

// retryLater returns an error that makes the outbox try again, with the reason for the owner.
func retryLater(after time.Duration, reason string) *client.SendError {
	return &client.SendError{Retry: true, After: after, Status: wire.ErrUnavailable.Status, Refusal: wire.ErrUnavailable.At(reason)}
}

// holdBack returns the error of retryLater for a message that a limit of the link holds back. It does not count as an
// attempt.
func holdBack(after time.Duration, reason string) *client.SendError {
	e := retryLater(after, reason)
	e.Unsent = true
	return e
}

func (l *Link) offlineReason() string {
	s := l.Status()
	switch s.State {
	case bridge.LinkDown:
		return "the link " + s.Name + " is down: " + s.Error
	case bridge.LinkUp:
		return "the connection of the link " + s.Name + " ended or gave no sign of life"
	}
	return "the link " + s.Name + " is not connected"
}

// sendReply sends the node's immediate reply to a message, without using the outbox.
func (l *Link) sendReply(ctx context.Context, peer string, m wire.Message) {
	data, changes, err := l.encode(ctx, peer, m)
	if err != nil {
		l.log.Error("cannot encode the reply to a message", "peer", peer, "err", err)
		return
	}
	if data == nil {
		return
	}
	if err := l.cfg.Store.Records().Apply(ctx, changes, time.Now()); err != nil {
		l.log.Error("cannot store the state of a conversation", "err", err)
	}
	l.sender.answer(peer, data)
}

// explainWait returns the error for the outbox if a frame must wait, or if the connection did not take it.
func (l *Link) explainWait(wait time.Duration, err error) error {
	switch {
	case err != nil:
		e := retryLater(0, l.offlineReason())
		e.Awaits = l.address("").String()
		return e
	case wait > 0:
		return holdBack(wait+rand.N(wait/4+time.Second), reasonBudget)
	}
	return nil
}

// Deliver sends a message of the outbox to a peer. It succeeds when the relay has read the frame, or at once if nothing
// is to be sent. Only a reply proves that the message arrived (AR-53).
func (l *Link) Deliver(ctx context.Context, to string, d bridge.Delivery) (bridge.Delivered, error) {
	if !frame.ValidAgentID(to) || to == frame.RelayID {
		return bridge.Delivered{}, undeliverableError{"the address does not name an agent of a relay"}
	}
	data, changes, err := l.encode(ctx, to, d.Message)
	switch {
	case errors.Is(err, errUndeliverable):
		return bridge.Delivered{}, err
	case err != nil:
		return bridge.Delivered{}, retryLater(0, reasonStore)
	case data == nil:
		return bridge.Delivered{Queued: true}, nil
	}
	leave, ok := l.sender.unread.Enter(to)
	if !ok {
		e := holdBack(0, reasonUnread)
		e.Awaits = l.address("").String()
		return bridge.Delivered{}, e
	}
	isAnswer := conversations.AnswersIn(d.Message.Payload) != ""
	err = l.sendAndConfirm(ctx, data, changes, isAnswer)
	leave()
	if err != nil {
		return bridge.Delivered{}, err
	}
	l.cfg.Mesh.Reachable(l.address("")) // the place is free: a message that found none may use it
	return bridge.Delivered{Queued: true}, nil
}

// sendAndConfirm stores the changes, sends a frame, and waits until the relay has read it.
func (l *Link) sendAndConfirm(ctx context.Context, data []byte, changes []store.Change, isAnswer bool) error {
	// The state of the conversation decides what the next attempt sends, so it must not change before the budget lets
	// the frame leave.
	cancel, wait, err := l.sender.reserve(isAnswer)
	if err := l.explainWait(wait, err); err != nil {
		return err
	}
	if err := l.cfg.Store.Records().Apply(ctx, changes, time.Now()); err != nil {
		cancel()
		return retryLater(0, reasonStore)
	}
	conn, err := l.sender.write(data)
	if err != nil {
		cancel()
		return l.explainWait(0, err)
	}
	// ARC acknowledges no frame. Without a sign of life the connection may be broken, and the frame lost (AR-53). The
	// next connection does not send it at once, because the relay may have closed this one because of the frame.
	if conn.Confirm(ctx, readPatience) != nil {
		return retryLater(0, l.offlineReason())
	}
	return nil
}

// encode returns the frame of a message (nil if nothing is to be sent), and the changes that store the conversation.
func (l *Link) encode(ctx context.Context, peer string, m wire.Message) ([]byte, []store.Change, error) {
	now := time.Now()
	current, err := l.convStore.read(ctx, l.convStore.key(peer, m.Conversation), now)
	if err != nil {
		return nil, nil, err
	}
	// base is the state of the conversation that decides what m answers.
	base, err := l.convStore.readBase(ctx, peer, m, current, now)
	if err != nil {
		return nil, nil, err
	}
	out, err := fromMesh(m.Intent, m.Payload, base.answeringTo(m.ID))
	if err != nil {
		return nil, nil, undeliverableError{err.Error()}
	}
	isPending := m.Action() == wire.ActionPending
	if isPending && !current.Mesh {
		if l.cfg.Link.Options[optPending] == "false" {
			return nil, nil, nil
		}
		out = outgoing{kind: "thought", payload: wire.Text("Thank you. My owner is asked first; an answer may come later."), isReply: true}
	}
	if out.silent {
		return nil, nil, nil
	}
	ref := ""
	switch {
	case out.isReply:
		ref = base.Ref
	case out.expectsAnswer():
		ref = string(m.ID)
	}
	next := current
	next.Conv, next.Asked, next.LastOurs = m.Conversation, current.Asked || out.kind == "question", !isPending || current.LastOurs
	if out.kind == "answer" && base.Ref == current.Ref { // the peer has not written since
		next.Answer = m.ID // the next message of the node is not an answer
	}
	data := out.encode(peer, ref, m.Conversation, m.ID)
	if len(data) > frame.MaxSize {
		return nil, nil, undeliverableError{"the message has more than the 64 KB that a relay takes"}
	}
	changes := l.convStore.changes(peer, next, "", []string{string(m.ID), ref}, now)
	return data, append(changes, l.convStore.putBase(peer, m, base, now)), nil
}
