package link

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	tellEvery   = time.Minute // between two notices to a sender that it sends too much (MEW-Q4)
	maxNotified = 1000        // senders whose last notice is remembered
)

// refused tells the sender of an envelope that the node did not take it, in the words that MEW has for it. It tells
// nobody of an error that is not a refusal by the node.
func (l *Link) refused(ctx context.Context, e *envelope.Envelope, err error) {
	refusal, ok := errors.AsType[*wire.Error](err)
	limited := ok && refusal.Code == wire.RateLimited
	if !ok || limited && !l.notices.mayTell(e.From, time.Now()) {
		return
	}
	switch {
	case e.Kind == envelope.KindRequest:
		id, _ := e.Payload.Get("id")
		l.respond(e, id, wire.Obj(wire.Field("error", rpcFault(rpcRefused, refusal.Message))))
		return
	case e.Kind == envelope.KindProposal && refusal.Retry:
		l.space.answer(e, envelope.KindReject, wire.Obj(wire.TextField("reason", "busy")))
	case e.Kind == envelope.KindProposal:
		l.space.answer(e, envelope.KindReject, wire.Obj(wire.TextField("reason", "policy")))
	}
	if limited {
		status := l.space.statusPayload(ctx).With("status", wire.Text("rate_limited"))
		if refusal.RetryAfter > 0 {
			status = status.With("retry_after", wire.Int(int64(math.Ceil(refusal.RetryAfter.Seconds()))))
		}
		l.space.answer(e, envelope.KindStatus, status)
	}
}

// waits tells the sender of an envelope that the owner decides about it first. It does so each time for a request,
// which has no other answer yet, and for chat as often as [notices.mayTell] allows.
func (l *Link) waits(ctx context.Context, e *envelope.Envelope, out bridge.Outcome) {
	if out.Reply == nil || e.Kind != envelope.KindRequest && !l.notices.mayTell("chat/"+e.From, time.Now()) {
		return
	}
	status := l.space.statusPayload(ctx).With("status", wire.Text(wire.ActionPending))
	l.space.answer(e, envelope.KindStatus, status.With("reason", wire.Text(out.Reply.Payload.GetStr("reason"))))
}

// notices remembers when each sender was last told that something of it was refused.
type notices struct {
	mu   sync.Mutex
	told map[string]time.Time
}

// mayTell reports whether whom was not told anything of this sort within the last minute, and takes it as told now.
func (n *notices) mayTell(whom string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.told[whom]) < tellEvery {
		return false
	}
	if len(n.told) >= maxNotified {
		for name, at := range n.told {
			if now.Sub(at) >= tellEvery {
				delete(n.told, name)
			}
		}
	}
	if len(n.told) >= maxNotified {
		return false
	}
	if n.told == nil {
		n.told = make(map[string]time.Time)
	}
	n.told[strings.Clone(whom)] = now
	return true
}
