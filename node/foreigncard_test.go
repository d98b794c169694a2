package node_test

import (
	"context"
	"errors"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestForeignCardAsksTheOwner: a card in another network is fetched where a message may leave, because the address may
// carry what the owner would not let out.
func TestForeignCardAsksTheOwner(t *testing.T) {
	mesh := meshtest.New(t)
	kind := bridge.Kind{Name: "a2a", Web: true}
	for mode, want := range map[acl.Mode]error{acl.Open: nil, acl.Approval: httpapi.ErrOwnerDecides, acl.Allowlist: rules.ErrOutbound} {
		sarah := mesh.Node("sarah-"+string(mode), func(c *node.Config) { c.Outbound.Mode = mode })
		sarah.Connect(kind, cards{})
		card, ok, err := sarah.ForeignCard(t.Context(), "a2a:https://agent.example")
		if !ok || !errors.Is(err, want) || (err == nil) != (card.GetStr("name") == "Helper") {
			t.Errorf("%s: %v, %t, %v; want %v", mode, card, ok, err, want)
		}
	}
}

// cards is a network whose agents have cards.
type cards struct{ bridge.Transport }

func (cards) ReadCard(context.Context, bridge.Address) (wire.Value, error) {
	return wire.Obj(wire.TextField("name", "Helper")), nil
}
