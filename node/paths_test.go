//go:build paths

package node_test

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPaths sends one message of an owner to another node. docs/paths_test.go runs it with a tracer in each function.
func TestPaths(t *testing.T) {
	mesh := meshtest.New(t)
	chris, sarah := mesh.Node("chris", nil), mesh.Node("sarah", nil)
	payload, err := wire.Parse([]byte(propose))
	if err != nil {
		t.Fatal(err)
	}
	m := owner.NewMessage{To: string(sarah.ID()), Intent: wire.Schedule, Payload: payload}
	if sent, err := chris.OwnerAPI().Send(t.Context(), m, 10*time.Second); err != nil || sent.State != owner.SendDelivered {
		t.Fatalf("Send = %+v, %v", sent, err)
	}
}
