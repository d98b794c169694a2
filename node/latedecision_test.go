package node_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestTooLateToDecide: a decision about an ended question changes nothing, and its error says how the question ended.
func TestTooLateToDecide(t *testing.T) {
	for _, c := range []struct {
		name string
		ends func(t *testing.T, m *meshtest.Member, chris *meshtest.Stranger, ask acl.Ask)
		says string
	}{
		{"decided", func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger, ask acl.Ask) {
			decide(t, m, ask, acl.Reject)
		}, "decided (reject) by test"},
		{"taken back", func(t *testing.T, m *meshtest.Member, chris *meshtest.Stranger, ask acl.Ask) {
			must(t, m.Post(chris.Sign(in("conv_one", chris.Draft(m.ID(), wire.Schedule, `{"action":"cancel"}`)))), http.StatusOK)
		}, "taken back"},
		{"closed", func(t *testing.T, m *meshtest.Member, chris *meshtest.Stranger, ask acl.Ask) {
			must(t, m.Post(chris.Sign(in("conv_one", chris.Draft(m.ID(), wire.Schedule, closing)))), http.StatusOK)
		}, "its conversation ended"},
		{"answered by hand", func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger, ask acl.Ask) {
			body := map[string]any{"conversation": "conv_one", "payload": json.RawMessage(`{"action":"decline"}`)}
			if status := m.Call("POST", "/reply", body, nil); status != http.StatusOK {
				t.Fatalf("reply: %d", status)
			}
			if item := theItem(t, m); item.State != owner.ItemAnswered {
				t.Errorf("item = %+v", item)
			}
		}, "answered by hand"},
		{"expired", func(*testing.T, *meshtest.Member, *meshtest.Stranger, acl.Ask) { time.Sleep(8 * 24 * time.Hour) }, "it expired"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				chris := mesh.Stranger("chris")
				sarah := mesh.Node("sarah", mode(acl.Approval))
				raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Schedule, propose)))
				must(t, sarah.Post(raw), http.StatusAccepted)
				ask := theAsk(t, sarah)
				c.ends(t, sarah, chris, ask)
				before := state(t, sarah)
				a := sarah.Ask("POST", "/approvals/"+ask.ID, fmt.Appendf(nil, `{"choice":"approve","hash":%q}`, ask.Hash))
				if a.Status != http.StatusConflict || !bytes.Contains(a.Body, []byte(c.says)) {
					t.Errorf("too late: %d %s, want %q", a.Status, a.Body, c.says)
				}
				if after := state(t, sarah); after != before {
					t.Errorf("state = %s, want %s", after, before)
				}
			})
		})
	}
}

// TestAnswerByHandReachesTheRepeat: if the owner answers a held message by hand, its sender gets that answer when it
// repeats the message (AM-22).
func TestAnswerByHandReachesTheRepeat(t *testing.T) {
	mesh := meshtest.InMemory(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Schedule, propose)))
	must(t, sarah.Post(raw), http.StatusAccepted)
	sarah.Call("POST", "/reply", map[string]any{"conversation": "conv_one", "payload": json.RawMessage(`{"action":"decline"}`)}, nil)
	if m := sarah.Post(raw).Message(t, sarah); m.Action() != "decline" {
		t.Errorf("a repeat gets %s", m.Payload.JSON())
	}
	if n := len(pendingAsks(t, sarah)); n != 0 {
		t.Errorf("%d questions wait", n)
	}
}

// TestFailedDeliveryEndsQuestions: a message that cannot be delivered ends its conversation. The owner is not asked any
// more about other messages of the conversation, because none of them can be approved.
func TestFailedDeliveryEndsQuestions(t *testing.T) {
	mesh := meshtest.New(t)
	ann, sarah := newPeer(t, mesh, "ann"), mesh.Node("sarah", mode(acl.Open))
	must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Negotiate, proposeDeal)))), http.StatusAccepted)
	held := outgoing(t, ann.ID, wire.Handoff, `{"action":"request_human","reason":"r"}`)
	held.Conv = "conv_one"
	mustSend(t, sarah.Node, held, 0)
	if n := len(pendingAsks(t, sarah)); n != 2 {
		t.Fatalf("%d questions wait, want 2", n)
	}
	ann.answers(status(http.StatusBadRequest))
	out := outgoing(t, ann.ID, wire.Deliver, hello)
	out.Conv = "conv_one"
	if sent := mustSend(t, sarah.Node, out, 10*time.Second); sent.State != owner.SendFailed {
		t.Fatalf("the message is %s, want failed", sent.State)
	}
	if n := len(pendingAsks(t, sarah)); n != 0 {
		t.Errorf("%d questions wait about a conversation that has failed", n)
	}
	if item := theItem(t, sarah); item.State != owner.ItemWithdrawn {
		t.Errorf("the held message is %s, want withdrawn", item.State)
	}
}
