package mess

import (
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPlainQuestionThroughALink: a question of the owner in plain text to a peer of a link is answered in the inbox,
// and the answer closes the conversation; a failure there closes it as failed.
func TestPlainQuestionThroughALink(t *testing.T) {
	ask := wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", "Is the gate open?"))
	say := wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", "Is the gate open?"))))
	result := `{"status":"completed","mess":[{"response":{"re":"last","content":["yes it is"]}}]}`
	for name, c := range map[string]struct {
		intent  wire.Intent
		payload wire.Value
		end     string
		text    string
		state   conversations.State
	}{
		"a question": {wire.RequestInfo, ask, result, "yes it is", conversations.Completed},
		"a message":  {wire.Deliver, say, result, "yes it is", conversations.Completed},
		"no answer":  {wire.RequestInfo, ask, `{"status":"failed","mess":[{"status":{"code":"failed","reason":"the gate is gone"}}]}`, "the gate is gone", conversations.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			a := newForeignLink(t, nil)
			address := bridge.Address{Kind: Kind, Link: "garden", Peer: thread.ExchangeID}
			sent, err := a.home.node.Send(t.Context(), node.Outgoing{To: address.Pseudonym(), Address: address.String(), Intent: c.intent, Payload: c.payload, Via: "test"}, 0)
			if err != nil {
				t.Fatal(err)
			}
			var there string
			eventually(t, "the question over there", func() bool {
				list, _ := a.want(200, a.bob, "GET", "requests", "").Get("threads")
				if list.Len() == 1 {
					there = list.At(0).GetStr("ref")
				}
				return there != ""
			})
			a.set(there, `{"status":"claimed","message":"I have a look"}`)
			a.set(there, strings.ReplaceAll(c.end, "last", there))
			eventually(t, "the end of the conversation", func() bool {
				convs, err := a.home.node.Store.Steps().Conversations(t.Context(), "", 0, 10, time.Now())
				if err != nil || len(convs.Conversations) != 1 {
					t.Fatalf("%d conversations, %v", len(convs.Conversations), err)
				}
				conv, err := conversations.Decode(convs.Conversations[0])
				return err == nil && conv.State == c.state
			})
			items, _, err := a.home.node.Inbox(t.Context(), "", "", 100)
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			for _, i := range items {
				if i.State != owner.ItemNew || i.Intent != c.intent || i.Conversation != sent.Conversation || !i.ActionKnown && c.intent == wire.Deliver {
					t.Errorf("item %+v", i)
				}
				all.Write(i.Payload)
			}
			if text := all.String(); strings.Count(text, c.text) != 1 || strings.Contains(text, there) {
				t.Errorf("the inbox says %s", text)
			}
			if page, err := a.home.List(t.Context(), exchange.Owner("test"), "", "", 10); err != nil || len(page.Threads) != 0 {
				t.Errorf("%d threads, %v; want none", len(page.Threads), err)
			}
		})
	}
}

// TestPlainAnswerThroughALink: a question from there arrives as text too, and the owner's next text is the answer.
func TestPlainAnswerThroughALink(t *testing.T) {
	const answer = "the red one"
	a := newForeignLink(t, nil)
	address := bridge.Address{Kind: Kind, Link: "garden", Peer: thread.ExchangeID}
	say := func(conv wire.ConversationID, text string) wire.ConversationID {
		t.Helper()
		payload := wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", text))))
		sent, err := a.home.node.Send(t.Context(), node.Outgoing{To: address.Pseudonym(), Address: address.String(), Conv: conv, Intent: wire.Deliver, Payload: payload, Via: "test"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return sent.Conversation
	}
	conv := say("", "Is the gate open?")
	there := a.only("Is the gate open?")
	a.set(there, `{"status":"needs_input","mess":[{"status":{"code":"needs_input","questions":[{"field":"gate","question":"Which one?"}]}}]}`)
	eventually(t, "the question", func() bool {
		items, _, err := a.home.node.Inbox(t.Context(), owner.ItemNew, "", 10)
		return err == nil && len(items) == 1 && strings.Contains(string(items[0].Payload), "Which one?") && items[0].Conversation == conv
	})
	say(conv, answer)
	eventually(t, "the answer over there", func() bool { return a.thread(there).Status == thread.InProgress })
	if text := string(a.want(200, a.us, "GET", "requests/"+there, "").JSON()); !strings.Contains(text, answer) {
		t.Errorf("there it is %s", text)
	}
}

// TestWaitForAnAnswerThroughALink: a caller that waits for an answer gets the answer, and not the news that the
// question was sent.
func TestWaitForAnAnswerThroughALink(t *testing.T) {
	const yes = "yes it is"
	eachPublicServer(t, func(t *testing.T, begin func(func(*Config)) *publicLink) {
		w := begin(nil)
		address := bridge.Address{Kind: Kind, Link: "town", Peer: thread.ExchangeID}
		ask := wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", "Is the gate open?"))
		answer := make(chan owner.Sent, 1)
		go func() {
			sent, _ := w.home.node.SendForAnswer(t.Context(), node.Outgoing{To: address.Pseudonym(), Address: address.String(), Intent: wire.RequestInfo, Payload: ask, Via: "test"}, 30*time.Second)
			answer <- sent
		}()
		there := w.only("Is the gate open?")
		select {
		case sent := <-answer:
			t.Fatalf("it did not wait: %+v", sent)
		default:
		}
		w.set("bob", there, thread.Claimed, "")
		w.set("bob", there, thread.Completed, result(yes))
		if sent := <-answer; !strings.Contains(string(sent.ReplyTree.JSON()), yes) {
			t.Errorf("the answer is %s, %s", sent.State, sent.ReplyTree.JSON())
		}
	})
}
