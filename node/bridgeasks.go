package node

import (
	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
)

// Bridges ask the owner in units of their own, through the same queue. Here is what makes their questions known like
// ours, which come and go with notices and events of their own.

// bridgeAsked tells the owner that a bridge asks something.
func (n *Node) bridgeAsked(ask acl.Ask) []store.Change {
	if _, own := questions[ask.Kind]; own {
		return nil
	}
	return []store.Change{n.notices.Change(notify.Notice{
		Kind: "approval", Title: "something waits for your decision", Text: ask.Title, At: ask.Created,
	})}
}

// bridgeAskEnded tells who watches the queue: its bridge committed the end of it.
func (n *Node) bridgeAskEnded(ask acl.Ask) {
	if _, own := questions[ask.Kind]; !own {
		n.events.publish(Event{Topic: TopicApprovals, ID: ask.ID, State: string(ask.State)})
	}
}
