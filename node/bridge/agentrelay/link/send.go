package link

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// errCarry: trying again does not help.
var errCarry = errors.New("the message cannot be carried")

// carryError says why; it matches errCarry.
type carryError struct{ reason string }

func (e carryError) Error() string        { return e.reason }
func (e carryError) Is(target error) bool { return target == errCarry }

// Why a message waits, for the owner.
const (
	unprepared = "the link could not read or store what it knows of the conversation"
	overBudget = "the link sends no more than the relay takes"
)

// later asks the outbox to come again, and says why for the owner.
func later(after time.Duration, why string) error {
	return &client.SendError{Retry: true, After: after, Status: wire.ErrUnavailable.Status, Refusal: wire.ErrUnavailable.At(why)}
}

// away says for the owner why nothing leaves over the link now.
func (l *Link) away() string {
	s := l.Status()
	if s.State == bridge.LinkDown {
		return "the link " + s.Name + " is down: " + s.Error
	}
	return "the link " + s.Name + " is not connected"
}

// sayReply sends the node's own answer to a message.
func (l *Link) sayReply(ctx context.Context, peer string, m wire.Message) {
	data, changes, err := l.encode(ctx, peer, m)
	if err != nil || data == nil {
		return
	}
	if err := l.cfg.Store.Records().Apply(ctx, changes, time.Now()); err != nil {
		l.log.Error("store what an answer refers to", "err", err)
	}
	l.sender.answer(peer, data)
}

// Deliver carries a message of the outbox to a peer. It is sent when it was written to an open socket; only a reply proves that
// it arrived (AR-53).
func (l *Link) Deliver(ctx context.Context, to string, d bridge.Delivery) (bridge.Delivered, error) {
	if !frame.ValidAgentID(to) || to == frame.RelayID {
		return bridge.Delivered{}, carryError{"the address names no agent of a relay"}
	}
	data, changes, err := l.encode(ctx, to, d.Message)
	switch {
	case errors.Is(err, errCarry):
		return bridge.Delivered{}, err
	case err != nil:
		return bridge.Delivered{}, later(0, unprepared)
	case data == nil:
		return bridge.Delivered{Queued: true}, nil
	}
	if wait := l.sender.budget.Take(time.Now()); wait > 0 {
		return bridge.Delivered{}, later(wait, overBudget)
	}
	if err := l.cfg.Store.Records().Apply(ctx, changes, time.Now()); err != nil {
		return bridge.Delivered{}, later(0, unprepared)
	}
	if err := l.sender.write(data); err != nil {
		return bridge.Delivered{}, later(0, l.away())
	}
	return bridge.Delivered{Queued: true}, nil
}

// encode returns the frame of a message of ours for a peer, with what the link will know of the conversation. The frame
// is nil if ARC has no word for the message, and nothing is to be said.
func (l *Link) encode(ctx context.Context, peer string, m wire.Message) ([]byte, []store.Change, error) {
	now := time.Now()
	t, err := l.talks.read(ctx, l.talks.key(peer, m.Conversation), now)
	if err != nil {
		return nil, nil, err
	}
	s, err := foreign(m.Intent, m.Payload, t.Answering)
	if err != nil {
		return nil, nil, carryError{err.Error()}
	}
	if s.kind == "data" && m.Action() == wire.ActionPending && !t.Mesh {
		if l.cfg.Link.Options[optPending] == "false" {
			return nil, nil, nil
		}
		s = said{kind: "thought", payload: wire.Text("Thank you. My owner is asked first; an answer may come later."), answers: true}
	}
	if s.silent {
		return nil, nil, nil
	}
	ref := ""
	switch {
	case s.answers:
		ref = t.Ref
	case s.expects():
		ref = string(m.ID)
	}
	pending := m.Action() == wire.ActionPending
	next := talk{Conv: m.Conversation, Ref: t.Ref, Answering: t.Answering, Asked: t.Asked || s.kind == "question", Ours: !pending || t.Ours, Mesh: t.Mesh}
	if s.kind == "answer" {
		next.Answering = ""
	}
	data, err := l.seal(ctx, peer, s.encode(peer, ref, m.Conversation, m.ID))
	if err != nil {
		return nil, nil, err
	}
	if len(data) > frame.MaxSize {
		return nil, nil, carryError{"the message has more than the 64 KB that a relay takes"}
	}
	return data, l.talks.changes(peer, next, []string{string(m.ID), ref}, now), nil
}
