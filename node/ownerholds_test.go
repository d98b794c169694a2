package node_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestOwnerHolds: the rules of a bridge for what the owner writes apply to nobody else, and a rule that the owner
// configured comes first.
func TestOwnerHolds(t *testing.T) {
	const intent = "com.example.task"
	for _, tt := range []struct {
		via        string
		configured bool
		held       bool
	}{{"owner", false, false}, {"agent", false, true}, {"hook", false, true}, {"bridge", false, true}, {"owner", true, true}} {
		synctest.Test(t, func(t *testing.T) {
			sarah := meshtest.InMemory(t).Node("sarah", func(c *node.Config) {
				unlimited(c)
				if tt.configured {
					c.Policy.Hold = []acl.HoldRule{{Intent: intent, Hold: acl.Always}}
				}
			})
			kind := bridge.Kind{Name: "wire", OwnerHolds: []acl.HoldRule{{Intent: intent, Direction: acl.Out, Hold: acl.Never}}}
			sarah.Connect(kind, &wireTransport{deliver: func(context.Context, bridge.Delivery) (bridge.Delivered, error) { return bridge.Delivered{}, nil }})
			sarah.Start()
			out := to("ann", "conv_1", "")
			out.Intent, out.Payload, out.Via = intent, wire.Obj(wire.TextField("action", "create")), tt.via
			sent, err := sarah.Node.Send(t.Context(), out, 0)
			if held := sent.State == owner.SendHeld; err != nil || held != tt.held {
				t.Errorf("via %s, configured %v: %+v, %v, want held %v", tt.via, tt.configured, sent, err, tt.held)
			}
		})
	}
}
