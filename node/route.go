package node

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Route sends the messages of some intents to a handler.
type Route struct {
	Pattern    string       // see [acl.Match]
	Name       string       // for status and log
	Handler    hook.Handler // nil: the inbox
	Repeatable bool         // may run again after a crash that came while it worked (AM-75)
	Foreign    bool         // takes messages on to a foreign network: a sealed one waits for the owner
	Replies    bool         // also takes synchronous answers to messages of ours, which else are for the inbox
	Receipts   string       // action of answers to messages of ours that say no more than that those arrived; "": none
}

// route returns the first configured route that matches, else that of a bridge, else the inbox.
func (n *Node) route(intent wire.Intent) Route {
	bridged, ok := n.bridges.route(intent)
	for _, r := range n.cfg.Routes {
		if ok && r.Pattern == "*" { // a bridge goes before a hook for everything
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

// pause waits between two attempts; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool { return pauseOr(ctx, d, nil) }

// pauseOr is pause that news ends early.
func pauseOr(ctx context.Context, d time.Duration, news <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-news:
		return true
	case <-ctx.Done():
		return false
	}
}
