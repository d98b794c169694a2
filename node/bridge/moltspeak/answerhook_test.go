package moltspeak

import (
	"context"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestHookOfAnswers: a peer's answer to our message goes to the inbox and runs no hook, because MoltSpeak has no answer
// to an answer. A hook that handles replies gets it, and what that hook says leaves as a message of its own. A hook
// that says nothing leaves the answer to the owner, also after the end of the conversation.
func TestHookOfAnswers(t *testing.T) {
	const first, second = `{"action":"deliver","message":{"body":"first"}}`, `{"action":"deliver","message":{"body":"second"}}`
	for _, tt := range []struct {
		name      string
		replies   bool
		says      string // what the hook says; empty: nothing
		status    string // of the peer's answer
		wantState owner.ItemState
		wantLeft  int // messages of ours that reach the peer
	}{
		{"a hook of messages", false, second, "partial", owner.ItemNew, 1},
		{"a hook of replies", true, second, "partial", owner.ItemAnswered, 2},
		{"a silent hook of replies", true, "", "success", owner.ItemNew, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ran := make(chan hook.Call, 10)
			home := meshtest.New(t).Node("home", func(c *node.Config) {
				c.Policy = acl.Policy{Mode: acl.Open}
				c.Routes = []node.Route{{Pattern: "*", Name: "agent", Replies: tt.replies, Handler: agent(func(_ context.Context, c hook.Call) (hook.Answer, error) {
					ran <- c
					if tt.says == "" {
						return hook.Answer{}, nil
					}
					payload := mustTree(t, tt.says)
					return hook.Answer{Payload: &payload}, nil
				})}}
			})
			mesh, err := home.Attach(LinkKind(), nil)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, mesh, home.Store, nil)
			answered := false
			r.reply = func(peer string, got wire.Value) []byte {
				if answered {
					return noAnswer
				}
				answered = true
				d := r.draft(peer, message.OpRespond, `{"status":"`+tt.status+`","data":{"action":"deliver","message":{"body":"answer"}}}`)
				d.Re = got.GetStr("id")
				return r.sign(peer, d)
			}
			home.Connect(LinkKind(), r.b)
			address := bridge.Address{Kind: Kind, Link: linkOf(cat), Peer: cat}
			out := meshtest.Outgoing(t, address.Pseudonym(), wire.Deliver, first)
			out.Address, out.Via = address.String(), "owner"
			meshtest.MustSend(t, home.Node, out, 10*time.Second)
			var items []node.Item
			meshtest.WaitFor(t, "the answer in the inbox", func() bool {
				items, _, err = home.Inbox(t.Context(), "", "", 10)
				return err != nil || len(items) == 1 && items[0].State != owner.ItemRunning && len(r.queue(cat)) >= tt.wantLeft
			})
			if err != nil || items[0].State != tt.wantState || items[0].Kind != "reply" {
				t.Errorf("the owner has the answer as %s %s, %v", items[0].Kind, items[0].State, err)
			}
			if got := len(ran) == 1; got != tt.replies {
				t.Errorf("the hook ran: %v", got)
			}
			entries, err := home.Store.Steps().Transcript(t.Context(), store.ConvKey{Peer: string(items[0].Peer), ID: string(items[0].Conversation)}, 0, 10)
			if err != nil {
				t.Fatal(err)
			}
			sent := 0
			for _, e := range entries {
				if m := mustTree(t, string(e.Raw)); e.Out {
					p, _ := m.Get("payload")
					if p.GetStr("action") == "deliver" {
						sent++
					}
				}
			}
			if left := len(r.queue(cat)); left != tt.wantLeft || sent != left {
				t.Errorf("%d messages reached the peer, and the transcript has %d; want %d", left, sent, tt.wantLeft)
			}
		})
	}
}
