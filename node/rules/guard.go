package rules

import (
	"regexp"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

// HasText reports whether a payload has words that could instruct an agent, so that a guard judges it (AM-95). A receipt,
// a close or a bare decision has none if its reason is a code or one of our own texts.
func HasText(payload wire.Value) bool {
	return slices.ContainsFunc(payload.Members(), func(m wire.Member) bool {
		text, _ := m.Value.Str()
		switch m.Key {
		case "action":
			return !slices.Contains(bareActions, text)
		case "status":
			return text != string(conversations.Completed) && text != string(conversations.Failed)
		case "estimated_response":
			_, err := time.Parse(time.RFC3339, text)
			return err != nil
		case "reason":
			return !reasonCode.MatchString(text) && !slices.Contains(ourReasons, text)
		case "metadata":
			return m.Value.Without("in_reply_to").Len() > 0 || !wire.MessageID(m.Value.GetStr("in_reply_to")).Valid()
		}
		return true
	})
}

var (
	bareActions = []string{
		wire.ActionReceived, wire.ActionPending, wire.ActionClose, "confirmed", "acknowledged", "accept", "decline", "reject", "withdraw", "cancel",
	}
	reasonCode = regexp.MustCompile(`^[A-Z]{1,20}(_[A-Z]{1,20}){0,3}$`)
)
