package node

import (
	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
)

// bridgeAsked tells the owner that a bridge asks something: its question comes without a notice of its own.
func (n *Node) bridgeAsked(ask acl.Ask) []store.Change {
	if _, own := questions[ask.Kind]; own {
		return nil
	}
	return []store.Change{n.notices.Change(notify.Notice{
		Kind: "approval", Title: "something waits for your decision", Text: ask.Title, At: ask.Created,
	})}
}
