package directory

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
)

// passThrough offers a message to a connected agent and waits for the reply. It returns false if no agent is connected,
// if too many messages already pass through, or if no agent fetched or answered the message in time.
func passThrough(ctx context.Context, r *Registry, p posting, now time.Time) (mailbox.Reply, bool) {
	id, err := r.relayID(ctx, p.box.Owner, r.mailUsage.NewKey(now), now)
	if err != nil {
		return mailbox.Reply{}, false // storing the message fails too
	}
	t := &mailbox.Transit{ID: id, Sender: p.sender, Message: p.msg, Raw: p.raw, Created: now, ReplyBy: now.Add(mailbox.ReplyWithin)}
	if r.offers != nil {
		return r.offers.PassThrough(ctx, p.box.Owner, t)
	}
	return r.connections.PassThrough(ctx, p.box.Owner, t)
}
