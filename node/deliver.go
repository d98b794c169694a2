package node

import "context"

// Deliver works on the outbox, and on nothing else that [Node.Run] does, until ctx ends: for a command that opens
// the node for a moment and must not answer, register or run hooks.
func (n *Node) Deliver(ctx context.Context) { n.outbox.run(ctx) }
