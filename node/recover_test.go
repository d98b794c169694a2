package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"sync"
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
	"github.com/agentmesh/agentmesh/store"
)

// killWhileRunning returns a member whose process ended while its hook worked on the messages that bodies returns: the
// items are stored as running, and no sender got an answer.
func killWhileRunning(t *testing.T, mesh *meshtest.Mesh, old *meshtest.Member, bodies func(to wire.AgentID) [][]byte) *meshtest.Member {
	t.Helper()
	const never = 30 * time.Minute
	dead := make(chan struct{})
	configure := configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		<-dead
		runtime.Goexit() // a killed process does not answer
		panic("unreachable")
	}, unlimited, func(cfg *node.Config) { cfg.SyncDeadline = never })
	m := old
	if m == nil {
		m = mesh.Node("sarah", configure)
	} else {
		m = mesh.Copy(old, configure)
	}
	for _, body := range bodies(m.ID()) {
		go m.Receive(context.Background(), body)
	}
	synctest.Wait()
	t.Cleanup(func() { // runs after the nodes that were started later have stopped
		close(dead)
		time.Sleep(never)
		synctest.Wait()
	})
	return m
}

func oneBody(body func(to wire.AgentID) []byte) func(wire.AgentID) [][]byte {
	return func(to wire.AgentID) [][]byte { return [][]byte{body(to)} }
}

// callLog records the calls of a hook.
type callLog struct {
	mu   sync.Mutex
	seen []string
}

func (c *callLog) add(call hook.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, fmt.Sprintf("%s attempt %d", call.Message.ID, call.Attempt))
}

func (c *callLog) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// repeatable allows the hook to run again after a crash, like a webhook.
func repeatable(cfg *node.Config) { cfg.Routes[0].Repeatable = true }

// transcript checks the chain of a conversation and returns its messages as "in action" or "out action".
func transcript(t *testing.T, m *meshtest.Member, key store.ConvKey) (turns []string) {
	t.Helper()
	book := conversations.Book{Steps: m.Store.Steps()}
	if err := book.Check(t.Context(), key, time.Now()); err != nil {
		t.Errorf("chain of %s: %v", key.ID, err)
	}
	entries, err := book.Transcript(t.Context(), key, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		v, err := wire.ParseObject(e.Raw)
		if err != nil {
			t.Fatal(err)
		}
		payload, _ := v.Get("payload")
		direction := "in "
		if e.Out {
			direction = "out "
		}
		turns = append(turns, direction+payload.GetStr("action"))
	}
	return turns
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s = %q, want %q", what, got, want)
	}
}

// TestRepeatableHookRunsAgain (AM-75): after a crash a repeatable hook runs again under the same message id. The reply
// is sent and stored only once.
func TestRepeatableHookRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		d := in("conv_one", chris.Draft("", wire.Deliver, hello))
		killed := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte { d.To = to; return chris.Sign(d) }))
		if item := theItem(t, killed); item.State != owner.ItemRunning || item.Attempt != 1 {
			t.Fatalf("item = %+v", item)
		}
		var seen callLog
		again := mesh.Restart(killed, configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			seen.add(c)
			if c.Message.Payload.GetStr("action") != "deliver" {
				t.Error("the hook did not get the message")
			}
			return says(t, `{"action":"deliver","message":{"body":"done"}}`), nil
		}, repeatable))
		again.Start()
		synctest.Wait()
		equal(t, "calls", seen.all(), []string{string(d.ID) + " attempt 2"})
		if item := theItem(t, again); item.State != owner.ItemAnswered {
			t.Errorf("item = %+v", item)
		}
		key := store.ConvKey{Peer: string(chris.ID), ID: "conv_one"}
		equal(t, "transcript", transcript(t, again, key), []string{"in deliver", "out pending_approval", "out deliver"})
		final := again.Post(chris.Sign(d))
		must(t, final, http.StatusOK)
		if got := final.Message(t, again); got.Action() != "deliver" || got.Meta("in_reply_to") != string(d.ID) {
			t.Errorf("repeat = %s", final.Body)
		}
		once := mesh.Restart(again, configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			seen.add(c)
			return hook.Answer{}, nil
		}, repeatable))
		once.Start()
		synctest.Wait()
		if len(seen.all()) != 1 || len(transcript(t, once, key)) != 3 {
			t.Errorf("another restart ran it again: %q", seen.all())
		}
	})
}

// TestOtherHookAsksTheOwner (AM-75): the owner decides if a hook that is not repeatable runs again. After a rejection
// the message waits in the inbox, and the sender's repeat gets the owner's answer (AM-22).
func TestOtherHookAsksTheOwner(t *testing.T) {
	for _, choice := range []acl.Choice{acl.Approve, acl.Reject} {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris := mesh.Stranger("chris")
			d := in("conv_one", chris.Draft("", wire.Deliver, hello))
			killed := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte { d.To = to; return chris.Sign(d) }))
			var seen callLog
			again := mesh.Restart(killed, configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
				seen.add(c)
				return says(t, `{"action":"deliver","message":{"body":"done"}}`), nil
			}))
			again.Start()
			synctest.Wait()
			ask := theAsk(t, again)
			if item := theItem(t, again); item.State != owner.ItemInterrupted || item.Ask != ask.ID || len(seen.all()) != 0 {
				t.Fatalf("item = %+v, calls = %q", item, seen.all())
			}
			if later := acl.NewAskID(time.Now().Add(time.Millisecond)); later < ask.ID {
				t.Errorf("a later question %s is listed before %s", later, ask.ID)
			}
			pendingAnswer := again.Post(chris.Sign(d))
			must(t, pendingAnswer, http.StatusAccepted)
			decide(t, again, ask, choice)
			synctest.Wait()
			if choice == acl.Approve {
				equal(t, "calls", seen.all(), []string{string(d.ID) + " attempt 2"})
			} else {
				if item := theItem(t, again); item.State != owner.ItemNew || len(seen.all()) != 0 {
					t.Fatalf("item = %+v, calls = %q", item, seen.all())
				}
				status := again.Call("POST", "/reply", map[string]any{
					"conversation": "conv_one", "payload": json.RawMessage(`{"action":"deliver","message":{"body":"by hand"}}`),
				}, nil)
				if status != http.StatusOK {
					t.Fatalf("reply = %d", status)
				}
			}
			if item := theItem(t, again); item.State != owner.ItemAnswered {
				t.Errorf("item = %+v", item)
			}
			final := again.Post(chris.Sign(d))
			must(t, final, http.StatusOK)
			if got := final.Message(t, again); got.Action() != "deliver" || bytes.Equal(final.Body, pendingAnswer.Body) {
				t.Errorf("repeat = %s", final.Body)
			}
			equal(t, "transcript", transcript(t, again, store.ConvKey{Peer: string(chris.ID), ID: "conv_one"}),
				[]string{"in deliver", "out pending_approval", "out deliver"})
		})
	}
}

// TestStopWhileAHookWorks: when the node stops, the sender gets its 202 at once, and the next start runs the hook
// again.
func TestStopWhileAHookWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		var seen callLog
		first := true
		h := func(ctx context.Context, c hook.Call) (hook.Answer, error) {
			seen.add(c)
			if first {
				first = false
				<-ctx.Done()
				return hook.Answer{}, ctx.Err()
			}
			return says(t, `{"action":"deliver","message":{"body":"done"}}`), nil
		}
		sarah := mesh.Node("sarah", configureHook(h, repeatable))
		sarah.Start()
		d := in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello))
		answered := make(chan meshtest.Answer, 1)
		go func() { answered <- sarah.Post(chris.Sign(d)) }()
		synctest.Wait()
		sarah.Stop()
		a := <-answered
		must(t, a, http.StatusAccepted)
		if got := a.Message(t, sarah); got.Action() != wire.ActionPending {
			t.Errorf("answer = %s", a.Body)
		}
		if item := theItem(t, sarah); item.State != owner.ItemRunning {
			t.Errorf("item = %+v, want it to be recovered", item)
		}
		again := mesh.Restart(sarah, configureHook(h, repeatable))
		again.Start()
		synctest.Wait()
		equal(t, "calls", seen.all(), []string{string(d.ID) + " attempt 1", string(d.ID) + " attempt 2"})
		equal(t, "transcript", transcript(t, again, store.ConvKey{Peer: string(chris.ID), ID: "conv_one"}),
			[]string{"in deliver", "out pending_approval", "out deliver"})
	})
}

// TestStartTakesUpOnlyTheOld: a message received before [node.Node.Run] does not count as left by a crash.
func TestStartTakesUpOnlyTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		release := make(chan struct{})
		var seen callLog
		sarah := mesh.Node("sarah", configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			seen.add(c)
			<-release
			return hook.Answer{}, nil
		}, repeatable))
		d := chris.Draft(sarah.ID(), wire.Deliver, hello)
		answered := make(chan meshtest.Answer, 1)
		go func() { answered <- sarah.Post(chris.Sign(d)) }()
		synctest.Wait()
		sarah.Start()
		synctest.Wait()
		close(release)
		must(t, <-answered, http.StatusOK)
		equal(t, "calls", seen.all(), []string{string(d.ID) + " attempt 1"})
	})
}

// TestRecoverWhatWasDeleted: an item whose conversation the owner deleted does not prevent the node from starting.
func TestRecoverWhatWasDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		killed := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte {
			return chris.Sign(in("conv_one", chris.Draft(to, wire.Deliver, hello)))
		}))
		key := store.ConvKey{Peer: string(chris.ID), ID: "conv_one"}
		if err := killed.Store.Steps().Forget(t.Context(), key, store.Any, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		again := mesh.Restart(killed, configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			return hook.Answer{}, nil
		}, repeatable))
		again.Start()
		synctest.Wait()
		if got, want := state(t, again), "1 items, 0 conversations, 0 asks"; got != want {
			t.Errorf("state = %s, want %s", got, want)
		}
		if item := theItem(t, again); item.State != owner.ItemFailed {
			t.Errorf("item = %+v", item)
		}
	})
}

// TestRecoverFromBlockedSender: a hook that a crash interrupted does not run again for a sender that the owner has
// blocked since (AM-25).
func TestRecoverFromBlockedSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		killed := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte {
			return chris.Sign(chris.Draft(to, wire.Deliver, hello))
		}))
		if err := acl.NewRules(killed.Store.Records(), acl.Policy{}).Set(t.Context(), string(chris.ID), acl.Blocked, time.Now()); err != nil {
			t.Fatal(err)
		}
		var seen callLog
		again := mesh.Restart(killed, configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			seen.add(c)
			return hook.Answer{}, nil
		}, repeatable))
		again.Start()
		synctest.Wait()
		if item := theItem(t, again); item.State != owner.ItemFailed || len(seen.all()) > 0 {
			t.Errorf("item = %+v, calls %v", item, seen.all())
		}
	})
}

// TestCloseWithdrawsWhatWasInterrupted: when the conversation ends, the question about an interrupted hook is withdrawn
// (AM-36).
func TestCloseWithdrawsWhatWasInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		killed := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte {
			return chris.Sign(in("conv_one", chris.Draft(to, wire.Deliver, hello)))
		}))
		again := mesh.Restart(killed, configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			return hook.Answer{}, nil
		}))
		again.Start()
		synctest.Wait()
		theAsk(t, again)
		must(t, again.Post(chris.Sign(in("conv_one", chris.Draft(again.ID(), wire.Deliver, closing)))), http.StatusOK)
		if item := theItem(t, again); item.State != owner.ItemWithdrawn || len(pendingAsks(t, again)) != 0 {
			t.Errorf("item = %+v, %d asks are pending", item, len(pendingAsks(t, again)))
		}
	})
}
