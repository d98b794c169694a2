package node

import (
	"context"
	"time"
)

// Deliver works on the outbox, and on nothing else that [Node.Run] does, until ctx ends: for a command that opens
// the node for a moment and must not answer, register or run hooks.
func (n *Node) Deliver(ctx context.Context) { n.outbox.Run(ctx) }

// Attempted waits until every letter that is due has been tried, or ctx ends: for who calls Deliver and is done.
func (n *Node) Attempted(ctx context.Context) {
	const look = 20 * time.Millisecond
	for n.outbox.IsBusy(time.Now()) && pause(ctx, look) {
	}
}
