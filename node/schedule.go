package node

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// CalendarHook answers mesh.schedule from the owner's calendars. It decides anew each time, so its route is repeatable.
type CalendarHook struct{ Scheduler *calendar.Scheduler }

var _ Handler = CalendarHook{}

// Handle never fails: what the calendars cannot answer is held for the owner.
func (h CalendarHook) Handle(ctx context.Context, c Call) (HookAnswer, error) {
	q := calendar.Question{
		Conversation: c.Conversation.Key.Peer + "/" + c.Conversation.Key.ID,
		Known:        c.Sender.Trust != "" || c.Conversation.Mine,
		Rounds:       countered(c.History),
		Approved:     c.Approved,
	}
	if p := c.Conversation.Proposal; p != nil && p.By == conversations.Theirs && p.Message == c.Message.ID {
		q.Offered = &p.Terms
	}
	if a := c.Conversation.Accept; a != nil && a.By == conversations.Theirs && a.Message == c.Message.ID {
		q.Accepted = &a.Terms
	}
	r := h.Scheduler.Answer(ctx, q, time.Now())
	switch {
	case r.Hold != "":
		return HookAnswer{Hold: wire.OneLine(r.Hold, 500)}, nil
	case r.Payload.Kind() != wire.Object:
		return HookAnswer{}, nil
	}
	return HookAnswer{Payload: &r.Payload}, nil
}

// countered counts the times that we offered others.
func countered(history []store.Entry) (n int) {
	for _, e := range history {
		if said, ok := conversations.SaidIn(e); ok && e.Out && said.Payload.GetStr("action") == "counter" {
			n++
		}
	}
	return n
}

// agreedEvent returns the change that brings an agreed event to the owner's calendar, none where the messages do not say
// when it is: then the notice is all there is. The texts are a peer's, so they are cleaned and cut here.
func (n *Node) agreedEvent(conv conversations.Conversation, peer wire.AgentID, name string, now time.Time) []store.Change {
	start, ok := wire.ParseInstant(conv.Agreement.Time)
	length, known := calendar.ParseLength(conv.Agreement.Duration)
	if n.cfg.Agreed == nil || !ok || !known {
		return nil
	}
	with := name
	if with == "" {
		with = string(peer)
	}
	title := wire.OneLine(conv.Agreement.Title, 200)
	if title == "" {
		title = "Meeting"
	}
	return []store.Change{n.cfg.Agreed.Agreed(calendar.Event{
		UID: calendar.UID(conv.Key.Peer, conv.Key.ID), Title: title, Location: wire.OneLine(conv.Agreement.Location, 200),
		With: wire.OneLine(with, 200), Start: start, Duration: length, Made: now,
		Peer: conv.Key.Peer, Address: conv.Address, Conversation: conv.Key.ID,
	})}
}
