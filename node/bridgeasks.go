package node

import (
	"slices"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
)

// bridgeAsked tells the owner that a bridge asks something: its question comes without a notice of its own.
func (n *Node) bridgeAsked(ask acl.Ask) []store.Change {
	if isOwnKind(ask.Kind) {
		return nil
	}
	return []store.Change{n.notices.Change(notify.Notice{
		Kind: "approval", Title: "something waits for your decision", Text: ask.Title, At: ask.Created,
	})}
}

// isOwnKind reports whether a question is one of the node's, and not a bridge's.
func isOwnKind(kind string) bool {
	return slices.Contains([]string{askMessage, askOutgoing, askTask, askInterrupted, askKeyChange}, kind)
}
