package node_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// handler makes a function the agent behind a node.
type handler func(context.Context, hook.Call) (hook.Answer, error)

func (h handler) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) { return h(ctx, c) }

// configureHook configures a node that passes mesh.* messages to h.
func configureHook(h handler, more ...func(*node.Config)) func(*node.Config) {
	return func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Open
		cfg.Routes = []node.Route{{Pattern: "mesh.*", Name: "test", Handler: h}}
		cfg.SyncDeadline = 2 * time.Second
		for _, m := range more {
			m(cfg)
		}
	}
}

func says(t *testing.T, payload string) hook.Answer {
	t.Helper()
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return hook.Answer{Payload: &v}
}

func theItem(t *testing.T, m *meshtest.Member) node.Item {
	t.Helper()
	items, _, err := m.Inbox(t.Context(), "", "", 10)
	if err != nil || len(items) != 1 {
		t.Fatalf("inbox = %v, %v, want one item", items, err)
	}
	return items[0]
}

// TestHookAnswersInTime: the reply leaves on the connection, and a repeat gets the same bytes without a second run.
func TestHookAnswersInTime(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	calls := 0
	sarah := mesh.Node("sarah", configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
		calls++
		if c.Sender.AgentID != chris.ID || c.Sender.Verified != "signature" || c.Attempt != 1 || !c.ActionKnown {
			t.Errorf("call = %+v", c)
		}
		return says(t, `{"action":"counter","event":{"duration":"45m"}}`), nil
	}))
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Schedule, propose))
	a := meshtest.Post(t, sarah.URL, raw)
	must(t, a, http.StatusOK)
	if got := a.Message(t, sarah).Action(); got != "counter" {
		t.Errorf("action = %q", got)
	}
	if again := meshtest.Post(t, sarah.URL, raw); !bytes.Equal(again.Body, a.Body) || calls != 1 {
		t.Errorf("repeat = %s after %d calls, want the same answer after one", again.Body, calls)
	}
	if item := theItem(t, sarah); item.State != owner.ItemAnswered {
		t.Errorf("item = %+v", item)
	}
}

// TestHookThatFails: if a hook fails, the sender gets a pending_approval, and the message stays with the owner (AM-75).
func TestHookThatFails(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	for name, h := range map[string]handler{
		"fails": func(context.Context, hook.Call) (hook.Answer, error) {
			return hook.Answer{}, errors.New("rubbish")
		},
		"panics": func(context.Context, hook.Call) (hook.Answer, error) { panic("oops") },
	} {
		t.Run(name, func(t *testing.T) {
			sarah := mesh.Node("sarah-"+name, configureHook(h))
			a := meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
			must(t, a, http.StatusAccepted)
			if got := a.Message(t, sarah).Action(); got != wire.ActionPending {
				t.Errorf("action = %q", got)
			}
			if item := theItem(t, sarah); item.State != owner.ItemFailed || item.Note == "" {
				t.Errorf("item = %+v", item)
			}
		})
	}
}

// TestHookThatIsLate: the sender gets a 202 at the deadline. The reply follows through the outbox, exactly once, and is
// also the answer to a repeat (AM-22, AM-32).
func TestHookThatIsLate(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", open)
	release := make(chan struct{})
	sarah := mesh.Node("sarah", configureHook(func(ctx context.Context, c hook.Call) (hook.Answer, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return says(t, `{"action":"deliver","message":{"body":"at last"}}`), nil
	}, func(cfg *node.Config) { cfg.SyncDeadline = 50 * time.Millisecond }))
	var sent owner.Sent
	chris.Call("POST", "/send", map[string]any{
		"to": sarah.ID(), "intent": "mesh.message", "wait_seconds": 10,
		"payload": map[string]any{"action": "deliver", "message": map[string]string{"body": "hello"}},
	}, &sent)
	if sent.Status != http.StatusAccepted {
		t.Fatalf("sent = %+v, want a 202", sent)
	}
	close(release)
	items, _, err := chris.WaitInbox(t.Context(), owner.Query{State: string(owner.ItemNew), Limit: 10, Wait: 55 * time.Second})
	found := false
	for _, item := range items {
		found = found || bytes.Contains(item.Payload, []byte("at last"))
	}
	if err != nil || !found {
		t.Fatalf("chris's inbox = %+v, %v", items, err)
	}
	if item := theItem(t, sarah); item.State != owner.ItemAnswered {
		t.Errorf("item = %+v", item)
	}
}

// TestHookRefuses: a hook may refuse a message (AM-72), and a repeat gets the same refusal.
func TestHookRefuses(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		return hook.Answer{Err: wire.ErrOwnerRejected}, nil
	}))
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	a := meshtest.Post(t, sarah.URL, raw)
	if a.Code() != wire.OwnerRejected || a.Status != http.StatusForbidden {
		t.Errorf("answer = %d %s", a.Status, a.Body)
	}
	if again := meshtest.Post(t, sarah.URL, raw); !bytes.Equal(a.Body, again.Body) || a.Status != again.Status {
		t.Errorf("repeat = %d %s, want the same", again.Status, again.Body)
	}
}

func TestHookHolds(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	attempts := 0
	sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		if attempts++; attempts == 1 {
			return hook.Answer{Hold: "it wants money"}, nil
		}
		return says(t, `{"action":"deliver","message":{"body":"fine"}}`), nil
	}))
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	deadline := time.After(time.Minute)
	for theItem(t, sarah).State != owner.ItemAnswered {
		select {
		case <-deadline:
			t.Fatalf("item = %+v", theItem(t, sarah))
		case <-time.Tick(10 * time.Millisecond):
		}
	}
	if got := meshtest.Post(t, sarah.URL, raw).Message(t, sarah); got.Action() != "deliver" {
		t.Errorf("repeat = %s", got.Payload.JSON())
	}
}
