package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const deal = `{"action":"propose","terms":{"description":"ten cups","price":"30 EUR"}}`

// TestOutgoingMode (AM-50): to whom our side may write, through every door.
func TestOutgoingMode(t *testing.T) {
	cases := []struct {
		name   string
		policy node.OutboundPolicy
		before func(m *meshtest.Member, to string)
		state  owner.SendState
		err    error
	}{
		{"open by default", node.OutboundPolicy{}, nil, owner.SendQueued, nil},
		{"a list is an allowlist", node.OutboundPolicy{Allow: []string{"am_else"}}, nil, "", rules.ErrOutbound},
		{"open with a list", node.OutboundPolicy{Mode: acl.Open, Allow: []string{"am_else"}}, nil, owner.SendQueued, nil},
		{"allowlist, nobody on it", node.OutboundPolicy{Mode: acl.Allowlist}, nil, "", rules.ErrOutbound},
		{"allowlist ignores what was approved", node.OutboundPolicy{Mode: acl.Allowlist}, allowWrite, "", rules.ErrOutbound},
		{"approval", node.OutboundPolicy{Mode: acl.Approval}, nil, owner.SendHeld, nil},
		{"approval, remembered", node.OutboundPolicy{Mode: acl.Approval}, allowWrite, owner.SendQueued, nil},
		{"a peer that may write to us", node.OutboundPolicy{Mode: acl.Approval}, changePeer("allow"), owner.SendHeld, nil},
		{"blocked", node.OutboundPolicy{}, changePeer("block"), "", rules.ErrBlocked},
		{"blocked beats remembered", node.OutboundPolicy{Mode: acl.Approval}, func(m *meshtest.Member, to string) {
			allowWrite(m, to)
			changePeer("block")(m, to)
		}, "", rules.ErrBlocked},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			ann := mesh.Stranger("ann")
			chris := mesh.Node("chris", func(cfg *node.Config) { cfg.Outbound = c.policy })
			if c.before != nil {
				c.before(chris, string(ann.ID))
			}
			for _, via := range []string{"owner", "hook", "bridge", "mcp"} {
				out := outgoing(t, ann.ID, wire.Deliver, hello)
				out.Via = via
				sent, err := chris.Send(t.Context(), out, 0)
				if sent.State != c.state || !errors.Is(err, c.err) {
					t.Errorf("via %s: %+v, %v, want %q, %v", via, sent, err, c.state, c.err)
				}
			}
		})
	}
}

func changePeer(action string) func(*meshtest.Member, string) {
	return func(m *meshtest.Member, to string) {
		m.Call("POST", "/peers/"+to, map[string]string{"action": action}, nil)
	}
}

func allowWrite(m *meshtest.Member, to string) { changePeer("write")(m, to) }

// TestCommitmentsWaitAtEveryDoor (AM-31): an offer of ours is held for the owner, whether the owner API, a bridge or a
// hook sends it, on the connection or later.
func TestCommitmentsWaitAtEveryDoor(t *testing.T) {
	for _, c := range []struct {
		name    string
		intent  wire.Intent
		payload string
		waits   bool
	}{
		{"an offer", wire.Negotiate, deal, true},
		{"an accept", wire.Negotiate, `{"action":"accept"}`, true},
		{"no", wire.Negotiate, `{"action":"reject"}`, false},
		{"a receipt", wire.Negotiate, `{"action":"received"}`, false},
		{"asking for a person", wire.Handoff, `{"action":"request_human","reason":"talk"}`, true},
		{"custom", "com.example.order", `{"action":"order"}`, true},
		{"a meeting", wire.Schedule, propose, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			ann := mesh.Stranger("ann")
			chris := mesh.Node("chris", unlimited)
			want := owner.SendQueued
			if c.waits {
				want = owner.SendHeld
			}
			for _, via := range []string{"hook", "bridge"} {
				out := outgoing(t, ann.ID, c.intent, c.payload)
				out.Via = via
				if sent := mustSend(t, chris.Node, out, 0); sent.State != want {
					t.Errorf("via %s: %+v, want %s", via, sent, want)
				}
			}
			var sent owner.Sent
			body := map[string]any{"to": ann.ID, "intent": c.intent, "payload": json.RawMessage(c.payload)}
			if status := chris.Call("POST", "/send", body, &sent); status != http.StatusOK || sent.State != want {
				t.Errorf("POST /send: %d %+v, want %s", status, sent, want)
			}
			must(t, chris.Post(ann.Sign(in("conv_in", ann.Draft(chris.ID(), wire.Deliver, hello)))), http.StatusOK)
			body = map[string]any{"conversation": "conv_in", "intent": c.intent, "payload": json.RawMessage(c.payload)}
			if status := chris.Call("POST", "/reply", body, &sent); status != http.StatusOK || sent.State != want {
				t.Errorf("POST /reply: %d %+v, want %s", status, sent, want)
			}
		})
	}
}

// TestHookAnswerWaits: a hook's answer that commits the owner is held. The sender gets a pending answer, and the hook's
// answer only if the owner approves it.
func TestHookAnswerWaits(t *testing.T) {
	for _, late := range []bool{false, true} {
		for _, choice := range []acl.Choice{acl.Approve, acl.Reject} {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				chris := mesh.Stranger("chris")
				answer, err := wire.Parse([]byte(`{"action":"accept"}`))
				if err != nil {
					t.Fatal(err)
				}
				sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
					if late {
						time.Sleep(time.Minute)
					}
					return hook.Answer{Payload: &answer}, nil
				}, unlimited, func(cfg *node.Config) {
					cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.negotiate", Direction: acl.In, Hold: acl.Never}}
				}))
				raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Negotiate, deal)))
				a := sarah.Post(raw)
				must(t, a, http.StatusAccepted)
				time.Sleep(2 * time.Minute)
				ask := theAsk(t, sarah)
				if ask.Kind != "outgoing" || ask.Rule != "hold=mesh.negotiate" {
					t.Errorf("ask = %+v", ask)
				}
				must(t, sarah.Post(raw), http.StatusAccepted) // a repeat changes nothing
				items, _, err := sarah.Inbox(t.Context(), owner.ItemHeld, "", 10)
				if err != nil || len(items) != 1 || items[0].Ask != ask.ID {
					t.Fatalf("held items = %+v, %v", items, err)
				}
				decide(t, sarah, ask, choice)
				item, err := sarah.Item(t.Context(), items[0].ID)
				if err != nil {
					t.Fatal(err)
				}
				final := sarah.Post(raw)
				if choice == acl.Reject {
					must(t, final, http.StatusAccepted)
					if item.State != owner.ItemNew || item.Note == "" {
						t.Errorf("after the refusal: %+v", item)
					}
					return
				}
				must(t, final, http.StatusOK)
				if m := final.Message(t, sarah); m.Action() != "accept" || m.Meta("in_reply_to") == "" || item.State != owner.ItemAnswered {
					t.Errorf("final answer = %s, item %s", final.Body, item.State)
				}
			})
		}
	}
}

// TestHookCannotWriteOffTheList: outgoing.mode applies to hooks too; the message stays with the owner.
func TestHookCannotWriteOffTheList(t *testing.T) {
	mesh := meshtest.InMemory(t)
	chris := mesh.Stranger("chris")
	answer, _ := wire.Parse([]byte(`{"action":"deliver","message":{"body":"the secret"}}`))
	sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		return hook.Answer{Payload: &answer}, nil
	}, func(cfg *node.Config) { cfg.Outbound.Mode = acl.Allowlist }))
	a := sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
	must(t, a, http.StatusAccepted)
	if m := a.Message(t, sarah); m.Action() != wire.ActionPending {
		t.Errorf("answer = %s", a.Body)
	}
	items, _, err := sarah.Inbox(t.Context(), owner.ItemFailed, "", 10)
	if err != nil || len(items) != 1 || items[0].Note == "" {
		t.Errorf("items = %+v, %v", items, err)
	}
}

// TestOutgoingShowsTheRecipient: the owner sees the recipient, its key, and where the key was proven.
func TestOutgoingShowsTheRecipient(t *testing.T) {
	mesh := meshtest.New(t)
	ann := mesh.Node("ann", open)
	chris := mesh.Node("chris", func(cfg *node.Config) { cfg.Outbound.Mode = acl.Approval })
	sent := mustSend(t, chris.Node, outgoing(t, ann.ID(), wire.Deliver, hello), 0)
	if sent.State != owner.SendHeld {
		t.Fatalf("sent = %+v", sent)
	}
	ask := theAsk(t, chris)
	var shown struct {
		To        wire.AgentID
		Payload   wire.Value
		Recipient struct {
			Name, Endpoint, Directory, Fingerprint, ID string
			KeyProof                                   time.Time `json:"key_proof"`
		}
	}
	if err := json.Unmarshal(ask.Body, &shown); err != nil {
		t.Fatal(err)
	}
	r := shown.Recipient
	if r.Name != "ann" || r.Endpoint != ann.URL || r.Directory == "" || r.Fingerprint == "" || r.KeyProof.IsZero() || r.ID != "derived" {
		t.Errorf("recipient = %+v", r)
	}
	if ask.Rule != "outgoing.mode=approval" || len(ask.Choices) != 3 {
		t.Errorf("ask = %+v", ask)
	}
	decide(t, chris, ask, acl.ApproveAlways)
	if sent := mustSend(t, chris.Node, outgoing(t, ann.ID(), wire.Deliver, hello), 0); sent.State != owner.SendQueued {
		t.Errorf("after always: %+v", sent)
	}
}

// TestOutgoingIsCheckedAgain: a block, a shorter list or another key between the question and its approval prevents the
// message, and the question stays open (AM-34).
func TestOutgoingIsCheckedAgain(t *testing.T) {
	mesh := meshtest.New(t)
	ann := mesh.Stranger("ann")
	chris := mesh.Node("chris", nil)
	mustSend(t, chris.Node, outgoing(t, ann.ID, wire.Negotiate, deal), 0)
	ask := theAsk(t, chris)
	try := func(m *meshtest.Member, want error) {
		t.Helper()
		_, err := m.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now())
		if !errors.Is(err, want) {
			t.Errorf("approve: %v, want %v", err, want)
		}
		theAsk(t, m)
	}
	changePeer("block")(chris, string(ann.ID))
	try(chris, rules.ErrBlocked)
	changePeer("forget")(chris, string(ann.ID))
	chris = mesh.Restart(chris, func(cfg *node.Config) { cfg.Outbound.Mode = acl.Allowlist })
	try(chris, rules.ErrOutbound)
	chris = mesh.Restart(chris, nil)
	other := meshtest.Card(t, "mallory", "http://127.0.0.1:9/agentmesh").Tree.With("agent_id", wire.Text(string(ann.ID)))
	if status := chris.Call("POST", "/peers", map[string]any{"card": other}, nil); status != http.StatusOK {
		t.Fatalf("give another card: %d", status)
	}
	try(chris, node.ErrRecipientChanged)
}

// TestOutgoingSuspendsTheClock (AM-40): while a message of ours is held, the idle time of its conversation does not
// run.
func TestOutgoingSuspendsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		ann := mesh.Stranger("ann")
		chris := mesh.Node("chris", unlimited)
		must(t, chris.Post(ann.Sign(in("conv_one", ann.Draft(chris.ID(), wire.Negotiate, `{"action":"reject"}`)))), http.StatusOK)
		out := outgoing(t, ann.ID, wire.Negotiate, deal)
		out.Conv = "conv_one"
		mustSend(t, chris.Node, out, 0)
		time.Sleep(3 * 24 * time.Hour)
		decide(t, chris, theAsk(t, chris), acl.Approve)
		time.Sleep(23 * time.Hour)
		key := store.ConvKey{Peer: string(ann.ID), ID: "conv_one"}
		equal(t, "transcript", transcript(t, chris, key), []string{"in reject", "out received", "out propose"})
		must(t, chris.Post(ann.Sign(in("conv_one", ann.Draft(chris.ID(), wire.Negotiate, `{"action":"reject"}`)))), http.StatusOK)
		// After the decision the hold no longer suspends the clock.
		time.Sleep(25 * time.Hour)
		late := chris.Post(ann.Sign(in("conv_one", ann.Draft(chris.ID(), wire.Negotiate, `{"action":"reject"}`))))
		if late.Code() != wire.ConversationClosed {
			t.Errorf("after a day of silence: %d %s", late.Status, late.Body)
		}
	})
}

// TestOutgoingAsksAreBounded: an agent that sends without limit fills only its own queue of questions; other messages
// still leave.
func TestOutgoingAsksAreBounded(t *testing.T) {
	mesh := meshtest.InMemory(t)
	ann := mesh.Stranger("ann")
	chris := mesh.Node("chris", nil)
	for range 200 {
		mustSend(t, chris.Node, outgoing(t, ann.ID, wire.Negotiate, deal), 0)
	}
	if _, err := chris.Send(t.Context(), outgoing(t, ann.ID, wire.Negotiate, deal), 0); !errors.Is(err, node.ErrAsksFull) {
		t.Errorf("one too many: %v, want %v", err, node.ErrAsksFull)
	}
	if sent := mustSend(t, chris.Node, outgoing(t, ann.ID, wire.Deliver, hello), 0); sent.State != owner.SendQueued {
		t.Errorf("another message: %+v", sent)
	}
}

// TestApproveAndWait: a caller that approves a message of ours may wait for its delivery, and gets the verified answer.
func TestApproveAndWait(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		return hook.Answer{Payload: new(outgoing(t, "am_x", wire.Deliver, secretReply).Payload)}, nil
	}))
	chris := mesh.Node("chris", func(cfg *node.Config) { cfg.Outbound.Approve = []string{"*"} })
	for _, wait := range []int{0, 30} {
		if sent := mustSend(t, chris.Node, outgoing(t, sarah.ID(), wire.Deliver, hello), 0); sent.State != owner.SendHeld {
			t.Fatalf("sent = %+v", sent)
		}
		ask := theAsk(t, chris)
		var decided struct {
			State acl.AskState `json:"state"`
			Sent  *struct {
				State owner.SendState `json:"state"`
				Reply json.RawMessage `json:"reply"`
			} `json:"sent"`
		}
		status := chris.Call("POST", "/approvals/"+ask.ID, map[string]any{"choice": "approve", "hash": ask.Hash, "wait_seconds": wait}, &decided)
		if status != http.StatusOK || decided.State != acl.AskApproved || decided.Sent == nil {
			t.Fatalf("decided = %d %+v", status, decided)
		}
		want := map[int]owner.SendState{0: owner.SendQueued, 30: owner.SendDelivered}[wait]
		if decided.Sent.State != want || (len(decided.Sent.Reply) > 0) != (wait > 0) {
			t.Errorf("waiting %d s: %s %s, want %s", wait, decided.Sent.State, decided.Sent.Reply, want)
		}
	}
	// After a rejection there is nothing to wait for.
	mustSend(t, chris.Node, outgoing(t, sarah.ID(), wire.Deliver, hello), 0)
	ask := theAsk(t, chris)
	rejected := chris.Ask("POST", "/approvals/"+ask.ID, fmt.Appendf(nil, `{"choice":"reject","hash":%q,"wait_seconds":30}`, ask.Hash))
	if rejected.Status != http.StatusOK || bytes.Contains(rejected.Body, []byte(`"sent"`)) {
		t.Errorf("rejected = %d %s", rejected.Status, rejected.Body)
	}
}

// TestApprovalBeforeTheConversation: a question about a message that was to begin a conversation holds nothing there,
// so its answer leaves the hold of the peer's message.
func TestApprovalBeforeTheConversation(t *testing.T) {
	for _, choice := range []acl.Choice{acl.Approve, acl.Reject} {
		mesh := meshtest.InMemory(t)
		ann := mesh.Stranger("ann")
		chris := mesh.Node("chris", func(cfg *node.Config) {
			unlimited(cfg)
			cfg.Outbound.Approve = []string{"com.example.*"}
			cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.negotiate", Direction: acl.In, Hold: acl.Always}}
		})
		send := func(intent wire.Intent, payload string, want owner.SendState) {
			t.Helper()
			out := outgoing(t, ann.ID, intent, payload)
			out.Conv = "conv_one"
			if sent := mustSend(t, chris.Node, out, 0); sent.State != want {
				t.Fatalf("sent = %+v, want %s", sent, want)
			}
		}
		send("com.example.a", `{"action":"order"}`, owner.SendHeld)
		first := theAsk(t, chris)
		send(wire.Deliver, hello, owner.SendQueued)
		must(t, chris.Post(ann.Sign(in("conv_one", ann.Draft(chris.ID(), wire.Negotiate, deal)))), http.StatusAccepted)
		decide(t, chris, first, choice)
		var got struct{ Holds int }
		if chris.Call("GET", "/conversations/conv_one?peer="+string(ann.ID), nil, &got); got.Holds != 1 {
			t.Errorf("after %s the conversation has %d holds, want that of the peer's message", choice, got.Holds)
		}
	}
}

// TestHoldRuleOfABridge: a bridge's rule about its own intents comes after the owner's rules.
func TestHoldRuleOfABridge(t *testing.T) {
	const query = wire.Intent("xyz.example.query")
	for _, tt := range []struct {
		name  string
		owner []acl.HoldRule
		rule  bool
		want  owner.SendState
	}{
		{"without it", nil, false, owner.SendHeld},
		{"with it", nil, true, owner.SendDelivered},
		{"the owner's rule first", []acl.HoldRule{{Intent: "xyz.example.*", Hold: acl.Always}}, true, owner.SendHeld},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sarah := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, func(c *node.Config) { c.Policy.Hold = tt.owner })
			if tt.rule {
				sarah.Connect(bridge.Kind{Name: "toy", Holds: []acl.HoldRule{{Intent: string(query), Direction: acl.Out, Hold: acl.Never}}}, nil)
			}
			out := to("ann", "conv_1", "hello")
			out.Intent, out.Payload = query, wire.Obj(wire.Member{Key: "action", Value: wire.Text("query")})
			if sent := mustSend(t, sarah.Node, out, 10*time.Second); sent.State != tt.want {
				t.Errorf("%+v, want %s", sent, tt.want)
			}
		})
	}
}
