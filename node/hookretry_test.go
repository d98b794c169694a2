package node_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// gateway is a hook that can be switched off. If it never answers at once, later is true.
type gateway struct {
	later bool
	off   atomic.Bool
	calls atomic.Int32
	trust atomic.Value
	slow  time.Duration
}

func (g *gateway) IsAsync() bool { return g.later }

func (g *gateway) Handle(_ context.Context, c hook.Call) (hook.Answer, error) {
	g.calls.Add(1)
	g.trust.Store(c.Sender.Trust)
	time.Sleep(g.slow)
	if g.off.Load() {
		return hook.Answer{}, &hook.Error{Fault: hook.Unreachable, Route: "gateway"}
	}
	v, err := wire.Parse([]byte(`{"action":"confirmed"}`))
	return hook.Answer{Payload: &v, Async: g.later}, err
}

func (g *gateway) configure(cfg *node.Config) {
	configureHook(nil)(cfg)
	cfg.Routes[0].Handler = g
}

func reasonOf(t *testing.T, a meshtest.Answer, from *meshtest.Member) string {
	t.Helper()
	return a.Message(t, from).Payload.GetStr("reason")
}

func overview(t *testing.T, m *meshtest.Member) owner.Status {
	t.Helper()
	s, err := m.OwnerAPI().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHookFailureIsVisible: the owner sees how a program failed, and its sender is not told that the agent works.
func TestHookFailureIsVisible(t *testing.T) {
	for name, late := range map[string]bool{"in time": false, "late": true} {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
				if late {
					time.Sleep(time.Minute)
				}
				return hook.Answer{}, &hook.Error{Fault: hook.Crashed, Exit: 3, Stderr: "no such calendar"}
			}))
			sarah.Start()
			body := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
			a := sarah.Post(body)
			must(t, a, http.StatusAccepted)
			goldentest.Says(t, name, reasonOf(t, a, sarah))
			time.Sleep(2 * time.Minute)
			again := sarah.Post(body)
			must(t, again, http.StatusAccepted)
			goldentest.Says(t, name+", a repeat", reasonOf(t, again, sarah))
			item := theItem(t, sarah)
			if f := item.Failure; item.State != owner.ItemFailed || f == nil || f.Exit != 3 || f.Stderr != "no such calendar" || f.Fault != "crashed" || f.Times != 1 {
				t.Errorf("%s: item = %+v, failure %+v", name, item, f)
			}
			if s := overview(t, sarah); len(s.Hooks) != 1 || s.Hooks[0].Failures != 1 || s.Hooks[0].Runs != 1 || s.Hooks[0].Fault != "crashed" || s.Hooks[0].LastFailure.IsZero() {
				t.Errorf("%s: status = %+v", name, s.Hooks)
			}
			if text := string(a.Body) + string(again.Body); strings.Contains(text, "calendar") {
				t.Errorf("%s: the sender sees the standard error: %s", name, text)
			}
		})
	}
}

// TestUnreachableHook: a message whose hook is down for ten minutes waits, is visible, survives a restart, and is
// answered when the hook is back. The sender is not told that an agent works on it.
func TestUnreachableHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		g := &gateway{}
		g.off.Store(true)
		first := mesh.Node("sarah", g.configure)
		first.Start()
		body := chris.Sign(chris.Draft(first.ID(), wire.Deliver, hello))
		a := first.Post(body)
		must(t, a, http.StatusAccepted)
		if got := reasonOf(t, a, first); strings.Contains(got, "working") || strings.Contains(got, "could not") {
			t.Errorf("the sender got %q", got)
		}
		item := theItem(t, first)
		if item.State != owner.ItemWaiting || item.Failure == nil || item.Failure.Fault != "unreachable" || item.RetryAt.IsZero() {
			t.Fatalf("item = %+v, failure %+v", item, item.Failure)
		}
		if s := overview(t, first); s.Waiting != 1 {
			t.Errorf("status shows %d waiting messages", s.Waiting)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := g.calls.Load(); n != 3 {
			t.Errorf("%d attempts in the first minute, want 3", n)
		}
		first.Stop()
		sarah := mesh.Copy(first, g.configure)
		sarah.Start()
		time.Sleep(9 * time.Minute)
		g.off.Store(false)
		time.Sleep(30 * time.Minute) // the longest pause before the next attempt is shorter
		synctest.Wait()
		if item := theItem(t, sarah); item.State != owner.ItemAnswered || item.Failure != nil {
			t.Errorf("item = %s, failure %+v, after %d attempts", item.State, item.Failure, g.calls.Load())
		}
		again := sarah.Post(body)
		must(t, again, http.StatusOK)
		if got := again.Message(t, sarah).Action(); got != "confirmed" {
			t.Errorf("a repeat got the action %q", got)
		}
	})
}

// TestHookStaysUnreachable: after a day the message is left to the owner.
func TestHookStaysUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		g := &gateway{}
		g.off.Store(true)
		sarah := mesh.Node("sarah", g.configure)
		sarah.Start()
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		time.Sleep(hook.RetryFor - 20*time.Minute)
		synctest.Wait()
		if item := theItem(t, sarah); item.State != owner.ItemWaiting {
			t.Fatalf("item = %+v", item)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		tries := g.calls.Load()
		if item := theItem(t, sarah); item.State != owner.ItemFailed || tries > 200 {
			t.Errorf("item = %+v after %d attempts", item, tries)
		}
		time.Sleep(24 * time.Hour)
		if g.calls.Load() != tries {
			t.Error("the node still tries")
		}
	})
}

// TestRetryItem: the owner can run the hook of a waiting message at once, and of no answered one.
func TestRetryItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		g := &gateway{}
		g.off.Store(true)
		sarah := mesh.Node("sarah", g.configure)
		sarah.Start()
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		g.off.Store(false)
		id := theItem(t, sarah).ID
		began := time.Now()
		if got, err := sarah.OwnerAPI().RetryItem(t.Context(), id); err != nil || got.State != owner.ItemRunning && got.State != owner.ItemAnswered {
			t.Fatalf("RetryItem = %+v, %v", got, err)
		}
		synctest.Wait()
		if item := theItem(t, sarah); item.State != owner.ItemAnswered || time.Since(began) != 0 {
			t.Errorf("item = %+v", item)
		}
		_, err := sarah.OwnerAPI().RetryItem(t.Context(), id)
		if refused, ok := errors.AsType[*wire.Error](err); !ok || refused.Status != http.StatusConflict {
			t.Errorf("RetryItem of an answered message: %v, want a conflict", err)
		}
	})
}

// TestAsyncHook: the sender of a message for a hook that never answers at once does not wait for it.
func TestAsyncHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		g := &gateway{later: true, slow: time.Second}
		sarah := mesh.Node("sarah", g.configure)
		sarah.Start()
		began := time.Now()
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		if took := time.Since(began); took != 0 {
			t.Errorf("the sender waited %v", took)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		item := theItem(t, sarah)
		if item.State != owner.ItemNew || item.Woken.IsZero() || !item.Pending {
			t.Errorf("item = %+v", item)
		}
		if turns := transcript(t, sarah, store.ConvKey{Peer: string(item.Peer), ID: string(item.Conversation)}); len(turns) != 2 {
			t.Errorf("transcript = %q, want the message and the answer that the sender got", turns)
		}
	})
}

// TestTrustIsThatOfNow: a hook that runs after the owner approved the sender learns that.
func TestTrustIsThatOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		g := &gateway{}
		sarah := mesh.Node("sarah", func(cfg *node.Config) {
			g.configure(cfg)
			cfg.Policy.Mode = acl.Approval
		})
		sarah.Start()
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := g.trust.Load(); got != string(acl.Approved) {
			t.Errorf("trust = %v, want approved", got)
		}
	})
}
