package directory

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/wire"
)

// passThrough offers a message to a connected agent and waits for the reply. It returns false if no agent is connected,
// or if none fetched or answered the message in time.
func passThrough(ctx context.Context, r *Registry, p posting, now time.Time) (mailbox.Reply, bool) {
	id, err := r.relayID(ctx, p.box.Owner, r.mailUsage.NewKey(now), now)
	if err != nil {
		return mailbox.Reply{}, false // storing the message fails too
	}
	return r.connections.PassThrough(ctx, p.box.Owner, &mailbox.Transit{
		ID: id, Sender: p.sender, Message: p.msg, Raw: p.raw, Created: now, ReplyBy: now.Add(mailbox.ReplyWithin),
	})
}

// checkReply validates an agent's reply to a message that passed through, and returns the status that the sender gets
// with it.
func checkReply(o *mailbox.Transit, raw []byte) (status int, err error) {
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
	if m.From != o.Message.To || m.To != o.Message.From || m.Conversation != o.Message.Conversation {
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
