package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestWaitForForeignAnswer: a sender that waits gets the answer of a foreign peer, which comes as a separate message:
// during the delivery, or later after a receipt. Without an answer the sender gets the receipt at the end of its wait.
// A close and a pending_approval end the wait.
func TestWaitForForeignAnswer(t *testing.T) {
	const answer = `{"action":"deliver","message":{"body":"fine"}}`
	type word struct {
		after   time.Duration // since the delivery; 0: during the delivery
		payload string
	}
	for _, tt := range []struct {
		name  string
		words []word
		want  string // action of the reply
		took  time.Duration
	}{
		{"with the delivery", []word{{0, answer}}, "deliver", 0},
		{"later", []word{{3 * time.Second, answer}}, "deliver", 3 * time.Second},
		{"behind a receipt", []word{{0, `{"action":"received"}`}, {5 * time.Second, answer}}, "deliver", 5 * time.Second},
		{"the peer's owner decides", []word{{0, `{"action":"received"}`}, {2 * time.Second, `{"action":"pending_approval"}`}, {5 * time.Second, answer}}, "pending_approval", 2 * time.Second},
		{"a receipt alone", []word{{0, `{"action":"received"}`}}, "received", 20 * time.Second},
		{"nothing", nil, "", 20 * time.Second},
		{"a close alone", []word{{4 * time.Second, `{"action":"close","status":"completed"}`}}, "", 4 * time.Second},
	} {
		for _, approved := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, " approved=", approved), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var sarah *meshtest.Member
					var said atomic.Int32
					say := func(payload string) {
						id := wire.MessageID(fmt.Sprint("msg_", said.Add(1)))
						if _, err := sarah.Accept(context.Background(), bridgedFrom(t, "toy:link/ann")(id, payload)); err != nil {
							t.Errorf("accept %s: %v", payload, err)
						}
					}
					sarah = meshtest.InMemory(t).Node("sarah", func(c *node.Config) {
						if approved {
							c.Outbound.Approve = []string{"*"}
						}
					})
					sarah.Connect(bridge.Kind{Name: "toy"}, &wireTransport{deliver: func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
						for _, w := range tt.words {
							if w.after == 0 {
								say(w.payload)
							} else {
								time.AfterFunc(w.after, func() { say(w.payload) })
							}
						}
						return bridge.Delivered{Queued: true}, nil
					}})
					sarah.Start()
					type result struct {
						State string `json:"state"`
						Ask   string `json:"ask"`
						Reply struct {
							Payload struct {
								Action string `json:"action"`
							} `json:"payload"`
						} `json:"reply"`
						Sent json.RawMessage `json:"sent"`
					}
					began := time.Now()
					var sent result
					if status := sarah.Call("POST", "/send", map[string]any{
						"to": "toy:link/ann", "conversation": "conv_one", "intent": "mesh.message", "payload": json.RawMessage(hello), "wait_seconds": 20,
					}, &sent); status != http.StatusOK {
						t.Fatalf("POST /send: %d", status)
					}
					if approved {
						ask := theAsk(t, sarah)
						if sent.State != "held" || time.Since(began) != 0 {
							t.Fatalf("before the approval: %+v after %s", sent, time.Since(began))
						}
						var decided result
						if status := sarah.Call("POST", "/approvals/"+ask.ID, map[string]any{"choice": acl.Approve, "hash": ask.Hash, "wait_seconds": 20}, &decided); status != http.StatusOK {
							t.Fatalf("approve: %d", status)
						}
						if err := json.Unmarshal(decided.Sent, &sent); err != nil {
							t.Fatal(err)
						}
					}
					if took := time.Since(began); sent.State != "delivered" || sent.Reply.Payload.Action != tt.want || took != tt.took {
						t.Errorf("%+v after %s, want reply %q after %s", sent, took, tt.want, tt.took)
					}
				})
			})
		}
	}
}

// TestWaitInANodeThatDoesNotRun: a command that opens the node for its own delivery gets an answer that came with the
// delivery, and does not wait for a later one.
func TestWaitInANodeThatDoesNotRun(t *testing.T) {
	var sarah *lone
	out := to("ann", "conv_1", "hello")
	sarah = loneNode(t, t.TempDir(), &wireTransport{deliver: func(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
		if d.Message.Conversation == out.Conv {
			_, err := sarah.Accept(ctx, inbound(out, "wire:test", out.Address))
			return bridge.Delivered{}, err
		}
		return bridge.Delivered{}, nil
	}})
	sent, err := sarah.SendForAnswer(t.Context(), out, time.Hour)
	if payload, _ := sent.ReplyTree.Get("payload"); err != nil || payload.GetStr("action") != "deliver" {
		t.Errorf("%+v, %v, want the answer that came with the delivery", sent, err)
	}
	if sent, err := sarah.SendForAnswer(t.Context(), to("ann", "conv_2", "hello"), time.Hour); err != nil || sent.State != owner.SendDelivered {
		t.Errorf("%+v, %v", sent, err)
	}
}
