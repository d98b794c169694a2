package node_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// holdsDeals configures a node that holds the deals of its peers, and sends its own without a question.
func holdsDeals(cfg *node.Config) {
	open(cfg)
	cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.negotiate", Direction: acl.Out, Hold: acl.Never}}
}

// TestHeldTerms: a proposal that waits for the owner does not end the one that the owner let in, and cannot be accepted
// unseen. It stands after its release, by an approval or by an answer of the owner.
func TestHeldTerms(t *testing.T) {
	const dearer = `{"action":"counter","terms":{"description":"A website","price":"$900"}}`
	for _, way := range []string{"unseen", "approved", "answered"} {
		t.Run(way, func(t *testing.T) {
			mesh := meshtest.New(t)
			ann := newPeer(t, mesh, "ann")
			ann.answers(ann.says(`{"action":"received"}`))
			sarah := mesh.Node("sarah", holdsDeals)
			say := func(payload string) acl.Ask {
				t.Helper()
				must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Negotiate, payload)))), http.StatusAccepted)
				return theAsk(t, sarah)
			}
			decide(t, sarah, say(proposeDeal), acl.Approve)
			second, price := say(dearer), "$500"
			if v := showConversation(t, sarah, "conv_one"); v.Proposal == nil || v.Proposal.Price != price {
				t.Fatalf("while the counter waits, %+v stands", v.Proposal)
			}
			if way == "answered" {
				price = "$900"
				items, _, err := sarah.Node.Inbox(t.Context(), owner.ItemHeld, "", 10)
				if err != nil || len(items) != 1 {
					t.Fatalf("held: %d items, %v", len(items), err)
				}
				status := sarah.Call("POST", "/reply", map[string]any{"item": items[0].ID, "payload": parsePayload(t, `{"action":"accept"}`)}, nil)
				if status != http.StatusAccepted && status != http.StatusOK {
					t.Fatalf("answer the held counter: %d", status)
				}
			} else {
				if way == "approved" {
					decide(t, sarah, second, acl.Approve)
					price = "$900"
				}
				out := outgoing(t, ann.ID, wire.Negotiate, `{"action":"accept"}`)
				out.Conv = "conv_one"
				mustSend(t, sarah.Node, out, 10*time.Second)
			}
			waitFor(t, "the accept counts", func() bool { return showConversation(t, sarah, "conv_one").Agreement != nil })
			if v := showConversation(t, sarah, "conv_one"); v.Agreement.Price != price || v.Agreement.AcceptedBy != conversations.Ours {
				t.Errorf("agreed %+v, want %s", v.Agreement, price)
			}
		})
	}
}

// TestReleaseOfAmbiguousAccept (AM-88): the answer to an ambiguous accept that the owner releases is a counter with one
// time. The next such accept goes to the owner without an answer, because a receipt would confirm it.
func TestReleaseOfAmbiguousAccept(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		open(cfg)
		cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.schedule", Actions: []string{"accept"}, Direction: acl.In, Hold: acl.Always}}
	})
	out := outgoing(t, ann.ID, wire.Schedule, proposeSeveral)
	out.Conv = "conv_one"
	mustSend(t, sarah.Node, out, 10*time.Second)
	release := func(accept string) {
		t.Helper()
		must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, accept)))), http.StatusAccepted)
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
	}
	release(`{"action":"accept"}`)
	waitFor(t, "an answer leaves", func() bool { return len(ann.got()) == 2 })
	if m := ann.got()[1]; m.Action() != "counter" {
		t.Errorf("the answer to an ambiguous accept is %q, want a counter", m.Action())
	}
	release(`{"action":"accept","metadata":{"in_reply_to":"msg_other"}}`)
	items, _, err := sarah.Node.Inbox(t.Context(), owner.ItemNew, "", 10)
	if err != nil || len(items) != 1 || items[0].Note == "" || len(ann.got()) != 2 {
		t.Errorf("after the second one: %d messages left, inbox %+v, %v", len(ann.got())-1, items, err)
	}
}

// TestHeldAcceptCountsAtItsRelease: an accept that waits for the owner is shown as an accept after its release, and
// then makes the agreement.
func TestHeldAcceptCountsAtItsRelease(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", holdsDeals)
	out := outgoing(t, ann.ID, wire.Negotiate, proposeDeal)
	out.Conv = "conv_one"
	sent := mustSend(t, sarah.Node, out, 10*time.Second)
	accept := string(inReplyTo(parsePayload(t, `{"action":"accept"}`), sent.MessageID).JSON())
	must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Negotiate, accept)))), http.StatusAccepted)
	if v := showConversation(t, sarah, "conv_one"); v.Agreement != nil || v.Proposal == nil || v.Proposal.Accepted != "" {
		t.Errorf("while the accept waits: %+v", v.Proposal)
	}
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	if v := showConversation(t, sarah, "conv_one"); v.Agreement == nil || v.Agreement.Price != "$500" || v.Agreement.AcceptedBy != conversations.Theirs {
		t.Errorf("after the release: %+v", v.Agreement)
	}
}

// TestUnreleasedProposal: a proposal about which the hook asked the owner stands, but nobody can accept it without the
// owner's release, even after the question has expired.
func TestUnreleasedProposal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", holdShortly(configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			return hook.Answer{Hold: "it wants money"}, nil
		})))
		sarah.Start()
		propose := string(coffee(t, workday().Add(14*time.Hour)).JSON())
		must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Schedule, propose)))), http.StatusAccepted)
		theAsk(t, sarah)
		time.Sleep(shortHold + 15*time.Minute)
		if state := theItem(t, sarah).State; state != owner.ItemExpired {
			t.Fatalf("the item is %s", state)
		}
		body := map[string]any{"conversation": "conv_one", "payload": parsePayload(t, `{"action":"accept"}`)}
		if status := sarah.CallAgent("POST", "/reply", body, nil); status != http.StatusConflict {
			t.Errorf("the agent accepts: %d", status)
		}
		if p := showConversation(t, sarah, "conv_one").Proposal; p == nil || p.Accepted != "" {
			t.Errorf("the proposal is %+v", p)
		}
	})
}

// TestAnswerAfterTheQuestion: an accept that answers a held counter is refused once the question about the counter has
// expired, even before the housekeeping. Otherwise it would leave without an effect on our side.
func TestAnswerAfterTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", holdShortly(holdsDeals)) // it does not start, so it does no housekeeping
		out := outgoing(t, chris.ID, wire.Negotiate, proposeDeal)
		out.Conv = "conv_one"
		if _, err := sarah.Send(t.Context(), out, 0); err != nil {
			t.Fatal(err)
		}
		const dearer = `{"action":"counter","terms":{"description":"A website","price":"$900"}}`
		must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Negotiate, dearer)))), http.StatusAccepted)
		item := theItem(t, sarah)
		time.Sleep(shortHold + time.Second)
		body := map[string]any{"item": item.ID, "payload": parsePayload(t, `{"action":"accept"}`), "wait_seconds": 0}
		if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusConflict {
			t.Errorf("answer after the question has expired: %d", status)
		}
		if box, _, err := sarah.Outbox(t.Context(), "", "", 10); err != nil || len(box) != 1 {
			t.Errorf("%d messages left, %v; want only the proposal", len(box), err)
		}
	})
}
