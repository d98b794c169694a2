package node_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const proposeBoat = `{"action":"propose","terms":{"description":"a boat","price":"1000 EUR"}}`

// offerAfterText lets a stranger open a conversation with a text and then make an offer, which Sarah's owner releases.
func offerAfterText(t *testing.T, intent wire.Intent, offer string) (chris *meshtest.Stranger, sarah *meshtest.Member, item owner.Item) {
	t.Helper()
	mesh := meshtest.New(t)
	chris, sarah = mesh.Stranger("chris"), mesh.Node("sarah", func(cfg *node.Config) {
		withBook(cfg)
		cfg.Policy.Hold = nil // the default rules, which the kit replaces
	})
	post := func(intent wire.Intent, payload string) {
		t.Helper()
		if a := meshtest.Post(t, sarah.URL, chris.Sign(in("conv_1", chris.Draft(sarah.ID(), intent, payload)))); a.Status/100 != 2 {
			t.Fatalf("%s = %d", payload, a.Status)
		}
	}
	post(wire.Deliver, hello)
	post(intent, offer)
	if intent == wire.Negotiate {
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
	}
	var list owner.List[owner.Item]
	sarah.Call("GET", "/inbox", nil, &list)
	for _, i := range list.Items {
		if i.Intent == intent {
			item = i
		}
	}
	if item.ID == "" || item.State == owner.ItemHeld {
		t.Fatalf("inbox = %+v", list.Items)
	}
	return chris, sarah, item
}

// TestAnswerHasIntentOfMessage (AM-89, THREATS row 41): a peer that opens with a text cannot make the accept of its offer
// leave as mesh.message, past the rule that holds promises. What the accept names, and who writes it, makes no
// difference.
func TestAnswerHasIntentOfMessage(t *testing.T) {
	accept := json.RawMessage(`{"action":"accept"}`)
	for name, body := range map[string]func(item owner.Item) map[string]any{
		"item":         func(i owner.Item) map[string]any { return map[string]any{"item": i.ID} },
		"conversation": func(i owner.Item) map[string]any { return map[string]any{"conversation": i.Conversation} },
		"proposal": func(i owner.Item) map[string]any {
			return map[string]any{"conversation": i.Conversation, "proposal": i.MessageID}
		},
	} {
		for _, door := range []string{"agent", "owner"} {
			t.Run(name+" by "+door, func(t *testing.T) {
				_, sarah, item := offerAfterText(t, wire.Negotiate, proposeBoat)
				call := sarah.Call
				if door == "agent" {
					call = sarah.CallAgent
				}
				request := body(item)
				request["payload"], request["wait_seconds"] = accept, 0
				var sent owner.Sent
				if status := call("POST", "/reply", request, &sent); status != http.StatusOK || sent.State != owner.SendHeld {
					t.Fatalf("reply = %d %+v, want a message that waits for the owner", status, sent)
				}
				ask := theAsk(t, sarah)
				var out struct{ Intent wire.Intent }
				if err := json.Unmarshal(ask.Body, &out); err != nil || out.Intent != wire.Negotiate {
					t.Errorf("the owner is asked about %s, %v", out.Intent, err)
				}
			})
		}
	}
}

// TestAnswerUnderOtherIntentIsRefused (AM-89): an intent that the caller names cannot take an accept past the rules of the
// offer, and an answer to an offer that was replaced meanwhile is refused with the new one.
func TestAnswerUnderOtherIntentIsRefused(t *testing.T) {
	chris, sarah, item := offerAfterText(t, wire.Negotiate, proposeBoat)
	for _, action := range []string{"accept", "decline", "reject", "counter", "withdraw", "cancel"} {
		payload := json.RawMessage(`{"action":"` + action + `"}`)
		for path, body := range map[string]map[string]any{
			"/reply": {"conversation": "conv_1", "intent": "mesh.message", "payload": payload, "wait_seconds": 0},
			"/send":  {"to": chris.ID, "conversation": "conv_1", "intent": "com.example.deal", "payload": payload, "wait_seconds": 0},
		} {
			if status := sarah.CallAgent("POST", path, body, nil); status != http.StatusConflict {
				t.Errorf("%s under another intent by %s = %d, want 409", action, path, status)
			}
		}
	}
	newer := strings.ReplaceAll(proposeBoat, "1000 EUR", "2000 EUR")
	meshtest.Post(t, sarah.URL, chris.Sign(in("conv_1", chris.Draft(sarah.ID(), wire.Negotiate, newer))))
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	body, err := json.Marshal(map[string]any{"conversation": "conv_1", "proposal": item.MessageID, "payload": json.RawMessage(`{"action":"accept"}`), "wait_seconds": 0})
	if err != nil {
		t.Fatal(err)
	}
	if a := sarah.Ask("POST", "/reply", body); a.Status != http.StatusConflict || !strings.Contains(string(a.Body), "2000 EUR") {
		t.Errorf("accept of a replaced offer = %d %s, want 409 with the new one", a.Status, a.Body)
	}
}

// TestTextAnswerToAnOfferWaits (AM-89): the words of the agent may promise what its accept may not, so the rule of the
// answered message holds them, too.
func TestTextAnswerToAnOfferWaits(t *testing.T) {
	_, sarah, item := offerAfterText(t, wire.Negotiate, proposeBoat)
	var sent owner.Sent
	body := map[string]any{"item": item.ID, "intent": "mesh.message", "payload": json.RawMessage(`{"action":"deliver","message":{"body":"we take it"}}`), "wait_seconds": 0}
	if status := sarah.CallAgent("POST", "/reply", body, &sent); status != http.StatusOK || sent.State != owner.SendHeld {
		t.Errorf("reply = %d %+v, want a message that waits for the owner", status, sent)
	}
}

// TestAgreementAfterText (AM-89): the owner's accept of a meeting or an offer in a conversation that began with a text
// makes the agreement, of which both owners learn, and the opener closes.
func TestAgreementAfterText(t *testing.T) {
	for intent, c := range map[wire.Intent]struct {
		offer  string
		events int
	}{wire.Schedule: {proposeCoffee, 1}, wire.Negotiate: {proposeBoat, 0}} {
		t.Run(string(intent), func(t *testing.T) {
			mesh := meshtest.New(t)
			chris, sarah := mesh.Node("chris", withBook), mesh.Node("sarah", withBook)
			for _, out := range []node.Outgoing{outgoing(t, sarah.ID(), wire.Deliver, hello), outgoing(t, sarah.ID(), intent, c.offer)} {
				out.Conv = "conv_1"
				mustSend(t, chris.Node, out, 0)
			}
			waitFor(t, "the offer arrives", func() bool {
				var list owner.List[owner.Item]
				sarah.Call("GET", "/inbox", nil, &list)
				return len(list.Items) == 2
			})
			body := map[string]any{"conversation": "conv_1", "payload": json.RawMessage(`{"action":"accept"}`), "wait_seconds": 10}
			var sent owner.Sent
			if status := sarah.Call("POST", "/reply", body, &sent); status != http.StatusOK {
				t.Fatalf("reply = %d", status)
			}
			for _, m := range []*meshtest.Member{chris, sarah} {
				waitFor(t, m.Name+" has agreed", func() bool {
					v := showConversation(t, m, "conv_1")
					return v.Agreement != nil && v.State == conversations.Completed && countAgreed(t, m) == 1 && len(agreedEvents(t, m)) == c.events
				})
			}
		})
	}
}

// TestAnswersHaveIntentOfMatter (AM-89): in random conversations of several intents, an action about a proposal or an
// agreement has its intent.
func TestAnswersHaveIntentOfMatter(t *testing.T) {
	intents := []wire.Intent{wire.Deliver, wire.Schedule, wire.Negotiate}
	actions := []string{"propose", "counter", "accept", "decline", "reject", "withdraw", "cancel", "deliver"}
	rapid.Check(t, func(t *rapid.T) {
		var c conversations.Conversation
		for range rapid.IntRange(1, 12).Draw(t, "messages") {
			e := conversations.Event{
				Kind: conversations.Received, At: time.Now(), ID: wire.MessageID(rapid.StringMatching(`msg_[a-z]{6}`).Draw(t, "id")),
				Intent:  rapid.SampledFrom(intents).Draw(t, "intent"),
				Payload: wire.Obj(wire.TextField("action", rapid.SampledFrom(actions).Draw(t, "action"))),
				Waits:   rapid.Bool().Draw(t, "waits"),
			}
			next, err := c.Next(e, 24*time.Hour)
			if err != nil {
				continue
			}
			c = next
			for _, action := range actions[2:7] {
				for _, of := range intents {
					about, ok := c.Matter(action, of, "")
					d := c.Deal(about.Intent)
					switch {
					case ok != slices.ContainsFunc(c.Deals(), func(d conversations.Deal) bool { return d.Proposal != nil || d.InForce() }):
						t.Fatalf("%s: about something is %t, with %+v", action, ok, c.Deals())
					case ok && about.Intent != of && c.Deal(of).Proposal != nil:
						t.Fatalf("%s of %s is about %s, though a proposal of its own stands", action, of, about.Intent)
					case ok && about.Message != d.Proposal.Message:
						t.Fatalf("%s answers %s, want %s", action, about.Message, d.Proposal.Message)
					}
				}
			}
		}
	})
}
