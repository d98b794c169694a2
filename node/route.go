package node

import (
	"context"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Route sends the messages of some intents to a handler.
type Route struct {
	Pattern    string       // see [acl.Match]
	Name       string       // for status and log
	Handler    hook.Handler // nil: the inbox
	Repeatable bool         // may run again after a crash during its run (AM-75)
	Foreign    bool         // forwards messages to a foreign network, so a sealed message waits for the owner
	Replies    bool         // also handles replies, which otherwise go to the inbox
	Receipts   string       // the action of answers that only confirm our message, or ""
	Duty       string       // runs apart from other duties (see [hook.Pool]); "" for the programs of the owner
}

// ruled returns what the rules know of the route.
func (r Route) ruled() rules.Route {
	return rules.Route{Name: r.Name, Handles: r.Handler != nil, Replies: r.Replies, Foreign: r.Foreign}
}

// route returns the first configured route that matches, else the route of a bridge, else the inbox. A bridge takes
// precedence over a configured route whose pattern is "*".
func (n *Node) route(intent wire.Intent) Route {
	bridged, ok := n.bridges.route(intent)
	for _, r := range n.cfg.Routes {
		if ok && r.Pattern == "*" {
			break
		}
		if acl.Match(r.Pattern, string(intent)) {
			return r
		}
	}
	if ok {
		return bridged
	}
	return Route{Pattern: "*", Name: "inbox"}
}

// clarifyRoute answers an ambiguous accept with our offer again, reduced to a single time (AM-88).
var clarifyRoute = Route{Name: "agreement", Repeatable: true, Replies: true, Handler: clarifier{}, Duty: "agreement"}

// routeOf returns the route of a message that is handled already: that of its intent, clarifyRoute for the ambiguous
// accept in conv, or judgeRoute if only the guard holds it up.
func (n *Node) routeOf(conv conversations.Conversation, item Item) Route {
	route := n.route(item.Intent)
	switch {
	case item.MessageID != "" && item.MessageID == conv.Unclear:
		return clarifyRoute
	case item.Unjudged && !route.ruled().Takes(item.Kind == kindReply):
		return judgeRoute
	}
	return route
}

// noteUnclear is the note on an ambiguous accept that the owner must answer.
const noteUnclear = "this accepts without saying which proposal or time: ask, or propose a single time"

type clarifier struct{}

// Handle repeats our offer with a single time. If that is not possible, it leaves the message to the owner.
func (clarifier) Handle(_ context.Context, c hook.Call) (hook.Answer, error) {
	payload, ok := c.Conversation.Clarification(c.Message.ID)
	if !ok {
		return hook.Answer{Hold: noteUnclear}, nil
	}
	return hook.Answer{Payload: &payload}, nil
}
