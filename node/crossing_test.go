package node_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAcceptOfProposalTakenBack (AM-88): a cancel that crosses our counter-proposal ends it here, while it stands for the
// peer. The peer's accept of it is left to the owner, and the answer does not let the peer count it.
func TestAcceptOfProposalTakenBack(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", withBook)
	say := func(payload wire.Value) wire.Message {
		t.Helper()
		d := in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, proposeCoffee))
		d.Payload = payload
		return sarah.Post(ann.Sign(d)).Message(t, sarah)
	}
	say(parsePayload(t, proposeCoffee))
	out := outgoing(t, ann.ID, wire.Schedule, `{"action":"counter","event":{"selected_time":"2036-02-21T14:00:00-08:00"}}`)
	out.Conv = "conv_one"
	mustSend(t, sarah.Node, out, 10*time.Second)
	counter := ann.got()[0]
	say(parsePayload(t, `{"action":"cancel"}`))
	if m := say(inReplyTo(parsePayload(t, `{"action":"accept"}`), counter.ID)); m.Action() != wire.ActionPending {
		t.Errorf("the accept is answered with %s", m.Payload.JSON())
	}
	items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
	if err != nil || len(items) != 3 || !items[2].Pending {
		t.Errorf("the owner has %+v, %v", items, err)
	}
	if isAgreed(t, sarah, "conv_one") {
		t.Errorf("it is called agreed: %+v", showConversation(t, sarah, "conv_one"))
	}
}

// TestProposalBeforeTheAnswer (AM-88): a proposal of the peer arrives while its answer to our accept is on the way. If
// the peer wrote the answer first, it has counted our accept, so we count it too. Otherwise the accept does not count.
func TestProposalBeforeTheAnswer(t *testing.T) {
	for _, answersFirst := range []bool{true, false} {
		mesh := meshtest.New(t)
		ann := newPeer(t, mesh, "ann")
		sarah := mesh.Node("sarah", withBook)
		propose := func(payload string) {
			must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, payload)))), http.StatusOK)
			time.Sleep(5 * time.Millisecond) // the next message has a later timestamp
		}
		ann.answers(func(w http.ResponseWriter, m wire.Message) {
			const later = `{"action":"propose","event":{"title":"Tea","proposed_times":["2036-02-21T14:00:00-08:00"],"duration":"30m"}}`
			if !answersFirst {
				propose(later)
			}
			answer := ann.Sign(ann.reply(m, `{"action":"received"}`))
			if answersFirst {
				time.Sleep(5 * time.Millisecond)
				propose(later)
			}
			w.Write(answer)
		})
		propose(proposeCoffee)
		out := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept"}`)
		out.Conv = "conv_one"
		mustSend(t, sarah.Node, out, 10*time.Second)
		v := showConversation(t, sarah, "conv_one")
		if isAgreed(t, sarah, "conv_one") != answersFirst || v.Proposal == nil || v.Proposal.Title != "Tea" {
			t.Errorf("the answer is first: %v: agreed on %+v, proposed %+v", answersFirst, v.Agreement, v.Proposal)
		}
	}
}

// TestAcceptWrittenBeforeTheProposal (AM-88): an accept of ours that waited for our owner is not sent as an accept of a
// proposal that came after it.
func TestAcceptWrittenBeforeTheProposal(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		withBook(cfg)
		cfg.Outbound.Approve = []string{"mesh.schedule"}
	})
	out := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept"}`)
	out.Conv = "conv_one"
	mustSend(t, sarah.Node, out, 0)
	must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, proposeCoffee)))), http.StatusOK)
	ask := theAsk(t, sarah)
	if _, err := sarah.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); err == nil {
		t.Error("the accept was sent")
	}
	if len(ann.got()) != 0 || isAgreed(t, sarah, "conv_one") {
		t.Errorf("%d messages left: %+v", len(ann.got()), showConversation(t, sarah, "conv_one"))
	}
}

// TestOwnAcceptOfOwnProposal (AM-88): nobody accepts a proposal of its own. The peer would take an accept that names
// another time for a new proposal, which we would not know about.
func TestOwnAcceptOfOwnProposal(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", withBook)
	out := outgoing(t, ann.ID, wire.Schedule, proposeCoffee)
	out.Conv = "conv_one"
	mustSend(t, sarah.Node, out, 10*time.Second)
	out.Payload = parsePayload(t, `{"action":"accept","selected_time":"2036-02-21T14:00:00-08:00"}`)
	if _, err := sarah.Send(t.Context(), out, 10*time.Second); err == nil || len(ann.got()) != 1 {
		t.Errorf("the accept of our own proposal: %v, %d messages left", err, len(ann.got()))
	}
}

// TestMessagesAfterTheClose (AM-96): a text that crosses the close is kept and answered, and starts no hook. A cancel that
// names the agreement removes the event, and the owner learns of it. Everything else is refused.
func TestMessagesAfterTheClose(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	runs := 0
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		withBook(cfg)
		cfg.Routes = []node.Route{{Pattern: "mesh.message", Name: "test", Handler: handler(func(context.Context, hook.Call) (hook.Answer, error) {
			runs++
			return hook.Answer{}, nil
		})}}
	})
	sent := mustSend(t, sarah.Node, outgoing(t, ann.ID, wire.Schedule, proposeCoffee), 10*time.Second)
	say := func(intent wire.Intent, payload wire.Value) meshtest.Answer {
		t.Helper()
		d := in(sent.Conversation, ann.Draft(sarah.ID(), intent, `{}`))
		d.Payload = payload
		return sarah.Post(ann.Sign(d))
	}
	must(t, say(wire.Schedule, inReplyTo(parsePayload(t, `{"action":"accept"}`), sent.MessageID)), http.StatusOK)
	waitFor(t, "the conversation is closed", func() bool { return showConversation(t, sarah, sent.Conversation).State == conversations.Completed })
	if a := say(wire.Deliver, parsePayload(t, hello)); a.Status != http.StatusOK || a.Message(t, sarah).Action() != wire.ActionReceived || runs != 0 {
		t.Errorf("a text gets %d %s, and %d hooks", a.Status, a.Body, runs)
	}
	for _, payload := range []string{proposeCoffee, `{"action":"cancel"}`, `{"action":"close","status":"failed"}`} {
		must(t, say(wire.Schedule, parsePayload(t, payload)), http.StatusConflict)
	}
	if len(agreedEvents(t, sarah)) != 1 {
		t.Fatal("the event is gone")
	}
	must(t, say(wire.Schedule, inReplyTo(parsePayload(t, `{"action":"cancel"}`), sent.MessageID)), http.StatusOK)
	v := showConversation(t, sarah, sent.Conversation)
	if len(agreedEvents(t, sarah)) != 0 || v.Agreement.Standing != owner.StandingCancelled || v.State != conversations.Completed || countNotices(t, sarah, notify.Cancelled) != 1 {
		t.Errorf("after the cancel: %+v, events %v", v, agreedEvents(t, sarah))
	}
}
