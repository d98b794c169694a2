package hook

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Calendar answers mesh.schedule from the owner's calendars. Each call reads the calendars again, so a call may be
// repeated after a crash.
type Calendar struct{ Scheduler *calendar.Scheduler }

var _ Handler = Calendar{}

// Handle answers from the calendars, and holds the message for the owner if it cannot. It never fails.
func (h Calendar) Handle(ctx context.Context, c Call) (Answer, error) {
	q := calendar.Question{
		Event:    calendar.UID(c.Conversation.Key.Peer, c.Conversation.Key.ID),
		Known:    c.Sender.Trust != "" || c.Conversation.Mine,
		Rounds:   c.Conversation.Schedule.Counters,
		Before:   c.Conversation.Schedule.Offered,
		Approved: c.Approved,
	}
	if p := c.Conversation.Schedule.Proposal; p != nil && p.By == conversations.Theirs && p.Message == c.Message.ID {
		q.Offered = &p.Terms
	}
	if a := c.Conversation.Schedule.Accept; a != nil && a.By == conversations.Theirs && a.Message == c.Message.ID {
		q.Accepted = &a.Terms
	}
	r := h.Scheduler.Answer(ctx, q, time.Now())
	switch {
	case r.Hold != "":
		return Answer{Hold: wire.OneLine(r.Hold, 500)}, nil
	case r.Payload.Kind() != wire.Object:
		return Answer{}, nil
	}
	return Answer{Payload: &r.Payload}, nil
}
