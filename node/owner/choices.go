package owner

import (
	"cmp"
	"strings"

	"github.com/agentmesh/agentmesh/acl"
)

// choiceLabels say what each choice does, by kind of question. The kind "" has the labels of all other questions, and
// kindTurns and kindOwnTurns those of a question at a bound on turns (AM-93).
var choiceLabels = map[string]map[acl.Choice]string{
	"": {
		acl.Approve: "Approve", acl.ApproveOnce: "Only this message", acl.ApproveConversation: "Approve this conversation",
		acl.AskAgain: "Ask the guard again", acl.Reject: "Reject", acl.Block: "Block",
	},
	AskMessage:     {acl.Approve: "Approve this message"},
	AskOutgoing:    {acl.Approve: "Send it", acl.ApproveAlways: "Always send to them", acl.Reject: "Do not send"},
	AskTask:        {acl.Approve: "Send it", acl.ApproveAlways: "Always send to them", acl.Reject: "Do not send"},
	AskInterrupted: {acl.Approve: "Run it again", acl.Reject: "Leave it"},
	AskQuestion:    {acl.Approve: "Yes", acl.Reject: "No"},
	AskKeyChange:   {acl.Approve: "Accept the new key", acl.Reject: "Keep the old key"},
	kindOwnTurns: {
		acl.Approve: "Send it, and as many turns again", acl.ApproveConversation: "Send it, and let them talk for 24 hours", acl.Reject: "Do not send",
	},
	kindTurns: {acl.Approve: "As many turns again", acl.ApproveConversation: "Let them talk for 24 hours", acl.Reject: "End it"},
}

const kindTurns, kindOwnTurns = "turns", "own turns"

// Label says what a choice does.
func (a Approval) Label(c acl.Choice) string {
	kind := a.Kind
	switch {
	case a.LetsIn(c):
		return "Let them in"
	case len(a.Messages) > 0 && a.Messages[0].Hold == "turns":
		kind = kindTurns
	case a.Kind == AskOutgoing && strings.HasPrefix(a.Rule, "autonomy."):
		kind = kindOwnTurns
	}
	label := cmp.Or(choiceLabels[kind][c], choiceLabels[""][c], string(c))
	if len(a.Messages) > 1 {
		label = strings.ReplaceAll(label, "this message", "these messages")
	}
	return label
}

// Outcome says how a question ended, or that it waits.
func Outcome(ask acl.Ask) string {
	switch {
	case ask.State == acl.AskApproved && ask.LetsIn(ask.Choice):
		return "approved, and the sender is let in"
	case ask.State == acl.AskApproved && ask.Choice != acl.Approve:
		return map[acl.Choice]string{
			acl.ApproveOnce: "approved once", acl.ApproveConversation: "approved, this conversation", acl.ApproveAlways: "approved, always",
			acl.AskAgain: "the guard let it through",
		}[ask.Choice]
	case ask.State == acl.AskRejected && ask.Choice == acl.Block:
		return "blocked"
	case ask.State == acl.AskWithdrawn:
		return "withdrawn, or answered elsewhere"
	case ask.State == acl.AskExpired && !ask.Displaced.IsZero():
		return "expired: the list was full, and another sender got its place"
	case ask.State == acl.AskExpired:
		return "expired without a decision"
	case ask.State == acl.AskPending:
		return "waiting"
	}
	return string(ask.State) // approved, rejected
}
