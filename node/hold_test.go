package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestUnknownSenderIsHeld (AM-22, AM-31 to AM-33): an unknown sender gets a signed 202. If it repeats the message
// after the owner's decision, it gets the final answer.
func TestUnknownSenderIsHeld(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	a := meshtest.Post(t, sarah.URL, raw)
	must(t, a, http.StatusAccepted)
	held := a.Message(t, sarah)
	if held.Action() != wire.ActionPending || held.Payload.GetStr("reason") == "" {
		t.Errorf("answer = %s", a.Body)
	}
	if at, ok := wire.ParseTime(held.Payload.GetStr("estimated_response")); !ok || time.Until(at) < 50*time.Minute {
		t.Errorf("estimated_response = %q", held.Payload.GetStr("estimated_response"))
	}
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	final := meshtest.Post(t, sarah.URL, raw)
	must(t, final, http.StatusOK)
	reply := final.Message(t, sarah)
	if reply.Action() != wire.ActionReceived || reply.Meta("in_reply_to") == "" {
		t.Errorf("repeat after the decision = %s", final.Body)
	}
	next := meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
	must(t, next, http.StatusOK) // the sender is approved
}

// TestSensitiveIntentIsHeld (AM-31): messages with a sensitive intent are held for known senders too.
func TestSensitiveIntentIsHeld(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	cases := []struct {
		intent  wire.Intent
		payload string
		status  int
	}{
		{wire.Negotiate, `{"action":"propose","terms":{"description":"a deal"}}`, 202},
		{wire.Negotiate, `{"action":"counter","terms":{"description":"a deal"}}`, 202},
		{wire.Negotiate, `{"action":"accept"}`, 202},
		{wire.Negotiate, `{"action":"reject"}`, 200},
		{wire.Handoff, `{"action":"request_human","reason":"talk"}`, 202},
		{wire.RequestInfo, `{"action":"ask","question":"when?"}`, 200},
		{wire.Handoff, `{"action":"received","reason":"not a real receipt"}`, 202},
	}
	for _, c := range cases {
		a := meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), c.intent, c.payload)))
		if a.Status != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.intent, c.payload, a.Status, a.Body, c.status)
		}
	}
}

// TestKnownSenderHoldsAreBounded (AM-33): after sixteen holds in a conversation, a message gets 429 and nothing is
// stored.
func TestKnownSenderHoldsAreBounded(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	post := func() meshtest.Answer {
		d := chris.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"talk"}`)
		d.Conversation = "conv_one"
		return meshtest.Post(t, sarah.URL, chris.Sign(d))
	}
	for range 16 {
		must(t, post(), http.StatusAccepted)
	}
	before := state(t, sarah)
	if a := post(); a.Code() != wire.RateLimited {
		t.Errorf("17th hold: %d %s", a.Status, a.Body)
	}
	if after := state(t, sarah); after != before {
		t.Errorf("state = %s, want %s", after, before)
	}
}

// TestReject (AM-35): a rejection ends the conversation and is remembered: messages in other conversations are refused
// too.
func TestReject(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	raw := chris.Sign(d)
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
	decide(t, sarah, theAsk(t, sarah), acl.Reject)
	final := meshtest.Post(t, sarah.URL, raw).Message(t, sarah)
	if final.Action() != wire.ActionClose || final.Payload.GetStr("status") != "failed" || final.Payload.GetStr("reason") != string(wire.OwnerRejected) {
		t.Errorf("repeat after the rejection = %s", final.Payload.JSON())
	}
	for _, conv := range []wire.ConversationID{d.Conversation, "conv_new"} {
		next := chris.Draft(sarah.ID(), wire.Deliver, hello)
		next.Conversation = conv
		if a := meshtest.Post(t, sarah.URL, chris.Sign(next)); a.Code() != wire.OwnerRejected {
			t.Errorf("in %s: %d %s, want %s", conv, a.Status, a.Body, wire.OwnerRejected)
		}
	}
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "forget"}, nil)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
}

// TestApproveAfterBlock (THREATS 30): the block list is checked again when a held message is released.
func TestApproveAfterBlock(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
	ask := theAsk(t, sarah)
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "block"}, nil)
	_, err := sarah.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now())
	if !errors.Is(err, wire.ErrNotAllowed) {
		t.Errorf("approve a blocked sender: %v, want %v", err, wire.ErrNotAllowed)
	}
	theAsk(t, sarah) // the question is still open
}

// TestApproveAnotherHash (THREATS 30): only the message that was shown can be approved.
func TestApproveAnotherHash(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
	ask := theAsk(t, sarah)
	status := sarah.Call("POST", "/approvals/"+ask.ID, map[string]string{"choice": "approve", "hash": "00"}, nil)
	if status != http.StatusConflict {
		t.Errorf("approve another hash: %d, want 409", status)
	}
	theAsk(t, sarah)
}

// TestTwoDeciders: of several concurrent decisions about a question, exactly one succeeds.
func TestTwoDeciders(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	for i := range 8 {
		chris := mesh.Stranger(fmt.Sprintf("chris-%d", i))
		raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
		must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
		ask := theAsk(t, sarah)
		choices := []acl.Choice{acl.Approve, acl.Reject, acl.ApproveOnce, acl.Block}
		errs := make([]error, len(choices))
		var group sync.WaitGroup
		for j, choice := range choices {
			group.Go(func() {
				_, errs[j] = sarah.Asks().Decide(context.Background(), ask.ID, ask.Hash, choice, "test", time.Now())
			})
		}
		group.Wait()
		won := 0
		for j, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, acl.ErrAskGone) && !errors.Is(err, wire.ErrNotAllowed) {
				t.Errorf("%s: %v", choices[j], err)
			}
		}
		if won != 1 {
			t.Fatalf("%d deciders won, want 1: %v", won, errs)
		}
	}
}

// TestSenderTakesItBack (AM-36): a cancel or close by the sender withdraws its held message.
func TestSenderTakesItBack(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	for name, payload := range map[string]string{"cancel": `{"action":"cancel"}`, "close": `{"action":"close","status":"failed"}`} {
		sarah := mesh.Node("sarah-"+name, mode(acl.Approval))
		d := chris.Draft(sarah.ID(), wire.Schedule, propose)
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusAccepted)
		ask := theAsk(t, sarah)
		back := chris.Draft(sarah.ID(), wire.Schedule, payload)
		back.Conversation = d.Conversation
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(back)), http.StatusOK)
		if n := len(pendingAsks(t, sarah)); n != 0 {
			t.Errorf("%s: %d asks are pending, want 0", name, n)
		}
		if _, err := sarah.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); !errors.Is(err, acl.ErrAskGone) {
			t.Errorf("%s: approve what was withdrawn: %v", name, err)
		}
		items, _, err := sarah.Inbox(t.Context(), owner.ItemWithdrawn, "", 10)
		if err != nil || len(items) != 1 {
			t.Errorf("%s: withdrawn items = %v, %v", name, items, err)
		}
	}
}

// TestAllowlistModeIgnoresApprovals (AM-29): in allowlist mode an approved sender is refused like a blocked one.
func TestAllowlistModeIgnoresApprovals(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Allowlist))
	post := func() meshtest.Answer {
		return meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
	}
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "approve"}, nil)
	refused := post()
	if refused.Code() != wire.Unauthorized {
		t.Errorf("approved sender: %d %s, want %s", refused.Status, refused.Body, wire.Unauthorized)
	}
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "block"}, nil)
	if blocked := post(); !bytes.Equal(blocked.Body, refused.Body) {
		t.Errorf("blocked and not listed differ (AM-25): %s, %s", blocked.Body, refused.Body)
	}
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "allow"}, nil)
	must(t, post(), http.StatusOK)
}

// TestCancelLeavesOurAsks: a peer can cancel only its own messages. A question about a message of ours stays open.
func TestCancelLeavesOurAsks(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		open(cfg)
		cfg.Outbound.Approve = []string{"mesh.message"}
	})
	post := func(intent wire.Intent, payload string) {
		t.Helper()
		d := chris.Draft(sarah.ID(), intent, payload)
		d.Conversation = "conv_one"
		if a := meshtest.Post(t, sarah.URL, chris.Sign(d)); a.Status > 299 {
			t.Fatalf("%s: %d %s", payload, a.Status, a.Body)
		}
	}
	post(wire.Handoff, `{"action":"request_human","reason":"talk"}`)
	sarah.Call("POST", "/send", map[string]any{
		"to": chris.ID, "conversation": "conv_one", "intent": "mesh.message",
		"payload": map[string]any{"action": "deliver", "message": map[string]string{"body": "wait"}},
	}, nil)
	if n := len(pendingAsks(t, sarah)); n != 2 {
		t.Fatalf("%d asks are pending, want 2", n)
	}
	post(wire.Schedule, `{"action":"cancel"}`)
	if ask := theAsk(t, sarah); ask.Kind != "outgoing" {
		t.Errorf("the %s ask is left, want the outgoing one", ask.Kind)
	}
}

// TestRejectEndsTheConversation: the other held messages of a rejected conversation are withdrawn (AM-35).
func TestRejectEndsTheConversation(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	for range 2 {
		d := chris.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"talk"}`)
		d.Conversation = "conv_one"
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusAccepted)
	}
	decide(t, sarah, pendingAsks(t, sarah)[0], acl.Reject)
	if asks := pendingAsks(t, sarah); len(asks) != 0 {
		t.Errorf("%d asks are pending in a rejected conversation", len(asks))
	}
	for state, want := range map[owner.ItemState]int{owner.ItemRejected: 1, owner.ItemWithdrawn: 1, owner.ItemHeld: 0} {
		if items, _, err := sarah.Inbox(t.Context(), state, "", 10); err != nil || len(items) != want {
			t.Errorf("%d items are %s, %v, want %d", len(items), state, err, want)
		}
	}
}

// TestBlockAfterTheEnd: the owner can block the sender of a held message even after the conversation has ended.
func TestBlockAfterTheEnd(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(closing))
	sarah := mesh.Node("sarah", open)
	d := ann.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"talk"}`)
	d.Conversation = "conv_1"
	must(t, meshtest.Post(t, sarah.URL, ann.Sign(d)), http.StatusAccepted)
	ask := theAsk(t, sarah)
	mustSend(t, sarah.Node, ann.message(t, "well?"), 10*time.Second) // the answer closes the conversation
	decide(t, sarah, ask, acl.Block)
	if a := meshtest.Post(t, sarah.URL, ann.Sign(ann.Draft(sarah.ID(), wire.Deliver, hello))); a.Code() != wire.Unauthorized {
		t.Errorf("a message of a blocked sender: %d %s", a.Status, a.Body)
	}
}

// TestAlwaysKeepsTheAllowed: approving a message of a peer on the allowlist keeps the peer on the list (AM-29).
func TestAlwaysKeepsTheAllowed(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Allowlist))
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "allow"}, nil)
	d := chris.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"talk"}`)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusAccepted)
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
}
