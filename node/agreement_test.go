package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	proposeSeveral = `{"action":"propose","event":{"title":"Coffee","proposed_times":["2036-02-21T10:00:00-08:00","2036-02-21T14:00:00-08:00"],"duration":"30m","location":"TBD"}}`
	proposeDeal    = `{"action":"propose","terms":{"description":"A website","price":"$500"}}`
	proposeCoffee  = `{"action":"propose","event":{"title":"Coffee","proposed_times":["2036-02-21T10:00:00-08:00"],"duration":"30m","location":"Blue Bottle"}}`
)

// inReplyTo adds the id of the answered message to a payload.
func inReplyTo(payload wire.Value, id wire.MessageID) wire.Value {
	meta, _ := payload.Get("metadata")
	return payload.With("metadata", meta.With("in_reply_to", wire.Text(string(id))))
}

// shownConversation is a conversation as the owner sees it.
type shownConversation struct {
	State      conversations.State
	Proposals  []owner.Proposal
	Agreements []owner.Agreement

	Proposal  *owner.Proposal  // the newest
	Agreement *owner.Agreement // the newest
}

func showConversation(t *testing.T, m *meshtest.Member, conv wire.ConversationID) (v shownConversation) {
	t.Helper()
	if status := m.Call("GET", "/conversations/"+string(conv), nil, &v); status != http.StatusOK {
		t.Fatalf("show %s: %d", conv, status)
	}
	if len(v.Proposals) > 0 {
		v.Proposal = &v.Proposals[0]
	}
	if len(v.Agreements) > 0 {
		v.Agreement = &v.Agreements[0]
	}
	return v
}

// isAgreed reports whether a member shows an agreement in a conversation in any way: state, notice, event or view.
func isAgreed(t *testing.T, m *meshtest.Member, conv wire.ConversationID) bool {
	t.Helper()
	v := showConversation(t, m, conv)
	return v.State == conversations.Completed || countAgreed(t, m) > 0 || len(agreedEvents(t, m)) > 0 ||
		v.Agreement != nil && v.Agreement.Standing == owner.StandingAgreed
}

// changedAccepts are accepts of something that was not offered, with the text that the owner must see as proposed.
var changedAccepts = []struct{ name, intent, propose, accept, proposed string }{
	{"time", "mesh.schedule", proposeCoffee, `{"action":"accept","selected_time":"2036-02-21T03:00:00-08:00"}`, "T03:00"},
	{"title", "mesh.schedule", proposeCoffee, `{"action":"accept","event":{"title":"Dinner"}}`, "Dinner"},
	{"place", "mesh.schedule", proposeCoffee, `{"action":"accept","location":"My house"}`, "My house"},
	{"length", "mesh.schedule", proposeCoffee, `{"action":"accept","duration":"8h"}`, "8h"},
	{"price", "mesh.negotiate", proposeDeal, `{"action":"accept","terms":{"price":"$900"}}`, "$900"},
	{"description", "mesh.negotiate", proposeDeal, `{"action":"accept","terms":{"description":"An app"}}`, "An app"},
}

// TestAcceptRewritesNothing (AM-88): an accept that names something else is a counter-proposal, whether it is a reply
// or a message. The conversation stays open, nobody gets notice of an agreement, and the calendar stays empty.
func TestAcceptRewritesNothing(t *testing.T) {
	for _, c := range changedAccepts {
		for _, way := range []string{"reply", "message"} {
			t.Run(c.name+" by "+way, func(t *testing.T) {
				mesh := meshtest.New(t)
				ann := newPeer(t, mesh, "ann")
				sarah := mesh.Node("sarah", withBook)
				ann.answers(ann.says(`{"action":"received"}`))
				if way == "reply" {
					ann.answers(ann.says(c.accept))
				}
				out := outgoing(t, ann.ID, wire.Intent(c.intent), c.propose)
				out.Conv = "conv_one"
				mustSend(t, sarah.Node, out, 10*time.Second)
				if way == "message" {
					d := in("conv_one", ann.Draft(sarah.ID(), out.Intent, c.accept))
					must(t, sarah.Post(ann.Sign(d)), http.StatusOK)
				}
				if isAgreed(t, sarah, "conv_one") {
					t.Errorf("it counts as an agreement: %+v", showConversation(t, sarah, "conv_one"))
				}
				v := showConversation(t, sarah, "conv_one")
				if v.Proposal == nil || v.Proposal.By != conversations.Theirs || !strings.Contains(v.Proposal.String(), c.proposed) {
					t.Fatalf("proposed is %+v, want theirs with %q", v.Proposal, c.proposed)
				}
				// If the owner accepts now, that is an accept of the counter-proposal.
				ann.answers(ann.says(`{"action":"received"}`))
				out.Payload = parsePayload(t, `{"action":"accept"}`)
				mustSend(t, sarah.Node, out, 10*time.Second)
				if v = showConversation(t, sarah, "conv_one"); v.State != conversations.Completed || !strings.Contains(v.Agreement.String(), c.proposed) {
					t.Errorf("after our accept of it: %+v", v)
				}
			})
		}
	}
}

// TestAgreementIsNotEdited (AM-88): another accept does not change an agreement, and a later proposal changes it only
// after its acceptance.
func TestAgreementIsNotEdited(t *testing.T) {
	other := `{"action":"accept","selected_time":"2036-02-21T14:00:00-08:00"}`
	same := `{"action":"accept","selected_time":"2036-02-21T18:00:00Z"}`
	for _, c := range []struct {
		name, then, reply string
		hour              int // of the agreed event
		tells             int
		proposed          bool
	}{
		{name: "the same again", then: same, hour: 10, tells: 1},
		{name: "a bare accept", then: `{"action":"accept"}`, hour: 10, tells: 1},
		{name: "another offered time", then: other, hour: 10, tells: 1, proposed: true},
		{name: "another place", then: `{"action":"accept","location":"My house"}`, hour: 10, tells: 1, proposed: true},
		{name: "a move that we accept", then: `{"action":"counter","event":{"selected_time":"2036-02-21T14:00:00-08:00"}}`, reply: `{"action":"accept"}`, hour: 14, tells: 2},
		{name: "a move that we decline", then: `{"action":"counter","event":{"selected_time":"2036-02-21T14:00:00-08:00"}}`, reply: `{"action":"decline"}`, hour: 10, tells: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			mesh := meshtest.New(t)
			ann := newPeer(t, mesh, "ann")
			ann.answers(ann.says(`{"action":"received"}`))
			sarah := mesh.Node("sarah", withBook)
			say := func(payload string) {
				t.Helper()
				must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, payload)))), http.StatusOK)
			}
			say(proposeSeveral)
			out := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept","selected_time":"2036-02-21T10:00:00-08:00"}`)
			out.Conv = "conv_one"
			mustSend(t, sarah.Node, out, 10*time.Second)
			if v := showConversation(t, sarah, "conv_one"); v.Agreement == nil {
				t.Fatalf("after our accept: %+v", v)
			}
			say(c.then)
			if c.reply != "" {
				out.Payload = parsePayload(t, c.reply)
				mustSend(t, sarah.Node, out, 10*time.Second)
			}
			v, events := showConversation(t, sarah, "conv_one"), agreedEvents(t, sarah)
			want := time.Date(2036, 2, 21, c.hour+8, 0, 0, 0, time.UTC)
			if v.Agreement == nil || v.Agreement.Standing != owner.StandingAgreed || len(events) != 1 || !events[0].Start.Equal(want) {
				t.Errorf("agreed on %+v, in the calendar %+v, want %v", v.Agreement, events, want)
			}
			if n := countAgreed(t, sarah); n != c.tells || (v.Proposal != nil) != c.proposed {
				t.Errorf("%d notices, want %d; proposed %+v", n, c.tells, v.Proposal)
			}
		})
	}
}

// TestAcceptOfAnAccept (AM-88): an accept in answer to our accept confirms it if it names nothing different. Otherwise
// it is a counter-proposal, and our accept does not count.
func TestAcceptOfAnAccept(t *testing.T) {
	for reply, agrees := range map[string]bool{
		`{"action":"accept"}`: true,
		`{"action":"accept","selected_time":"2036-02-21T18:00:00Z","message":"See you"}`: true,
		`{"action":"accept","selected_time":"2036-02-21T14:00:00-08:00"}`:                false,
		`{"action":"accept","location":"My house"}`:                                      false,
		`{"action":"counter","event":{"duration":"8h"}}`:                                 false,
		`{"action":"decline"}`: false,
	} {
		mesh := meshtest.New(t)
		ann := newPeer(t, mesh, "ann")
		sarah := mesh.Node("sarah", withBook)
		must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, proposeCoffee)))), http.StatusOK)
		ann.answers(ann.says(reply))
		out := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept"}`)
		out.Conv = "conv_one"
		mustSend(t, sarah.Node, out, 10*time.Second)
		if got := isAgreed(t, sarah, "conv_one"); got != agrees {
			t.Errorf("%s: agreed is %v, want %v: %+v", reply, got, agrees, showConversation(t, sarah, "conv_one"))
		}
	}
}

// TestOurAcceptWaitsForItsAnswer (AM-88): our accept counts once the peer's verified reply is neither an error nor
// pending_approval. Until then nothing shows an agreement.
func TestOurAcceptWaitsForItsAnswer(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	mallory := mesh.Stranger("mallory")
	for name, answers := range map[string]func(http.ResponseWriter, wire.Message){
		"unreachable": status(http.StatusServiceUnavailable),
		"refused":     status(http.StatusForbidden),
		"no reply":    status(http.StatusNoContent),
		"held": func(w http.ResponseWriter, m wire.Message) {
			w.WriteHeader(http.StatusAccepted)
			w.Write(ann.Sign(ann.reply(m, `{"action":"pending_approval"}`)))
		},
		"of somebody else": func(w http.ResponseWriter, m wire.Message) {
			d := mallory.Draft(m.From, m.Intent, `{"action":"received"}`)
			d.Conversation = m.Conversation
			w.Write(mallory.Sign(d))
		},
		"closed as failed": ann.says(`{"action":"close","status":"failed"}`),
	} {
		t.Run(name, func(t *testing.T) {
			sarah := mesh.Node("sarah "+name, withBook)
			must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, proposeCoffee)))), http.StatusOK)
			ann.answers(answers)
			out := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept"}`)
			out.Conv = "conv_one"
			mustSend(t, sarah.Node, out, 10*time.Second)
			if isAgreed(t, sarah, "conv_one") {
				t.Errorf("it is called agreed: %+v", showConversation(t, sarah, "conv_one"))
			}
		})
	}
}

// TestAmbiguousAccept (AM-88): the first accept that selects none of several times is answered with a counter-proposal
// of one of them. The next one is answered with pending_approval, and the owner decides.
func TestAmbiguousAccept(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	for _, way := range []string{"reply", "message", "twice"} {
		t.Run(way, func(t *testing.T) {
			sarah := mesh.Node("sarah "+way, withBook)
			ann.answers(ann.says(`{"action":"received"}`))
			out := outgoing(t, ann.ID, wire.Schedule, proposeSeveral)
			out.Conv = "conv_one"
			counters := func() (list []wire.Message) {
				for _, m := range ann.got() {
					if m.From == sarah.ID() && m.Action() == "counter" {
						list = append(list, m)
					}
				}
				return list
			}
			say := func(payload string, answers wire.MessageID) wire.Message {
				t.Helper()
				d := in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, payload))
				if answers != "" {
					d.Payload = inReplyTo(d.Payload, answers)
				}
				return sarah.Post(ann.Sign(d)).Message(t, sarah)
			}
			var counter wire.Message
			if way == "reply" {
				ann.answers(func(w http.ResponseWriter, m wire.Message) {
					if m.Action() == "propose" {
						ann.says(`{"action":"accept"}`)(w, m)
						return
					}
					ann.says(`{"action":"received"}`)(w, m)
				})
				mustSend(t, sarah.Node, out, 10*time.Second)
				waitFor(t, "the counter-proposal leaves", func() bool { return len(counters()) == 1 })
				waitFor(t, "it was delivered", func() bool {
					list, _, err := sarah.Outbox(t.Context(), owner.SendQueued, "", 10)
					return err == nil && len(list) == 0
				})
				counter = counters()[0]
			} else {
				mustSend(t, sarah.Node, out, 10*time.Second)
				counter = say(`{"action":"accept"}`, "")
			}
			event, _ := counter.Payload.Get("event")
			if counter.Action() != "counter" || event.GetStr("selected_time") != "2036-02-21T10:00:00-08:00" || event.GetStr("duration") != "30m" {
				t.Fatalf("the answer is %s", counter.Payload.JSON())
			}
			if isAgreed(t, sarah, "conv_one") {
				t.Errorf("it is called agreed: %+v", showConversation(t, sarah, "conv_one"))
			}
			if way == "twice" { // the second ambiguous accept goes to the owner
				if m := say(`{"action":"accept"}`, "msg_of_nobody"); m.Action() != wire.ActionPending {
					t.Errorf("the next one is answered with %s", m.Payload.JSON())
				}
				items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
				if err != nil || len(items) != 1 || !goldentest.Says(t, "note", items[0].Note) {
					t.Errorf("the owner has %+v, %v", items, err)
				}
			}
			if m := say(`{"action":"accept"}`, counter.ID); m.Action() != wire.ActionReceived {
				t.Errorf("the accept of our counter-proposal is answered with %s", m.Payload.JSON())
			}
			v := showConversation(t, sarah, "conv_one")
			if v.Agreement == nil || v.Agreement.Time != "2036-02-21T10:00:00-08:00" || v.State != conversations.Completed {
				t.Errorf("after the accept of our counter-proposal: %+v", v)
			}
		})
	}
}

// TestOwnAmbiguousAccept (AM-88): no command of ours sends an accept that does not say what it accepts.
func TestOwnAmbiguousAccept(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		withBook(cfg)
		cfg.Outbound.Approve = []string{"mesh.schedule"} // and the owner is not asked about it
	})
	for _, payload := range []string{proposeCoffee, proposeSeveral} {
		must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, payload)))), http.StatusOK)
	}
	items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
	if err != nil || len(items) != 2 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	accept := parsePayload(t, `{"action":"accept"}`)
	for name, c := range map[string]struct {
		path string
		body any
		says string
	}{
		"send":            {"/send", map[string]any{"to": ann.ID, "conversation": "conv_one", "intent": "mesh.schedule", "payload": accept}, "selects none: add \\\"selected_time\\\" with one of 2036-02-21T10:00:00-08:00, 2036"},
		"reply":           {"/reply", map[string]any{"conversation": "conv_one", "payload": accept}, "selects none"},
		"of the first":    {"/reply", map[string]any{"item": items[0].ID, "payload": accept}, "does not answer the standing proposal"},
		"of the second":   {"/reply", map[string]any{"item": items[1].ID, "payload": accept}, "selects none"},
		"to another time": {"/reply", map[string]any{"item": items[0].ID, "payload": parsePayload(t, `{"action":"accept","selected_time":"2036-02-21T10:00:00-08:00"}`)}, "does not answer the standing proposal"},
	} {
		body, err := json.Marshal(c.body)
		if err != nil {
			t.Fatal(err)
		}
		if got := sarah.Ask("POST", c.path, body); got.Status != http.StatusConflict || !strings.Contains(string(got.Body), c.says) {
			t.Errorf("%s: %d %s, want 409 with %q", name, got.Status, got.Body, c.says)
		}
	}
	if got := ann.got(); len(got) != 0 || len(pendingAsks(t, sarah)) != 0 {
		t.Errorf("%d messages left, %d wait for the owner", len(got), len(pendingAsks(t, sarah)))
	}
}

// unreadableItems is a store that cannot read inbox items while broken is set.
type unreadableItems struct {
	store.Store
	broken *atomic.Bool
}

func (u unreadableItems) Records() store.Records {
	return unreadableItemRecords{u.Store.Records(), u.broken}
}

type unreadableItemRecords struct {
	store.Records
	broken *atomic.Bool
}

func (u unreadableItemRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if ns == "inbox" && u.broken.Load() {
		return store.Record{}, store.ErrUnavailable
	}
	return u.Records.Get(ctx, ns, key, now)
}

// TestAcceptOfAnUnreadableItem: if the node cannot read the held proposal that the owner accepts, the owner learns
// that, and not that the accept answers something else.
func TestAcceptOfAnUnreadableItem(t *testing.T) {
	mesh, broken := meshtest.New(t), new(atomic.Bool)
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		cfg.Policy.Mode, cfg.Store = acl.Approval, unreadableItems{meshtest.Store(t), broken}
	})
	ann := mesh.Stranger("ann")
	must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, proposeCoffee)))), http.StatusAccepted)
	items, _, err := sarah.Inbox(t.Context(), owner.ItemHeld, "", 10)
	if err != nil || len(items) != 1 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	out := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept"}`)
	out.Conv, out.Answers, out.InReplyTo = "conv_one", items[0].ID, items[0].MessageID
	broken.Store(true)
	if _, err := sarah.Send(t.Context(), out, 0); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("accept = %v, want %v", err, store.ErrUnavailable)
	}
}

// TestAcceptOfAnEarlierProposal (AM-88): an accept belongs to the proposal that it names, or to the one that had
// arrived when it was written. It never counts for a later proposal.
func TestAcceptOfAnEarlierProposal(t *testing.T) {
	later := strings.ReplaceAll(proposeCoffee, "T10:00", "T11:00")
	for name, c := range map[string]struct {
		accept func(first wire.MessageID, d wire.Draft) wire.Draft
		agrees bool
	}{
		"names the first":            {accept: func(first wire.MessageID, d wire.Draft) wire.Draft { d.Payload = inReplyTo(d.Payload, first); return d }},
		"was written before":         {accept: func(_ wire.MessageID, d wire.Draft) wire.Draft { d.Time = d.Time.Add(-time.Minute); return d }},
		"names nothing, and follows": {accept: func(_ wire.MessageID, d wire.Draft) wire.Draft { return d }, agrees: true},
	} {
		t.Run(name, func(t *testing.T) {
			mesh := meshtest.New(t)
			ann := newPeer(t, mesh, "ann")
			ann.answers(ann.says(`{"action":"received"}`))
			sarah := mesh.Node("sarah", withBook)
			out := outgoing(t, ann.ID, wire.Schedule, proposeCoffee)
			out.Conv = "conv_one"
			first := mustSend(t, sarah.Node, out, 10*time.Second).MessageID
			out.Payload = parsePayload(t, later)
			mustSend(t, sarah.Node, out, 10*time.Second)
			d := c.accept(first, in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, `{"action":"accept"}`)))
			answer := sarah.Post(ann.Sign(d)).Message(t, sarah)
			if got := isAgreed(t, sarah, "conv_one"); got != c.agrees || (answer.Action() == "counter") == c.agrees {
				t.Errorf("agreed is %v, want %v; the answer is %s", got, c.agrees, answer.Payload.JSON())
			}
		})
	}
}

// TestCrossingProposals: two nodes send proposals at the same moment, and both owners accept what they got. The two
// sides never show different agreements.
func TestCrossingProposals(t *testing.T) {
	for range 5 {
		mesh := meshtest.New(t)
		sides := []*meshtest.Member{mesh.Node("chris", withBook), mesh.Node("sarah", withBook)}
		both := func(payloads ...string) {
			var group sync.WaitGroup
			for i, m := range sides {
				out := outgoing(t, sides[1-i].ID(), wire.Schedule, payloads[i])
				out.Conv = "conv_one"
				group.Go(func() { _, _ = m.Send(t.Context(), out, 10*time.Second) }) // it may be refused by now
			}
			group.Wait()
		}
		both(proposeCoffee, strings.ReplaceAll(proposeCoffee, "T10:00", "T11:00"))
		for range 3 {
			both(`{"action":"accept"}`, `{"action":"accept"}`)
			waitFor(t, "both outboxes are empty", func() bool {
				for _, m := range sides {
					if list, _, err := m.Outbox(t.Context(), owner.SendQueued, "", 10); err != nil || len(list) > 0 {
						return false
					}
				}
				return true
			})
		}
		one, two := showConversation(t, sides[0], "conv_one"), showConversation(t, sides[1], "conv_one")
		if one.Agreement != nil && two.Agreement != nil && one.Agreement.Time != two.Agreement.Time {
			t.Errorf("they agreed on %s and %s", one.Agreement, two.Agreement)
		}
		if (one.Agreement == nil) != (two.Agreement == nil) {
			t.Errorf("only one side agreed: %+v and %+v", one, two)
		}
	}
}

// TestSpecifiedFlows plays §5 and §10 of the specification between two nodes, and accepts in the form that the
// reference agent writes. Both conversations end completed, with the same agreement.
func TestSpecifiedFlows(t *testing.T) {
	for _, c := range []struct {
		name, intent string
		says         []string // the opener and the other side in turn
		want         string
	}{
		{"§5", "mesh.schedule", []string{proposeSeveral, `{"action":"accept","selected_time":"2036-02-21T14:00:00-08:00","location":"Blue Bottle Coffee, Hayes Valley"}`},
			"Coffee, 2036-02-21T14:00:00-08:00, 30m, Blue Bottle Coffee, Hayes Valley"},
		{"§10", "mesh.schedule", []string{
			`{"action":"propose","event":{"title":"Coffee catch-up","proposed_times":["2036-02-21T10:00:00-08:00","2036-02-21T14:00:00-08:00"],"duration":"30m"}}`,
			`{"action":"counter","event":{"selected_time":"2036-02-21T10:00:00-08:00","duration":"45m","location":"Sightglass Coffee, SoMa"}}`,
			`{"action":"accept"}`,
		}, "Coffee catch-up, 2036-02-21T10:00:00-08:00, 45m, Sightglass Coffee, SoMa"},
		{"empty terms", "mesh.negotiate", []string{proposeDeal, `{"action":"accept","terms":{}}`}, "A website, $500"},
		{"empty terms of an event", "mesh.schedule", []string{proposeCoffee, `{"action":"accept","terms":{}}`}, "Coffee, 2036-02-21T10:00:00-08:00, 30m, Blue Bottle"},
		{"a message", "mesh.schedule", []string{proposeCoffee, `{"action":"accept","message":"Looking forward to it"}`}, "Coffee, 2036-02-21T10:00:00-08:00, 30m, Blue Bottle"},
		{"confirmed", "mesh.schedule", []string{proposeCoffee, `{"action":"accept","event":{"selected_time":"2036-02-21T18:00:00Z"}}`}, "Coffee, 2036-02-21T10:00:00-08:00, 30m, Blue Bottle"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mesh := meshtest.New(t)
			sides := []*meshtest.Member{mesh.Node("chris", withBook), mesh.Node("sarah", withBook)}
			for i, payload := range c.says {
				out := outgoing(t, sides[1-i%2].ID(), wire.Intent(c.intent), payload)
				out.Conv = "conv_one"
				mustSend(t, sides[i%2].Node, out, 10*time.Second)
			}
			for _, m := range sides {
				waitFor(t, m.Name+" has completed", func() bool { return showConversation(t, m, "conv_one").State == conversations.Completed })
				if v := showConversation(t, m, "conv_one"); v.Agreement == nil || v.Agreement.String() != c.want {
					t.Errorf("%s agreed on %+v, want %s", m.Name, v.Agreement, c.want)
				}
			}
		})
	}
}

// TestCancelledEverywhere (AM-88): a cancel marks the agreement as cancelled on both sides, names the side that
// cancelled, and removes the event from both calendars. The opener has closed the conversation of the agreement, so the
// cancel comes in another one.
func TestCancelledEverywhere(t *testing.T) {
	mesh := meshtest.New(t)
	chris, sarah := mesh.Node("chris", withBook), mesh.Node("sarah", withBook)
	out := outgoing(t, sarah.ID(), wire.Schedule, proposeCoffee)
	out.Conv = "conv_one"
	back := outgoing(t, chris.ID(), wire.Schedule, `{"action":"accept"}`)
	back.Conv = "conv_one"
	mustSend(t, chris.Node, out, 10*time.Second)
	mustSend(t, sarah.Node, back, 10*time.Second)
	for _, m := range []*meshtest.Member{chris, sarah} {
		waitFor(t, m.Name+" has agreed", func() bool {
			v := showConversation(t, m, "conv_one")
			return v.Agreement != nil && v.Agreement.Standing == owner.StandingAgreed && v.State == conversations.Completed
		})
	}
	end := outgoing(t, sarah.ID(), wire.Schedule, `{"action":"cancel","metadata":{"agreed_in":"conv_one"}}`)
	mustSend(t, chris.Node, end, 10*time.Second)
	for m, by := range map[*meshtest.Member]conversations.Side{chris: conversations.Ours, sarah: conversations.Theirs} {
		v := showConversation(t, m, "conv_one")
		if v.Agreement == nil || v.Agreement.Standing != owner.StandingCancelled || v.Agreement.Cancelled.By != by || v.Agreement.Cancelled.At.IsZero() {
			t.Errorf("%s shows %+v", m.Name, v.Agreement)
		}
		if n := len(agreedEvents(t, m)); n != 0 {
			t.Errorf("%s has %d events", m.Name, n)
		}
	}
}

// TestFailedIsNotCalledAgreed: if a conversation fails after an agreement, because a message cannot be delivered, the
// agreement is shown as failed.
func TestFailedIsNotCalledAgreed(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", withBook)
	must(t, sarah.Post(ann.Sign(in("conv_one", ann.Draft(sarah.ID(), wire.Schedule, proposeCoffee)))), http.StatusOK)
	out := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept"}`)
	out.Conv = "conv_one"
	mustSend(t, sarah.Node, out, 10*time.Second)
	if v := showConversation(t, sarah, "conv_one"); v.Agreement == nil || v.Agreement.Standing != owner.StandingAgreed {
		t.Fatalf("after our accept: %+v", v.Agreement)
	}
	ann.answers(status(http.StatusForbidden))
	out.Payload = parsePayload(t, proposeSeveral)
	mustSend(t, sarah.Node, out, 10*time.Second)
	if v := showConversation(t, sarah, "conv_one"); v.State != conversations.Failed || v.Agreement.Standing != owner.StandingFailed {
		t.Errorf("after a failed delivery: %s, %+v", v.State, v.Agreement)
	}
}
