package directory

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// passThrough gives a connected agent the message and waits for its reply.
func (r *Registry) passThrough(ctx context.Context, p posted, now time.Time) (relayed, bool) {
	id, err := r.relayID(ctx, p.box.Owner, r.mailKey(now), now)
	if err != nil {
		return relayed{}, false // nor can it be kept
	}
	o := &offer{
		id: id, sender: p.sender, msg: p.msg, raw: p.raw, created: now, replyBy: now.Add(replyWithin),
		taken: make(chan struct{}), answer: make(chan relayed, 1),
	}
	owner := p.box.Owner
	if !r.desks.offer(owner, o, time.Now()) {
		return relayed{}, false
	}
	taken := time.NewTimer(takeWithin)
	defer taken.Stop()
	end := time.NewTimer(replyWithin)
	defer end.Stop()
	has := (<-chan struct{})(o.taken)
	for {
		select {
		case a := <-o.answer:
			return a, true
		case <-has:
			taken.Stop()
			has = nil // never again
			continue
		case <-taken.C:
		case <-end.C:
		case <-ctx.Done():
		}
		if r.desks.withdraw(owner, o) {
			return relayed{}, false
		}
		return <-o.answer, true // it came at the same moment
	}
}

// replied judges what an agent answers to a message that passed through, and with which status the sender gets it.
func replied(o *offer, raw []byte) (status int, err error) {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return 0, wire.ErrSyntax.Because(err)
	}
	if told, isError := tree.Get("error"); isError {
		return statusOf(wire.Code(told.GetStr("code"))), nil
	}
	m, err := wire.ParseMessage(tree)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return 0, wire.ErrSchema.Refused(field)
	}
	if m.From != o.msg.To || m.To != o.msg.From || m.Conversation != o.msg.Conversation {
		return 0, wire.ErrRecipient.At("the reply must be by the agent, to the sender, in the same conversation")
	}
	if m.Action() == "pending_approval" {
		return http.StatusAccepted, nil
	}
	return http.StatusOK, nil
}

// statusOf is the status of an error body that does not say it: that of the first row of its code.
func statusOf(code wire.Code) int {
	switch code {
	case wire.AgentUnavailable:
		return http.StatusServiceUnavailable
	case wire.Unauthorized, wire.OwnerRejected:
		return http.StatusForbidden
	case wire.InvalidMessage:
		return http.StatusBadRequest
	}
	for _, row := range wire.Table() {
		if row.Code == code {
			return row.Status
		}
	}
	return http.StatusBadGateway
}
