package node_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestHookAnswerKinds (AM-72): what becomes of each kind of answer, for a sender that still waits and for one that
// already has its 202 (AM-22, AM-32).
func TestHookAnswerKinds(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		answer func(t *testing.T) (hook.Answer, error)

		inTime     int // status of the first answer
		code       wire.Code
		action     string // of the answer in time
		state      owner.ItemState
		transcript []string // in time

		lateAction string // the answer to a repeat if the hook was late
		lateState  owner.ItemState
		late       []string
	}{
		{
			name: "payload",
			answer: func(t *testing.T) (hook.Answer, error) {
				return says(t, `{"action":"deliver","message":{"body":"ok"}}`), nil
			},
			inTime: 200, action: "deliver", state: owner.ItemAnswered, transcript: []string{"in deliver", "out deliver"},
			lateAction: "deliver", lateState: owner.ItemAnswered, late: []string{"in deliver", "out pending_approval", "out deliver"},
		}, {
			name:   "nothing",
			answer: func(*testing.T) (hook.Answer, error) { return hook.Answer{}, nil },
			inTime: 200, action: "received", state: owner.ItemAnswered, transcript: []string{"in deliver", "out received"},
			lateAction: "received", lateState: owner.ItemAnswered, late: []string{"in deliver", "out pending_approval", "out received"},
		}, {
			name:   "hold",
			answer: func(*testing.T) (hook.Answer, error) { return hook.Answer{Hold: "it wants money"}, nil },
			inTime: 202, action: "pending_approval", state: owner.ItemHeld, transcript: []string{"in deliver", "out pending_approval"},
			lateAction: "pending_approval", lateState: owner.ItemHeld, late: []string{"in deliver", "out pending_approval"},
		}, {
			name:   "owner rejected",
			answer: func(*testing.T) (hook.Answer, error) { return hook.Answer{Err: wire.ErrOwnerRejected}, nil },
			inTime: 403, code: wire.OwnerRejected, state: owner.ItemRejected, transcript: []string{"in deliver"},
			lateAction: "close", lateState: owner.ItemRejected, late: []string{"in deliver", "out pending_approval", "out close"},
		}, {
			name:   "intent not supported",
			answer: func(*testing.T) (hook.Answer, error) { return hook.Answer{Err: wire.ErrIntent}, nil },
			inTime: 422, code: wire.IntentNotSupported, state: owner.ItemRejected, transcript: []string{"in deliver"},
			lateAction: "close", lateState: owner.ItemRejected, late: []string{"in deliver", "out pending_approval", "out close"},
		}, {
			name:   "answers later",
			answer: func(*testing.T) (hook.Answer, error) { return hook.Answer{Async: true}, nil },
			inTime: 202, action: "pending_approval", state: owner.ItemNew, transcript: []string{"in deliver", "out pending_approval"},
			lateAction: "pending_approval", lateState: owner.ItemNew, late: []string{"in deliver", "out pending_approval"},
		}, {
			name:   "failure",
			answer: func(*testing.T) (hook.Answer, error) { return hook.Answer{}, errors.New("broken") },
			inTime: 202, action: "pending_approval", state: owner.ItemFailed, transcript: []string{"in deliver", "out pending_approval"},
			lateAction: "pending_approval", lateState: owner.ItemFailed, late: []string{"in deliver", "out pending_approval", "out pending_approval"}, // a repeat fetches the second
		},
	}
	for _, c := range cases {
		for _, late := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				chris := mesh.Stranger("chris")
				sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
					if late {
						time.Sleep(time.Minute)
					}
					return c.answer(t)
				}))
				d := in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello))
				raw := chris.Sign(d)
				a := sarah.Post(raw)
				state, turns, action := c.state, c.transcript, c.action
				if late {
					must(t, a, http.StatusAccepted)
					state, turns, action = c.lateState, c.late, c.lateAction
					time.Sleep(time.Minute)
					synctest.Wait()
				} else if must(t, a, c.inTime); a.Code() != c.code {
					t.Errorf("%s: answer %s, want %s", c.name, a.Body, c.code)
				}
				again := sarah.Post(raw)
				if !late && again.Status != a.Status {
					t.Errorf("%s: a repeat gets %d %s", c.name, again.Status, again.Body)
				}
				if action != "" {
					got := again.Message(t, sarah)
					if got.Action() != action {
						t.Errorf("%s, late %v: a repeat gets %s, want %s", c.name, late, again.Body, action)
					}
					if action == "close" && (got.Payload.GetStr("status") != "failed" || got.Payload.GetStr("reason") == "") {
						t.Errorf("%s: close = %s", c.name, again.Body)
					}
				}
				if item := theItem(t, sarah); item.State != state {
					t.Errorf("%s, late %v: item = %+v, want %s", c.name, late, item, state)
				}
				equal(t, c.name, transcript(t, sarah, store.ConvKey{Peer: string(chris.ID), ID: "conv_one"}), turns)
			})
		}
	}
}

// TestHookHoldsTooMuch: a conversation has at most sixteen holds; beyond them the message fails and stays with the
// owner (AM-33).
func TestHookHoldsTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			return hook.Answer{Hold: "ask"}, nil
		}, unlimited))
		for range 17 {
			must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusAccepted)
		}
		count := map[owner.ItemState]int{}
		items, _, err := sarah.Inbox(t.Context(), "", "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			count[item.State]++
		}
		if count[owner.ItemHeld] != 16 || count[owner.ItemFailed] != 1 {
			t.Errorf("items = %v, want 16 held and one failed", count)
		}
		transcript(t, sarah, store.ConvKey{Peer: string(chris.ID), ID: "conv_one"})
	})
}

// TestConversationEndsWhileAHookWorks: a hook's answer is not sent after the peer closed the conversation, and the
// transcript shows the answer that the sender got.
func TestConversationEndsWhileAHookWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			time.Sleep(time.Second)
			return hook.Answer{}, nil
		}))
		answered := make(chan meshtest.Answer, 1)
		go func() {
			answered <- sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello))))
		}()
		synctest.Wait()
		must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, closing)))), http.StatusOK)
		must(t, <-answered, http.StatusAccepted)
		if item := theItem(t, sarah); item.State != owner.ItemFailed || item.Note == "" {
			t.Errorf("item = %+v", item)
		}
		equal(t, "transcript", transcript(t, sarah, store.ConvKey{Peer: string(chris.ID), ID: "conv_one"}),
			[]string{"in deliver", "in close", "out close", "out pending_approval"})
	})
}

// TestDeletedWhileAHookWorks: the answer of a hook does not restore a conversation that the owner deleted.
func TestDeletedWhileAHookWorks(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
				time.Sleep(time.Second)
				return says(t, `{"action":"deliver","message":{"body":"ok"}}`), nil
			}, func(cfg *node.Config) {
				if late {
					cfg.SyncDeadline = time.Millisecond
				}
			}))
			answered := make(chan meshtest.Answer, 1)
			go func() {
				answered <- sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello))))
			}()
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
			if status := sarah.Call("DELETE", "/conversations/conv_one", nil, nil); status != http.StatusNoContent {
				t.Fatalf("delete = %d", status)
			}
			<-answered
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if got, want := state(t, sarah), "0 items, 0 conversations, 0 asks"; got != want {
				t.Errorf("late %v: state = %s, want %s", late, got, want)
			}
		})
	}
}

// TestQueueIsBounded (AM-75): at most four hooks run at once, and 256 run or wait; one peer has half of both, and the last
// quarter is for known peers that have none. A further message is refused before it is accepted, and succeeds later
// under the same id.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		friends := []*meshtest.Stranger{mesh.Stranger("chris"), mesh.Stranger("ann"), mesh.Stranger("bob")}
		release := make(chan struct{})
		started := make(chan struct{}, 300)
		sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			started <- struct{}{}
			<-release
			return hook.Answer{}, nil
		}, unlimited, func(cfg *node.Config) {
			for _, f := range friends {
				cfg.Policy.Allow = append(cfg.Policy.Allow, string(f.ID))
			}
		}))
		for i, accepted := range []int{128, 64, 1} {
			for range accepted {
				go sarah.Receive(context.Background(), friends[i].Sign(friends[i].Draft(sarah.ID(), wire.Deliver, hello)))
			}
			synctest.Wait()
		}
		if n := len(started); n != 4 {
			t.Errorf("%d hooks work at once, want 4", n)
		}
		before := state(t, sarah)
		var refused [][]byte
		for _, f := range friends {
			raw := f.Sign(f.Draft(sarah.ID(), wire.Deliver, hello))
			if a := sarah.Post(raw); a.Status != http.StatusServiceUnavailable || a.Code() != wire.AgentUnavailable || a.Header.Get("Retry-After") == "" {
				t.Errorf("beyond the queue: %d %s", a.Status, a.Body)
			}
			refused = append(refused, raw)
		}
		if after := state(t, sarah); after != before {
			t.Errorf("state = %s, want %s", after, before)
		}
		close(release)
		synctest.Wait()
		for _, raw := range refused {
			must(t, sarah.Post(raw), http.StatusOK)
		}
		items, _, err := sarah.Inbox(t.Context(), owner.ItemAnswered, "", 1000)
		if err != nil || len(items) != 128+64+1+3 {
			t.Errorf("%d items are answered, want 196 (%v)", len(items), err)
		}
	})
}

// TestAcceptInOurNegotiation: the peer's accept of our offer is answered, whether it is held (the default) or goes to a
// hook. Our close waits, because neither our offer nor our answer was delivered (AM-90).
func TestAcceptInOurNegotiation(t *testing.T) {
	for _, withHook := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris := mesh.Stranger("chris")
			configure := func(cfg *node.Config) {
				unlimited(cfg)
				if withHook {
					configureHook(func(context.Context, hook.Call) (hook.Answer, error) { return hook.Answer{}, nil })(cfg)
					cfg.Policy.Hold = []acl.HoldRule{{Intent: "*", Hold: acl.Never}}
				}
			}
			sarah := mesh.Node("sarah", configure)
			offer, err := wire.Parse([]byte(`{"action":"propose","terms":{"description":"a deal"}}`))
			if err != nil {
				t.Fatal(err)
			}
			_, err = sarah.Send(t.Context(), node.Outgoing{
				To: chris.ID, Conv: "conv_one", Intent: wire.Negotiate, Payload: offer, Via: "owner",
			}, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !withHook { // our offer commits the owner too, so the owner must approve it
				decide(t, sarah, theAsk(t, sarah), acl.Approve)
			}
			accept := chris.Draft(sarah.ID(), wire.Negotiate, `{"action":"accept"}`)
			offered := transcriptOf(t, sarah, chris.ID, "conv_one")[0].MessageID
			accept.Payload = inReplyTo(accept.Payload, wire.MessageID(offered))
			raw := chris.Sign(in("conv_one", accept))
			a := sarah.Post(raw)
			want := []string{"out propose", "in accept", "out received"}
			if withHook {
				must(t, a, http.StatusOK)
			} else {
				must(t, a, http.StatusAccepted)
				decide(t, sarah, theAsk(t, sarah), acl.Approve)
				want = []string{"out propose", "in accept", "out pending_approval", "out received"}
			}
			synctest.Wait()
			equal(t, "transcript", transcript(t, sarah, store.ConvKey{Peer: string(chris.ID), ID: "conv_one"}), want)
			if got := sarah.Post(raw).Message(t, sarah); got.Action() != wire.ActionReceived {
				t.Errorf("a repeat gets %s", got.Payload.JSON())
			}
		})
	}
}

// TestBusyConversation: if many messages of one conversation arrive at once, every one gets its reply, and the
// transcript has all of them.
func TestBusyConversation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			time.Sleep(time.Minute)
			return hook.Answer{}, nil
		}, unlimited))
		want := []string{}
		for range 40 {
			raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))
			go sarah.Receive(context.Background(), raw)
			synctest.Wait()
			want = append(want, "in deliver")
		}
		time.Sleep(time.Hour)
		for _, action := range []string{"out pending_approval", "out received"} {
			for range 40 {
				want = append(want, action)
			}
		}
		got := transcript(t, sarah, store.ConvKey{Peer: string(chris.ID), ID: "conv_one"})
		slices.Sort(got)
		equal(t, "transcript", got, want)
	})
}

// TestHookCannotLeaveItsConversation: whatever a hook names in its output, its answer goes to the sender of the
// message, in the conversation of the message.
func TestHookCannotLeaveItsConversation(t *testing.T) {
	for name, said := range map[string]string{
		"in the payload":  `{"payload":{"action":"confirmed","conversation_id":"conv_other","to":"am_mallory","metadata":{"in_reply_to":"msg_other"}}}`,
		"beside it":       `{"payload":{"action":"confirmed"},"conversation_id":"conv_other"}`,
		"as the document": `{"conversation_id":"conv_other"}`,
	} {
		t.Run(name, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris, ann := mesh.Stranger("chris"), mesh.Stranger("ann")
			program := hook.Exec{Argv: []string{"sh", "-c", `cat >/dev/null; printf %s "$0"`, said}}
			sarah := mesh.Node("sarah", configureHook(program.Handle))
			other := ann.Draft(sarah.ID(), "mesh.message", hello)
			other.Conversation = "conv_other"
			sarah.Post(ann.Sign(other))
			before := transcript(t, sarah, store.ConvKey{Peer: string(ann.ID), ID: "conv_other"})
			a := sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello))))
			m := a.Message(t, sarah)
			if m.Conversation != "conv_one" || m.To != chris.ID || strings.Contains(string(a.Body), "msg_other") {
				t.Errorf("answer = %s", a.Body)
			}
			equal(t, "the other conversation", transcript(t, sarah, store.ConvKey{Peer: string(ann.ID), ID: "conv_other"}), before)
		})
	}
}
