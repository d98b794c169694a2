package directory

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// passThrough offers a message to a connected agent and waits for the reply. It returns false if no agent is connected,
// or if none fetched or answered the message in time.
func (r *Registry) passThrough(ctx context.Context, p posting, now time.Time) (transitReply, bool) {
	id, err := r.relayID(ctx, p.box.Owner, r.newMailKey(now), now)
	if err != nil {
		return transitReply{}, false // storing the message fails too
	}
	o := &transit{
		id: id, sender: p.sender, msg: p.msg, raw: p.raw, created: now, replyBy: now.Add(replyWithin),
		taken: make(chan struct{}), answer: make(chan transitReply, 1),
	}
	owner := p.box.Owner
	if !r.connections.offer(owner, o, time.Now()) {
		return transitReply{}, false
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
			has = nil // do not receive from the closed channel again
			continue
		case <-taken.C:
		case <-end.C:
		case <-ctx.Done():
		}
		if r.connections.withdraw(owner, o) {
			return transitReply{}, false
		}
		return <-o.answer, true // the reply came at the same moment
	}
}

// checkReply validates an agent's reply to a message that passed through, and returns the status that the sender gets
// with it.
func checkReply(o *transit, raw []byte) (status int, err error) {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return 0, wire.ErrSyntax.Because(err)
	}
	if failure, isError := tree.Get("error"); isError {
		return statusOf(wire.Code(failure.GetStr("code"))), nil
	}
	m, err := wire.ParseMessage(tree)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return 0, wire.ErrSchema.WithField(field)
	}
	if m.From != o.msg.To || m.To != o.msg.From || m.Conversation != o.msg.Conversation {
		return 0, wire.ErrRecipient.At("the reply must be by the agent, to the sender, in the same conversation")
	}
	if m.Action() == "pending_approval" {
		return http.StatusAccepted, nil
	}
	return http.StatusOK, nil
}

// statusOf returns the HTTP status of an error body with this code. Some codes have several rows in the table; statusOf
// picks the usual one.
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
