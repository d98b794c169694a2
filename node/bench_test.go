package node_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// BenchmarkReceive measures the reception of a message of a known peer, from its bytes to the signed answer, each in a
// new conversation. In the second case a bridge follows the node, as in a process that serves every bridge.
func BenchmarkReceive(b *testing.B) {
	for _, followed := range []bool{false, true} {
		b.Run(fmt.Sprintf("followed=%v", followed), func(b *testing.B) {
			mesh := meshtest.New(b)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Mode, cfg.Exempt = acl.Open, []string{string(chris.ID)} })
			if followed {
				door, err := sarah.Attach(bridge.Kind{Name: "test"}, nil)
				if err != nil {
					b.Fatal(err)
				}
				go door.Follow(b.Context(), func(bridge.Event) {})
			}
			bodies := make([][]byte, b.N)
			for i := range bodies {
				bodies[i] = chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for _, body := range bodies {
				if out, err := sarah.Receive(b.Context(), body); err != nil || out.Status != http.StatusOK {
					b.Fatalf("Receive = %d, %v", out.Status, err)
				}
			}
		})
	}
}

// BenchmarkSend measures the unit that adds a message to its conversation and the outbox.
func BenchmarkSend(b *testing.B) {
	mesh := meshtest.New(b)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	sarah.Stop()
	payload, err := wire.Parse([]byte(hello))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		sent, err := sarah.Send(b.Context(), node.Outgoing{To: chris.ID, Intent: wire.Deliver, Payload: payload, Via: "owner"}, 0)
		if err != nil || sent.State != node.SendQueued {
			b.Fatalf("Send = %+v, %v", sent, err)
		}
	}
}

// BenchmarkStatus measures the status with a thousand messages that wait for the owner.
func BenchmarkStatus(b *testing.B) {
	const waiting = 1000
	mesh := meshtest.New(b)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Mode, cfg.Exempt = acl.Open, []string{string(chris.ID)} })
	for range waiting {
		if out, err := sarah.Receive(b.Context(), chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))); err != nil || out.Status != http.StatusOK {
			b.Fatalf("Receive = %d, %v", out.Status, err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if s, err := sarah.OwnerAPI().Status(b.Context()); err != nil || s.Inbox != waiting {
			b.Fatalf("Status = %+v, %v", s, err)
		}
	}
}
