package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestDeliveryOutcomes checks AM-18, AM-47 and AM-49 over real HTTP.
func TestDeliveryOutcomes(t *testing.T) {
	const refusal = `{"error":{"code":%q,"message":"no\u001b[2J","retry":%v}}`
	mesh := meshtest.New(t)
	mallory := mesh.Stranger("mallory")
	ann := newPeer(t, mesh, "ann")
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) })
	for _, c := range []struct {
		name      string
		answer    func(w http.ResponseWriter, m wire.Message)
		want      owner.SendState
		processed bool // if queued: whether the peer may have processed the message
		wait      time.Duration
		hint      string
	}{
		{name: "reply", answer: ann.says(`{"action":"confirmed"}`), want: owner.SendDelivered},
		{name: "503", answer: status(503), want: owner.SendQueued},
		{name: "503 and later", answer: status(503, "Retry-After", "120"), want: owner.SendQueued, wait: 2 * time.Minute},
		{name: "429", answer: statusWithBody(429, fmt.Sprintf(refusal, "RATE_LIMITED", true)), want: owner.SendQueued},
		{name: "500", answer: status(500), want: owner.SendQueued, processed: true},
		{name: "408", answer: status(408), want: owner.SendQueued, processed: true},
		{name: "reset", answer: func(http.ResponseWriter, wire.Message) { panic(http.ErrAbortHandler) }, want: owner.SendQueued, processed: true},
		{name: "hang", answer: func(http.ResponseWriter, wire.Message) { <-hung }, want: owner.SendQueued, processed: true},
		{name: "400 retry", answer: statusWithBody(400, fmt.Sprintf(refusal, "AGENT_UNAVAILABLE", true)), want: owner.SendQueued, processed: true},
		{name: "503 no retry", answer: statusWithBody(503, fmt.Sprintf(refusal, "AGENT_UNAVAILABLE", false)), want: owner.SendFailed},
		{name: "redirect", answer: status(302, "Location", "http://127.0.0.1:1/"), want: owner.SendFailed},
		{name: "not allowed", answer: statusWithBody(403, fmt.Sprintf(refusal, "UNAUTHORIZED", false)), want: owner.SendFailed},
		{name: "404", answer: status(404), want: owner.SendFailed},
		{name: "our clock", answer: func(w http.ResponseWriter, _ wire.Message) {
			w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
			statusWithBody(400, fmt.Sprintf(refusal, "INVALID_MESSAGE", false))(w, wire.Message{})
		}, want: owner.SendQueued, hint: "clock"},
		{name: "no content", answer: status(204), want: owner.SendDelivered},
		{name: "empty", answer: status(200), want: owner.SendDelivered},
		{name: "relay", answer: statusWithBody(202, `{"relay_id":"relay_1","status":"queued"}`), want: owner.SendDelivered, hint: "kept for the peer"},
		{name: "pending", answer: func(w http.ResponseWriter, m wire.Message) {
			w.WriteHeader(202)
			ann.says(`{"action":"pending_approval"}`)(w, m)
		}, want: owner.SendDelivered, hint: "owner decides"},
		{name: "unsigned", answer: statusWithBody(200, `{"action":"confirmed"}`), want: owner.SendUnverified},
		{name: "text", answer: statusWithBody(200, `OK`), want: owner.SendUnverified},
		{name: "too large", answer: statusWithBody(200, `"`+strings.Repeat("x", client.MaxAnswer)+`"`), want: owner.SendUnverified},
		{name: "another signer", answer: func(w http.ResponseWriter, m wire.Message) {
			w.Write(mallory.Sign(ann.reply(m, `{"action":"confirmed"}`)))
		}, want: owner.SendUnverified},
		{name: "another agent", answer: func(w http.ResponseWriter, m wire.Message) {
			d := ann.reply(m, `{"action":"confirmed"}`)
			d.From = mallory.ID
			w.Write(mallory.Sign(d))
		}, want: owner.SendUnverified},
		{name: "another conversation", answer: func(w http.ResponseWriter, m wire.Message) {
			d := ann.reply(m, `{"action":"confirmed"}`)
			d.Conversation = "conv_other"
			w.Write(ann.Sign(d))
		}, want: owner.SendUnverified},
		{name: "to somebody else", answer: func(w http.ResponseWriter, m wire.Message) {
			d := ann.reply(m, `{"action":"confirmed"}`)
			d.To = mallory.ID
			w.Write(ann.Sign(d))
		}, want: owner.SendUnverified},
		{name: "our own message", answer: func(w http.ResponseWriter, m wire.Message) { w.Write(m.Tree.JSON()) }, want: owner.SendUnverified},
		{name: "old", answer: func(w http.ResponseWriter, m wire.Message) {
			d := ann.reply(m, `{"action":"confirmed"}`)
			d.Time = time.Now().Add(-16 * time.Minute)
			w.Write(ann.Sign(d))
		}, want: owner.SendUnverified},
		{name: "an hour ahead", answer: func(w http.ResponseWriter, m wire.Message) {
			d := ann.reply(m, `{"action":"confirmed"}`)
			d.Time = time.Now().Add(time.Hour)
			w.Write(ann.Sign(d))
		}, want: owner.SendUnverified},
		{name: "twice", answer: func(w http.ResponseWriter, m wire.Message) {
			reply := ann.Sign(ann.reply(m, `{"action":"confirmed"}`))
			w.Write(append(reply, reply...))
		}, want: owner.SendUnverified},
	} {
		t.Run(c.name, func(t *testing.T) {
			chris := mesh.Node("chris", impatient(t))
			ann.answers(c.answer)
			sent := mustSend(t, chris.Node, ann.message(t, "hello"), 10*time.Second)
			if sent.State != c.want || !strings.Contains(sent.Hint, c.hint) {
				t.Fatalf("sent = %+v, want %s, hint %q", sent, c.want, c.hint)
			}
			entry := theEntry(t, chris.Node)
			if entry.State != c.want || entry.Processed != c.processed {
				t.Errorf("entry is %s, maybe processed %v; want %s, %v", entry.State, entry.Processed, c.want, c.processed)
			}
			if c.want == owner.SendQueued {
				least := max(4*time.Second, c.wait)
				if wait := entry.Due.Sub(entry.Signed); wait < least || wait > least+10*time.Second {
					t.Errorf("next attempt after %v, want %v or a little more", wait, least)
				}
			}
			if sent.Err != nil && strings.ContainsRune(sent.Err.Message, 0x1b) {
				t.Errorf("the peer's text reaches the owner unescaped: %q", sent.Err.Message)
			}
			items, _, err := chris.Inbox(t.Context(), "", "", 10)
			if err != nil {
				t.Fatal(err)
			}
			if want := c.name == "reply"; (len(items) == 1) != want || (sent.Reply != nil) != (want || c.name == "pending") {
				t.Errorf("%d items in the inbox, reply %v", len(items), sent.Reply)
			}
			wantState := conversations.Open
			if c.want == owner.SendFailed {
				wantState = conversations.Failed
			}
			if s := convState(t, chris.Store, ann.message(t, "")); s != wantState {
				t.Errorf("conversation is %s, want %s", s, wantState)
			}
			told := map[owner.SendState]string{owner.SendUnverified: "reply-unverified", owner.SendFailed: "undelivered"}[c.want]
			if kinds := noticeKinds(t, chris.Store); told != "" && !slices.Contains(kinds, told) {
				t.Errorf("the owner has the notices %v, want %s", kinds, told)
			}
		})
	}
}

// TestReplyIsNotTakenTwice: a peer that repeats an earlier reply has no further effect, and neither has the same reply
// posted to our endpoint (THREATS 4).
func TestReplyIsNotTakenTwice(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	ann := newPeer(t, mesh, "ann")
	var reply []byte
	ann.answers(func(w http.ResponseWriter, m wire.Message) {
		if reply == nil {
			reply = ann.Sign(ann.reply(m, `{"action":"confirmed"}`))
		}
		w.Write(reply)
	})
	if sent := mustSend(t, chris.Node, ann.message(t, "1"), 10*time.Second); sent.State != owner.SendDelivered || sent.Reply == nil {
		t.Fatalf("first: %+v", sent)
	}
	if sent := mustSend(t, chris.Node, ann.message(t, "2"), 10*time.Second); sent.Reply != nil {
		t.Errorf("second: %+v, want no reply passed on", sent)
	}
	for range 2 {
		must(t, meshtest.Post(t, chris.URL, reply), http.StatusOK)
	}
	if got := state(t, chris); got != "1 items, 1 conversations, 0 asks" {
		t.Errorf("state: %s", got)
	}

	// A message with the same id and other content is not a valid reply.
	first, err := wire.ParseObject(reply)
	if err != nil {
		t.Fatal(err)
	}
	ann.answers(func(w http.ResponseWriter, m wire.Message) {
		d := ann.reply(m, `{"action":"declined"}`)
		d.ID = wire.MessageID(first.GetStr("message_id"))
		w.Write(ann.Sign(d))
	})
	if sent := mustSend(t, chris.Node, ann.message(t, "3"), 10*time.Second); sent.State != owner.SendUnverified {
		t.Errorf("reused id: %+v, want %s", sent, owner.SendUnverified)
	}
}

// TestOurCloseIsDone: a close of a conversation that the peer has closed already counts as delivered (AM-38).
func TestOurCloseIsDone(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	ann := newPeer(t, mesh, "ann")
	ann.answers(func(w http.ResponseWriter, m wire.Message) {
		if m.Action() == wire.ActionClose {
			w.WriteHeader(http.StatusConflict)
			w.Write(wire.ErrConversationClosed.AppendJSON(nil))
			return
		}
		ann.says(`{"action":"received"}`)(w, m)
	})
	mustSend(t, chris.Node, ann.message(t, "1"), 10*time.Second)
	out := ann.message(t, "")
	out.Payload, _ = wire.Parse([]byte(closing))
	if sent := mustSend(t, chris.Node, out, 10*time.Second); sent.State != owner.SendDelivered {
		t.Errorf("close: %+v", sent)
	}
	if s := convState(t, chris.Store, out); s != conversations.Completed {
		t.Errorf("conversation is %s, want completed", s)
	}
	if _, err := chris.Send(t.Context(), out, 0); err == nil {
		t.Error("a second close is sent")
	}
}

// TestAgreement plays the flow of the specification, once with an accept by the opener and once with an accept by the
// other side. Both sides end completed, and both owners get a notice (AM-36, AM-39).
func TestAgreement(t *testing.T) {
	for _, accepts := range []string{"opener", "other"} {
		t.Run(accepts, func(t *testing.T) {
			mesh := meshtest.New(t)
			chris := mesh.Node("chris", nil)
			sarah := mesh.Node("sarah", nil)
			closed := make(chan struct{})
			out := node.Outgoing{To: sarah.ID(), Conv: "conv_1", Intent: wire.Schedule, Via: "owner"}
			out.Payload, _ = wire.Parse([]byte(propose))
			mustSend(t, chris.Node, out, 10*time.Second)
			back := node.Outgoing{To: chris.ID(), Conv: "conv_1", Intent: wire.Schedule, Via: "owner"}
			accept, _ := wire.Parse([]byte(`{"action":"accept","selected_time":"2026-02-21T10:00:00-08:00","location":"Blue Bottle"}`))
			if accepts == "opener" {
				back.Payload, _ = wire.Parse([]byte(`{"action":"counter","event":{"proposed_times":["2026-02-21T10:00:00-08:00"]}}`))
				mustSend(t, sarah.Node, back, 10*time.Second)
				out.Payload = accept
				mustSend(t, chris.Node, out, 10*time.Second)
			} else {
				back.Payload = accept
				mustSend(t, sarah.Node, back, 10*time.Second)
			}
			close(closed)
			for _, side := range []struct {
				*meshtest.Member
				to wire.AgentID
			}{{chris, sarah.ID()}, {sarah, chris.ID()}} {
				waitFor(t, side.Name+" has completed", func() bool {
					return convState(t, side.Store, node.Outgoing{To: side.to, Conv: "conv_1"}) == conversations.Completed
				})
				agreed := false
				list, _, err := side.Notices.List(t.Context(), "", 100, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range list {
					agreed = agreed || n.Kind == "agreed" && n.Title == "Coffee" && strings.Contains(n.Text, "Blue Bottle") && strings.Contains(n.Text, "10:00")
				}
				if !agreed {
					t.Errorf("%s's owner got no notice with title, time and place: %+v", side.Name, list)
				}
			}
			entries, _, err := chris.Outbox(t.Context(), "", "", 10)
			if err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the close is delivered", func() bool {
				entries, _, err = chris.Outbox(t.Context(), owner.SendDelivered, "", 10)
				return err == nil && entries[len(entries)-1].Action == wire.ActionClose
			})
		})
	}
}

// TestOutboundApproval: a message that waits for the owner has not left, and leaves unchanged (AM-50).
func TestOutboundApproval(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	chris := mesh.Node("chris", func(cfg *node.Config) {
		cfg.Outbound.Approve = []string{"mesh.*"}
	})
	for _, c := range []struct {
		choice acl.Choice
		leaves int
	}{{acl.Reject, 0}, {acl.Approve, 1}} {
		sent := mustSend(t, chris.Node, ann.message(t, "hello"), time.Second)
		if sent.State != owner.SendHeld || sent.Ask == "" || len(ann.got()) != 0 {
			t.Fatalf("sent = %+v, %d messages left; want it held", sent, len(ann.got()))
		}
		if row, err := chris.Store.Steps().Conversations(t.Context(), "", 0, 1, time.Now()); err != nil || len(row.Conversations) != 0 {
			t.Errorf("a held message is part of a conversation: %v, %v", row, err)
		}
		ask := theAsk(t, chris)
		var shown struct {
			To      wire.AgentID
			Payload wire.Value
		}
		if err := json.Unmarshal(ask.Body, &shown); err != nil || shown.To != ann.ID || shown.Payload.GetStr("action") != "deliver" {
			t.Errorf("the owner sees %s, %v", ask.Body, err)
		}
		if _, err := chris.Asks().Decide(t.Context(), ask.ID, "another hash", c.choice, "test", time.Now()); err == nil {
			t.Error("a decision with another hash counts")
		}
		decide(t, chris, ask, c.choice)
		if c.leaves > 0 {
			waitFor(t, "the message leaves", func() bool { return len(ann.got()) == c.leaves })
		}
	}
	if m := ann.got()[0]; m.Intent != wire.Deliver {
		t.Errorf("left: %s", m.Tree.JSON())
	}
}

// TestCloseCarriesNothingOut: a plain close leaves without the owner's approval, but one with further text does not
// (AM-50).
func TestCloseCarriesNothingOut(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	chris := mesh.Node("chris", func(cfg *node.Config) { cfg.Outbound.Approve = []string{"mesh.message"} })
	opening := ann.message(t, "")
	opening.Intent = wire.Schedule
	opening.Payload, _ = wire.Parse([]byte(propose))
	mustSend(t, chris.Node, opening, 10*time.Second)
	out := ann.message(t, "")
	out.Payload, _ = wire.Parse([]byte(`{"action":"close","status":"failed","reason":"the secret"}`))
	if sent := mustSend(t, chris.Node, out, time.Second); sent.State != owner.SendHeld {
		t.Fatalf("sent = %+v, want it held", sent)
	}
	decide(t, chris, theAsk(t, chris), acl.Approve)
	waitFor(t, "the close leaves", func() bool { return len(ann.got()) == 2 })
	out.Conv = "conv_2"
	opening.Conv = out.Conv
	mustSend(t, chris.Node, opening, 10*time.Second)
	out.Payload, _ = wire.Parse([]byte(closing))
	if sent := mustSend(t, chris.Node, out, 10*time.Second); sent.State != owner.SendDelivered {
		t.Errorf("a plain close = %+v, want it delivered", sent)
	}
}
