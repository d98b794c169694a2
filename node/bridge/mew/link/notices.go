package link

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// maxNotified bounds the senders with a notice in the last minute. Beyond it, nobody else gets a notice.
const maxNotified = 1000

// newNotices returns the limit for notices to a sender: in a minute, one about limits, and one about chats that wait for
// the owner (MEW-Q4).
func newNotices() *rate.Buckets { return rate.NewBuckets(rate.PerMinute(1), 1, maxNotified) }

// shouldTell reports whether a sender may get a notice of a kind now. If so, it counts the notice.
func shouldTell(notices *rate.Buckets, kind, sender string) bool {
	_, ok := notices.Take(kind+"/"+sender, time.Now())
	return ok
}

// tellRefusal tells the sender of an envelope that the node refused it, if MEW has an envelope for that. The sender
// learns nothing about other errors.
func (l *Link) tellRefusal(ctx context.Context, e *envelope.Envelope, err error) {
	refusal, ok := errors.AsType[*wire.Error](err)
	limited := ok && refusal.Code == wire.RateLimited
	if !ok || limited && !shouldTell(l.notices, "limit", e.From) {
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

// tellPending tells the sender of an envelope that the owner decides about the envelope first. It does so for every
// request, because a request has no other answer yet, and once a minute for chats. It says nothing about a message that
// waits behind an earlier question about the sender.
func (l *Link) tellPending(ctx context.Context, e *envelope.Envelope, out bridge.Outcome) {
	if out.Reply == nil || e.Kind != envelope.KindRequest && !shouldTell(l.notices, "chat", e.From) {
		return
	}
	status := l.space.statusPayload(ctx).With("status", wire.Text(wire.ActionPending))
	l.space.answer(e, envelope.KindStatus, status.With("reason", wire.Text(out.Reply.Payload.GetStr("reason"))))
}
