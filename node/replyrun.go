package node

import (
	"context"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The kinds of inbox items besides kindTask: a message that the peer sent on its own, and the synchronous reply to a
// message of ours.
const (
	kindMessage = "message"
	kindReply   = "reply"
)

// newReplyRun returns the run of the hook that handles a synchronous reply, and marks item as running. It returns nil
// if no hook handles the reply or the queue of runs is full; then the reply stays in the inbox. It also returns nil if
// another process must run the hook; then item waits for that process. The hook's answer leaves through the outbox. If
// the hook gives no answer, the node sends nothing, not even a receipt: two nodes that confirm each other's replies
// would never stop.
func (n *Node) newReplyRun(item *Item, m *wire.Message, conv conversations.Conversation) *run {
	route, mustAsk := n.routeIn(conv, m.ID, m.Intent)
	if mustAsk || route.Handler == nil || !route.Replies || !item.ActionKnown || m.Action() == wire.ActionClose {
		return nil
	}
	done, err := n.runs.Reserve()
	if err != nil {
		return nil
	}
	item.Route = route.Name
	if !n.claimRun(item) {
		done()
		return nil
	}
	return &run{n: n, key: item.key(), itemID: item.ID, message: *m, payload: m.Payload, route: route, done: done, unattended: true}
}

// clarifyRoute answers an ambiguous accept with our offer again, reduced to a single time (AM-88).
var clarifyRoute = Route{Name: "agreement", Repeatable: true, Replies: true, Handler: clarifier{}}

// routeIn returns the route of a message: that of its intent, or clarifyRoute for the ambiguous accept in conv. mustAsk
// reports whether only the owner can answer that accept.
func (n *Node) routeIn(conv conversations.Conversation, id wire.MessageID, intent wire.Intent) (route Route, mustAsk bool) {
	if id == "" || id != conv.Unclear {
		return n.route(intent), false
	}
	_, ok := conv.Clarification(id)
	return clarifyRoute, !ok
}

// noteUnclear is the note on an ambiguous accept that the owner must answer.
const noteUnclear = "this accepts without saying which proposal or time: ask, or propose a single time"

type clarifier struct{}

// Handle repeats our offer with a single time. If that is not possible, it leaves the message to the owner.
func (clarifier) Handle(_ context.Context, c hook.Call) (hook.Answer, error) {
	payload, ok := c.Conversation.Clarification(c.Message.ID)
	if !ok {
		return hook.Answer{Hold: noteUnclear}, nil
	}
	return hook.Answer{Payload: &payload}, nil
}

// leaveToOwner puts a reply that the hook did not answer back into the inbox. If the hook gave a reason, the owner gets
// a notice.
func (s *hookOutcome) leaveToOwner() {
	s.item.State = ItemNew
	if s.answer.Hold == "" {
		return
	}
	s.item.Note = s.answer.Hold
	n := s.run.n
	s.unit.Add(n.notices.Change(n.notice("message", s.item.Peer, s.item.PeerName, s.item.key(), s.unit.Now)))
}
