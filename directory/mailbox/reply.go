package mailbox

import (
	"errors"
	"net/http"

	"github.com/agentmesh/agentmesh/node/wire"
)

// CheckReply validates an agent's reply to a message that passed through, and returns the status of the response
// to the sender.
func CheckReply(original wire.Message, raw []byte) (status int, err error) {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return 0, wire.ErrSyntax.Because(err)
	}
	if failure, isError := tree.Get("error"); isError {
		return StatusOf(wire.Code(failure.GetStr("code"))), nil
	}
	m, err := wire.ParseMessage(tree)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return 0, wire.ErrSchema.WithField(field)
	}
	if m.From != original.To || m.To != original.From || m.Conversation != original.Conversation {
		return 0, wire.ErrRecipient.At("the reply must be from the agent, to the sender, in the same conversation")
	}
	if m.Action() == "pending_approval" {
		return http.StatusAccepted, nil
	}
	return http.StatusOK, nil
}

// StatusOf returns the HTTP status of an error body with this code. If [wire.Table] has several rows for the code,
// StatusOf returns the usual status.
func StatusOf(code wire.Code) int {
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
