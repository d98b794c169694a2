package node

import (
	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Route sends the messages of some intents to a handler.
type Route struct {
	Pattern    string       // see [acl.Match]
	Name       string       // for status and log
	Handler    hook.Handler // nil: the inbox
	Repeatable bool         // may run again after a crash during its run (AM-75)
	Foreign    bool         // forwards messages to a foreign network, so a sealed one waits for the owner
	Replies    bool         // also handles synchronous replies, which otherwise go to the inbox
	Receipts   string       // the action of answers that only confirm our message, or ""
}

// route returns the first configured route that matches, else the route of a bridge, else the inbox. A bridge takes
// precedence over a configured route for all intents ("*").
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
