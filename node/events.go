package node

import (
	"bytes"
	"strings"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// Topic names a list of the owner API in which something changed.
type Topic = owner.Topic

const (
	TopicReset         = owner.TopicReset
	TopicInbox         = owner.TopicInbox
	TopicApprovals     = owner.TopicApprovals
	TopicConversations = owner.TopicConversations
	TopicOutbox        = owner.TopicOutbox
	TopicNotices       = owner.TopicNotices
	TopicPeers         = owner.TopicPeers
	TopicAudit         = owner.TopicAudit
	TopicStatus        = owner.TopicStatus
)

// Event reports that something changed.
type Event = owner.Event

// Watch returns a channel of events that closes when stop is called or the node ends. A slow watcher loses events and
// gets an event with [TopicReset] instead. stop may be called twice.
func (n *Node) Watch() (events <-chan Event, stop func()) {
	w, _, _ := n.events.Watch("")
	return w.C, func() { n.events.Unwatch(w) }
}

// topicOf maps a record namespace to the list that shows its records.
var topicOf = map[string]Topic{
	nsInbox: TopicInbox, acl.AskNamespace: TopicApprovals, nsOutbox: TopicOutbox, "notices": TopicNotices,
	"rules": TopicPeers, "recipients": TopicPeers, nsAliases: TopicPeers,
}

// eventsOf returns an event for each record in a namespace of topicOf, and one for each conversation that the terms of
// such a record name: "conv/…" for questions, "conv:…" for other records.
func eventsOf(changes []store.Change) []Event {
	var list []Event
	reported := make(map[string]bool, 1)
	for _, c := range changes {
		topic, ok := topicOf[c.Record.NS]
		if !ok {
			continue
		}
		// The search in the body may also find a payload with an address. It is cheaper than decoding every item.
		ev := Event{Topic: topic, ID: c.Record.Key, Foreign: topic == TopicInbox && bytes.Contains(c.Record.Body, []byte(`"address":`))}
		for _, term := range c.Record.Terms {
			if state, ok := strings.CutPrefix(term, "state:"); ok {
				ev.State = state
			}
			conv, ok := strings.CutPrefix(strings.Replace(term, "conv/", "conv:", 1), "conv:")
			if !ok {
				continue
			}
			ev.Peer, ev.Conversation, _ = strings.Cut(conv, "/")
			if !reported[conv] {
				reported[conv] = true
				list = append(list, Event{Topic: TopicConversations, ID: ev.Conversation, Peer: ev.Peer, Conversation: ev.Conversation})
			}
		}
		if c.Delete {
			ev.State = "deleted"
		}
		list = append(list, ev)
	}
	return list
}
