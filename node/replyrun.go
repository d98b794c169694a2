package node

import (
	"context"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// What an item is: a message that came in, or a synchronous answer to one of ours.
const (
	kindMessage = "message"
	kindReply   = "reply"
)

// replyRun makes the run of a hook that takes the reply, nil where none does or where there is no room: then the reply is
// for the inbox. What the hook says leaves through the outbox; where it says nothing, nothing leaves, for two hooks that
// thank each other would never end.
func (n *Node) replyRun(item *Item, m *wire.Message, conv conversations.Conversation) *run {
	route := n.route(m.Intent)
	if conv.Unclear == m.ID {
		if _, ok := conv.Clarification(m.ID); !ok {
			return nil
		}
		route = clarifying
	}
	if route.Handler == nil || !route.Replies || !item.ActionKnown || m.Action() == wire.ActionClose {
		return nil
	}
	done, err := n.runs.reserve()
	if err != nil {
		return nil
	}
	item.State, item.Route, item.Attempt = ItemRunning, route.Name, 1
	return &run{n: n, itemID: item.ID, message: *m, payload: m.Payload, route: route, done: done, late: true}
}

// clarifying is the route of an ambiguous accept: it is answered with our offer, and one time (AM-88).
var clarifying = Route{Name: "agreement", Repeatable: true, Replies: true, Handler: clarifier{}}

const noteUnclear = "it accepts, but it does not say which of the proposals or times: ask, or propose one time"

type clarifier struct{}

// Handle never fails: what cannot be said again is for the owner.
func (clarifier) Handle(_ context.Context, c hook.Call) (hook.Answer, error) {
	payload, ok := c.Conversation.Clarification(c.Message.ID)
	if !ok {
		return hook.Answer{Hold: noteUnclear}, nil
	}
	return hook.Answer{Payload: &payload}, nil
}

// leave leaves a reply that a hook did not answer to the owner, who is told where the hook said why.
func (s *settlement) leave() {
	s.item.State = ItemNew
	if s.answer.Hold == "" {
		return
	}
	s.item.Note = s.answer.Hold
	n := s.run.n
	s.unit.Add(n.notices.Change(n.notice("message", s.item.Peer, s.item.PeerName, s.item.key(), s.unit.Now)))
}
