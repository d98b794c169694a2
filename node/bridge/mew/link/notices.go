package link

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	tellEvery   = time.Minute // between two notices to one sender about limits, or about held chats (MEW-Q4)
	maxNotified = 1000        // notices that are remembered; beyond them nobody gets one
)

// tellRefusal tells the sender of an envelope that the node refused it, if MEW has an envelope for that. The sender
// learns nothing about other errors.
func (l *Link) tellRefusal(ctx context.Context, e *envelope.Envelope, err error) {
	refusal, ok := errors.AsType[*wire.Error](err)
	limited := ok && refusal.Code == wire.RateLimited
	if !ok || limited && !l.notices.shouldTell(e.From, time.Now()) {
		return
	}
	switch {
	case e.Kind == envelope.KindRequest:
		id, _ := e.Payload.Get("id")
		l.respond(e, id, rpcError(rpcRefused, refusal.Message))
		return
	case e.Kind == envelope.KindProposal && refusal.Retry:
		l.space.answer(e, envelope.KindReject, wire.Obj(wire.TextField("reason", "busy")))
	case e.Kind == envelope.KindProposal:
		l.space.answer(e, envelope.KindReject, wire.Obj(wire.TextField("reason", "policy")))
	}
	if limited {
		status := l.space.statusPayload(ctx).With("status", wire.Text("rate_limited"))
		if refusal.RetryAfter > 0 {
			status = status.With("retry_after", wire.Int(wire.CeilSeconds(refusal.RetryAfter)))
		}
		l.space.answer(e, envelope.KindStatus, status)
	}
}

// submit gives a message to the node. It tells the sender if the node refuses the message, or asks the owner.
func (l *Link) submit(ctx context.Context, e *envelope.Envelope, in bridge.Inbound) error {
	out, err := l.b.cfg.Mesh.Accept(ctx, in)
	l.tellRefusal(ctx, e, err)
	if err == nil && out.Held {
		l.tellPending(ctx, e, out)
	}
	return err
}

// tellPending tells the sender of an envelope that the owner decides about it first: for each request, which has no
// other answer yet, and for chats as often as [notices.shouldTell] allows. It is silent about a message that waits
// behind an earlier question about the sender.
func (l *Link) tellPending(ctx context.Context, e *envelope.Envelope, out bridge.Outcome) {
	if out.Reply == nil || e.Kind != envelope.KindRequest && !l.notices.shouldTell("chat/"+e.From, time.Now()) {
		return
	}
	status := l.space.statusPayload(ctx).With("status", wire.Text(wire.ActionPending))
	l.space.answer(e, envelope.KindStatus, status.With("reason", wire.Text(out.Reply.Payload.GetStr("reason"))))
}

// notices remembers when each sender last got a notice.
type notices struct {
	mu     sync.Mutex
	lastAt map[string]time.Time
}

// shouldTell reports whether a sender may get a notice now, and records the notice. A sender gets at most one in a
// minute, and none while too many senders are remembered. The key names the sender and the kind of notice.
func (n *notices) shouldTell(key string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.lastAt[key]) < tellEvery {
		return false
	}
	if len(n.lastAt) >= maxNotified {
		for name, at := range n.lastAt {
			if now.Sub(at) >= tellEvery {
				delete(n.lastAt, name)
			}
		}
	}
	if len(n.lastAt) >= maxNotified {
		return false
	}
	if n.lastAt == nil {
		n.lastAt = make(map[string]time.Time)
	}
	n.lastAt[strings.Clone(key)] = now
	return true
}
