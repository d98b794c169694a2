package node

import (
	"cmp"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// agreedEvent returns the change that adds an agreed event to the owner's calendar, if the node has one and the
// agreement has a time and a duration. It cleans and shortens the texts, which come from the peer.
func (n *Node) agreedEvent(conv conversations.Conversation, peer wire.AgentID, name string, now time.Time) []store.Change {
	start, ok := wire.ParseInstant(conv.Agreement.Time)
	length, known := calendar.ParseLength(conv.Agreement.Duration)
	if n.cfg.Agreed == nil || !ok || !known {
		return nil
	}
	return []store.Change{n.cfg.Agreed.Add(calendar.Event{
		UID: calendar.UID(conv.Key.Peer, conv.Key.ID), Title: cmp.Or(wire.OneLine(conv.Agreement.Title, 200), "Meeting"),
		Location: wire.OneLine(conv.Agreement.Location, 200), With: wire.OneLine(cmp.Or(name, string(peer)), 200),
		Start: start, Duration: length, Made: now,
		Peer: conv.Key.Peer, Address: conv.Address, Conversation: conv.Key.ID,
	})}
}
