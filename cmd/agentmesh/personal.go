package main

import (
	"context"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
)

// watched is the transport of a bridge that asks nobody for consent: it tells the owner when personal data leaves, and
// lets it leave (MS-40). The bridge of MoltSpeak blocks instead.
type watched struct {
	bridge.Transport
	warn func(ctx context.Context, d bridge.Delivery, types []string)
}

// Deliver implements [bridge.Transport].
func (w watched) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	if d.Attempt <= 1 { // once for a message
		if types := personal.Types(d.Message.Payload.Without("metadata")); len(types) > 0 {
			w.warn(ctx, d, types)
		}
	}
	return w.Transport.Deliver(ctx, d)
}

// personalLeaves tells the owner by kinds, never by content.
func (p *process) personalLeaves(ctx context.Context, d bridge.Delivery, types []string) {
	p.log.WarnContext(ctx, "personal data leaves over a bridge", "to", d.Address, "message_id", d.Message.ID, "types", types)
	p.tell(ctx, notify.Notice{
		Kind: "personal", Title: "a message with personal data left over a bridge", At: time.Now(),
		Text: strings.Join(types, ", ") + " to " + d.Address, Peer: d.To, Conv: store.ConvKey{Peer: string(d.To), ID: string(d.Message.Conversation)},
	})
}
