package owner

import "slices"

// Node is everything that the owner API needs of a node.
type Node interface {
	Control
	Events
	Inbox
	Messages
	Approvals
	Conversations
	Peers
	Listings
}

// Operations returns the operations of a node. Each operation also has a handler for the owner's agent.
func Operations(n Node) []Operation {
	all := operationsOf(WithNames(n))
	for i, op := range operationsOf(agentNode{n}) {
		all[i].handleAgent = op.Handle
	}
	return all
}

func operationsOf(n Node) []Operation {
	return slices.Concat(
		controlOperations(n), eventOperations(n), inboxOperations(n), messageOperations(n), approvalOperations(n),
		conversationOperations(n), peerOperations(n), listingOperations(n),
	)
}
