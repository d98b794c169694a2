package node_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestBoatAndCoffee (AM-90): an offer and a meeting stand beside each other in one conversation. Each is agreed by itself,
// whichever the answer names, and the opener closes when nothing stands any more.
func TestBoatAndCoffee(t *testing.T) {
	for _, first := range []wire.Intent{wire.Schedule, wire.Negotiate} {
		t.Run(string(first)+" first", func(t *testing.T) {
			mesh := meshtest.New(t)
			chris, sarah := mesh.Node("chris", withBook), mesh.Node("sarah", withBook)
			sent := make(map[wire.Intent]owner.Sent)
			for intent, offer := range map[wire.Intent]string{wire.Schedule: proposeCoffee, wire.Negotiate: proposeBoat} {
				out := outgoing(t, sarah.ID(), intent, offer)
				out.Conv = "conv_1"
				sent[intent] = mustSend(t, chris.Node, out, 10*time.Second)
			}
			accept := func(intent wire.Intent) {
				t.Helper()
				body := map[string]any{"conversation": "conv_1", "payload": json.RawMessage(`{"action":"accept"}`), "proposal": sent[intent].MessageID, "wait_seconds": 10}
				if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusOK {
					t.Fatalf("accept of %s = %d", intent, status)
				}
			}
			second := map[wire.Intent]wire.Intent{wire.Schedule: wire.Negotiate, wire.Negotiate: wire.Schedule}[first]
			accept(first)
			for _, m := range []*meshtest.Member{chris, sarah} {
				waitFor(t, m.Name+" has agreed on one", func() bool {
					v := showConversation(t, m, "conv_1")
					return len(v.Agreements) == 1 && v.Agreement.Intent == first
				})
				if v := showConversation(t, m, "conv_1"); v.State != conversations.Open || len(v.Proposals) != 1 || v.Proposal.Intent != second {
					t.Errorf("%s shows %s with %+v", m.Name, v.State, v.Proposals)
				}
			}
			accept(second)
			for _, m := range []*meshtest.Member{chris, sarah} {
				waitFor(t, m.Name+" has agreed on both", func() bool {
					v := showConversation(t, m, "conv_1")
					return len(v.Agreements) == 2 && v.Agreement.Intent == second && v.State == conversations.Completed &&
						countAgreed(t, m) == 2 && len(agreedEvents(t, m)) == 1
				})
			}
		})
	}
}

// TestCancelledDeal (AM-90): the owner learns that the peer took back what was negotiated; the meeting stays.
func TestCancelledDeal(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		open(cfg)
		withBook(cfg)
		cfg.Policy.Hold = []acl.HoldRule{{Intent: "*", Hold: acl.Never}}
	})
	ann.answers(ann.says(`{"action":"received"}`))
	for intent, offer := range map[wire.Intent]string{wire.Schedule: proposeCoffee, wire.Negotiate: proposeBoat} {
		draft := in("conv_1", ann.Draft(sarah.ID(), intent, offer))
		must(t, sarah.Post(ann.Sign(draft)), http.StatusOK)
		body := map[string]any{"conversation": "conv_1", "intent": intent, "payload": json.RawMessage(`{"action":"accept"}`), "wait_seconds": 10}
		if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusOK {
			t.Fatalf("accept of %s = %d", intent, status)
		}
	}
	if v := showConversation(t, sarah, "conv_1"); len(v.Agreements) != 2 {
		t.Fatalf("agreed on %+v", v.Agreements)
	}
	must(t, sarah.Post(ann.Sign(in("conv_1", ann.Draft(sarah.ID(), wire.Negotiate, `{"action":"withdraw","reason":"sold"}`)))), http.StatusOK)
	v := showConversation(t, sarah, "conv_1")
	for _, a := range v.Agreements {
		if want := map[wire.Intent]owner.Standing{wire.Schedule: owner.StandingAgreed, wire.Negotiate: owner.StandingCancelled}[a.Intent]; a.Standing != want {
			t.Errorf("%s is %s, want %s", a.Intent, a.Standing, want)
		}
	}
	if n := countNotices(t, sarah, notify.Cancelled); n != 1 || len(agreedEvents(t, sarah)) != 1 {
		t.Errorf("%d notices of a cancellation, events %v", n, agreedEvents(t, sarah))
	}
}

// TestCloseWaits (AM-90): after an agreement the opener closes when the hook that still runs has ended, and at the latest
// after ten minutes, also if it starts again meanwhile.
func TestCloseWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		works, closed time.Duration // of the hook; after the agreement
		restart       bool
	}{
		"hook ends":         {8 * time.Minute, 8*time.Minute + 5*time.Second, false},
		"hook goes on":      {25 * time.Minute, 10*time.Minute + 5*time.Second, false},
		"started meanwhile": {25 * time.Minute, 10*time.Minute + 5*time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.Wired(t, func(_ string, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
				chris := mesh.Stranger("chris")
				configure := func(cfg *node.Config) {
					open(cfg)
					unlimited(cfg)
					cfg.HookTimeout = time.Hour
					cfg.Policy.Hold = nil
					cfg.Routes = []node.Route{{Pattern: "mesh.message", Name: "slow", Repeatable: true, Handler: handler(func(ctx context.Context, _ hook.Call) (hook.Answer, error) {
						select {
						case <-time.After(tt.works):
						case <-ctx.Done():
						}
						return hook.Answer{Async: true}, ctx.Err()
					})}}
				}
				sarah := mesh.Node("sarah", configure)
				sarah.Start()
				sent, err := sarah.Send(t.Context(), outgoing(t, chris.ID, wire.Schedule, proposeCoffee), 0)
				if err != nil {
					t.Fatal(err)
				}
				say := func(intent wire.Intent, payload string) {
					if a := sarah.Post(chris.Sign(in(sent.Conversation, chris.Draft(sarah.ID(), intent, payload)))); a.Status/100 != 2 {
						t.Errorf("%s = %d %s", payload, a.Status, a.Body)
					}
				}
				go say(wire.Deliver, hello)
				time.Sleep(time.Second)
				agreed := time.Now()
				say(wire.Schedule, `{"action":"accept","selected_time":"2036-02-21T10:00:00-08:00","metadata":{"in_reply_to":"`+string(sent.MessageID)+`"}}`)
				key := store.ConvKey{Peer: string(chris.ID), ID: string(sent.Conversation)}
				if v := showConversation(t, sarah, sent.Conversation); v.Agreement == nil || v.State != conversations.Open {
					t.Fatalf("after the accept: %+v", v)
				}
				if tt.restart {
					time.Sleep(5 * time.Minute)
					sarah.Stop()
					sarah = mesh.Restart(sarah, configure)
					sarah.Start()
				}
				time.Sleep(time.Until(agreed.Add(tt.closed - 20*time.Second)))
				if v := showConversation(t, sarah, sent.Conversation); v.State != conversations.Open {
					t.Errorf("closed early: %v", transcript(t, sarah, key))
				}
				time.Sleep(20 * time.Second)
				if v := showConversation(t, sarah, sent.Conversation); v.State != conversations.Completed {
					t.Errorf("not closed after %v: %v", tt.closed, transcript(t, sarah, key))
				}
				sarah.Stop()
			})
		})
	}
}
