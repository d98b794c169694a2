package node_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
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
		if err != nil || sent.State != owner.SendQueued {
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

// BenchmarkNewest measures the page of the newest of six thousand messages that wait for the owner.
func BenchmarkNewest(b *testing.B) {
	mesh := meshtest.New(b)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Mode, cfg.Exempt = acl.Open, []string{string(chris.ID)} })
	for range 6000 {
		if out, err := sarah.Receive(b.Context(), chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))); err != nil || out.Status != http.StatusOK {
			b.Fatalf("Receive = %d, %v", out.Status, err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		list, err := sarah.OwnerAPI().ListItems(b.Context(), owner.Query{State: string(owner.ItemNew), Limit: 25, Newest: true})
		if err != nil || len(list.Items) != 25 || list.Next == "" {
			b.Fatalf("ListItems = %+v, %v", list, err)
		}
	}
}

// BenchmarkRefusal measures an acceptance, and a refusal at each bound of a node: in an hour, in one conversation, of one
// sender, and of all messages that wait for the owner. A refusal must cost less than the work that it refuses.
func BenchmarkRefusal(b *testing.B) {
	few := acl.Rates{NewConversations: 1, Conversation: 1, Total: 1}
	for _, tt := range []struct {
		name    string
		mode    acl.Mode
		rates   acl.Rates
		bytes   int64 // of one conversation
		before  int   // messages that are accepted first, each from another stranger
		ongoing bool  // all messages are in one conversation
		code    wire.Code
	}{
		{"accepted", acl.Open, acl.Rates{}, 0, 0, false, ""},
		{"held", acl.Approval, acl.Rates{}, 0, 0, false, ""},
		{"rate", acl.Open, few, 0, 1, false, wire.RateLimited},
		{"conversation full", acl.Open, acl.Rates{}, 100, 1, true, wire.RateLimited},
		{"holds full", acl.Approval, acl.Rates{}, 0, 200, false, wire.RateLimited},
	} {
		b.Run(tt.name, func(b *testing.B) {
			mesh := meshtest.New(b)
			sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Mode, cfg.Rates, cfg.MaxConvBytes = tt.mode, tt.rates, tt.bytes })
			post := func(i int) error {
				address := bridge.Address{Kind: "test", Link: "net", Peer: fmt.Sprint("stranger-", i)}
				id := wire.NewMessageID()
				conv := wire.ConversationID("conv_" + string(id))
				if tt.ongoing {
					address.Peer, conv = "one", "conv_one"
				}
				payload := parsePayload(b, hello)
				_, err := sarah.Accept(b.Context(), bridge.Inbound{
					Principal: address.String(), Peer: address.Pseudonym(), Address: address.String(), Verified: bridge.VerifiedNone,
					MessageID: id, ConvID: conv, Intent: wire.Deliver, Payload: payload, Raw: payload.JSON(),
					Digest: sha256.Sum256([]byte(id)), Time: time.Now(), Received: time.Now(),
				})
				return err
			}
			for i := range tt.before {
				if err := post(i); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			for i := range b.N {
				err := post(tt.before + i)
				if e := (*wire.Error)(nil); tt.code == "" && err != nil && !errors.Is(err, wire.ErrHoldsFull) || tt.code != "" && (!errors.As(err, &e) || e.Code != tt.code) {
					b.Fatalf("Accept = %v, want %q", err, tt.code)
				}
			}
		})
	}
}
