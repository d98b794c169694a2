package node_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestLettingIn (AM-97): what the owner does about a stranger says where the stranger is let in. "here" is a later
// message in the same conversation, "offer" one that the rules of its intent hold, and "elsewhere" another conversation.
func TestLettingIn(t *testing.T) {
	t.Parallel()
	const (
		in, waits, no = http.StatusOK, http.StatusAccepted, http.StatusForbidden
		deal          = `{"action":"propose","terms":{"description":"a deal"}}`
	)
	approve := func(c acl.Choice) func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger) {
		return func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger) { decide(t, m, theAsk(t, m), c) }
	}
	reply := func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger) {
		body := map[string]any{"conversation": "conv_one", "payload": json.RawMessage(hello)}
		if status := m.Call("POST", "/reply", body, nil); status != http.StatusOK {
			t.Fatalf("reply = %d", status)
		}
	}
	write := func(via string) func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger) {
		return func(t *testing.T, m *meshtest.Member, s *meshtest.Stranger) {
			m2 := outgoing(t, s.ID, wire.Deliver, hello)
			m2.Conv, m2.Via = "conv_ours", via
			mustSend(t, m.Node, m2, 0)
		}
	}
	tests := []struct {
		name                   string
		mode                   acl.Mode
		first                  bool // the stranger writes first
		does                   func(t *testing.T, m *meshtest.Member, s *meshtest.Stranger)
		here, offer, elsewhere int
		standing               acl.Standing
	}{
		{"approve", acl.Approval, true, approve(acl.Approve), in, waits, in, acl.Approved},
		{"only this message", acl.Approval, true, approve(acl.ApproveOnce), waits, waits, waits, ""},
		{"this conversation", acl.Approval, true, approve(acl.ApproveConversation), in, waits, waits, ""},
		{"an answer of the owner", acl.Approval, true, reply, in, waits, waits, ""},
		{"an answer after only this message", acl.Approval, true, func(t *testing.T, m *meshtest.Member, s *meshtest.Stranger) {
			approve(acl.ApproveOnce)(t, m, s)
			reply(t, m, s)
		}, in, waits, waits, ""},
		{"the owner opens a conversation", acl.Approval, false, write("owner"), in, waits, in, acl.Approved},
		{"the agent opens one", acl.Approval, false, write(httpapi.DoorOfAgent), waits, waits, waits, ""},
		{"a hook opens one", acl.Approval, false, write("hook"), waits, waits, waits, ""},
		{"the owner opens one, under a list", acl.Allowlist, false, write("owner"), no, no, no, acl.Approved},
		{"the owner opens one after a rejection", acl.Approval, false, func(t *testing.T, m *meshtest.Member, s *meshtest.Stranger) {
			if err := acl.NewRules(m.Store.Records(), acl.Policy{}).Set(t.Context(), string(s.ID), acl.Rejected, time.Now()); err != nil {
				t.Fatal(err)
			}
			write("owner")(t, m, s)
		}, no, no, no, acl.Rejected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				chris := mesh.Stranger("chris")
				sarah := mesh.Node("sarah", mode(tt.mode))
				post := func(conv wire.ConversationID, intent wire.Intent, payload string) int {
					d := chris.Draft(sarah.ID(), intent, payload)
					d.Conversation = conv
					return sarah.Post(chris.Sign(d)).Status
				}
				if tt.first {
					if status := post("conv_one", wire.Deliver, hello); status != waits {
						t.Fatalf("the first message: %d", status)
					}
				}
				tt.does(t, sarah, chris)
				if here := post("conv_one", wire.Deliver, hello); here != tt.here {
					t.Errorf("here: %d, want %d", here, tt.here)
				}
				if elsewhere := post("conv_two", wire.Deliver, hello); elsewhere != tt.elsewhere {
					t.Errorf("elsewhere: %d, want %d", elsewhere, tt.elsewhere)
				}
				if offer := post("conv_one", wire.Negotiate, deal); offer != tt.offer {
					t.Errorf("an offer: %d, want %d", offer, tt.offer)
				}
				var peers owner.List[owner.Peer]
				sarah.Call("GET", "/peers", nil, &peers)
				var standing acl.Standing
				for _, p := range peers.Items {
					if p.ID == string(chris.ID) {
						standing = p.Standing
					}
				}
				if standing != tt.standing {
					t.Errorf("the owner's rule is %q, want %q", standing, tt.standing)
				}
			})
		})
	}
}

// TestApprovalOfAnIntentLetsNobodyIn (AM-97): a plain approval of a message that waits because of its intent is for this
// message, also if the owner does not know its sender.
func TestApprovalOfAnIntentLetsNobodyIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", open)
		talk := func() int {
			return sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"talk"}`))).Status
		}
		if status := talk(); status != http.StatusAccepted {
			t.Fatalf("first: %d", status)
		}
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
		standing, err := acl.NewRules(sarah.Store.Records(), acl.Policy{}).Standing(t.Context(), string(chris.ID), time.Now())
		if status := talk(); status != http.StatusAccepted || err != nil || standing != acl.Unknown {
			t.Errorf("second: %d, the owner's rule is %q, %v", status, standing, err)
		}
	})
}

// TestLettingInBindsTheKey (AM-97): whom the owner lets in, by an approval or a rule, keeps the pinned key for good, so
// that nobody comes in under the same id with another key after a long silence.
func TestLettingInBindsTheKey(t *testing.T) {
	t.Parallel()
	for name, letIn := range map[string]func(t *testing.T, m *meshtest.Member, id wire.AgentID){
		"approve": func(t *testing.T, m *meshtest.Member, _ wire.AgentID) { decide(t, m, theAsk(t, m), acl.Approve) },
		"rule": func(t *testing.T, m *meshtest.Member, id wire.AgentID) {
			m.Call("POST", "/peers/"+string(id), owner.PeerChange{Action: "allow"}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				chris := mesh.Stranger("chris")
				sarah := mesh.Node("sarah", mode(acl.Approval))
				must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
				letIn(t, sarah, chris.ID)
				time.Sleep(200 * 24 * time.Hour)
				if _, err := sarah.Store.Records().Get(t.Context(), "pins", string(chris.ID), time.Now()); err != nil {
					t.Errorf("after a long silence, the pinned key: %v", err)
				}
			})
		})
	}
}
