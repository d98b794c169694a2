package node_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
)

// chatters makes two nodes whose hooks answer everything, with these bounds for sarah. It returns how often sarah's hook
// ran.
func chatters(t *testing.T, pause time.Duration, bounds rules.Autonomy) (sarah, chris *meshtest.Member, runs *atomic.Int32) {
	mesh := meshtest.New(t)
	runs = new(atomic.Int32)
	talks := func(n *atomic.Int32) func(*node.Config) {
		return func(cfg *node.Config) {
			open(cfg)
			cfg.SyncDeadline = 2 * time.Second
			cfg.Routes = []node.Route{{Pattern: "*", Name: "talks", Replies: true, Handler: handler(func(ctx context.Context, _ hook.Call) (hook.Answer, error) {
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
				return hook.Answer{Payload: new(parsePayload(t, fmt.Sprintf(`{"action":"deliver","message":{"body":"and %d?"}}`, n.Add(1))))}, nil
			})}}
		}
	}
	sarah = mesh.Node("sarah", func(cfg *node.Config) {
		talks(runs)(cfg)
		cfg.Autonomy = &bounds
	})
	chris = mesh.Node("chris", talks(new(atomic.Int32)))
	return sarah, chris, runs
}

// held returns the pending questions.
func held(t *testing.T, m *meshtest.Member) []acl.Ask {
	t.Helper()
	asks, _, err := m.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 100, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return asks
}

// wide has bounds that no test reaches.
var wide = rules.Autonomy{Conversation: 100, Door: 100, Peer: 100, Strangers: 100, Token: 100, Total: 100}

// stopAtBound lets two agents answer every answer. They stop after most runs of sarah's hook, with one question under
// rule. The owner then grants as many turns again, and then a day.
func stopAtBound(t *testing.T, pause time.Duration, bounds rules.Autonomy, most int32, rule string) {
	sarah, chris, runs := chatters(t, pause, bounds)
	mustSend(t, chris.Node, outgoing(t, sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"hello"}}`), 5*time.Second)
	awaitTrue(t, func() bool { return len(held(t, sarah)) == 1 })
	time.Sleep(100 * time.Millisecond)
	asks := held(t, sarah)
	if len(asks) != 1 || asks[0].Rule != rule || runs.Load() != most {
		t.Fatalf("%d runs and questions %+v, want %d runs and one question of %s", runs.Load(), asks, most, rule)
	}
	if words := string(asks[0].Body); !strings.Contains(words, "your agent has answered") || strings.Contains(words, "{n}") {
		t.Errorf("words: %s", words)
	}
	answerAsk(t, sarah, asks[0], acl.Approve)
	if most == 0 { // the owner lets this one through, and is asked about the next
		awaitTrue(t, func() bool { return runs.Load() == 1 && len(held(t, sarah)) == 1 })
		return
	}
	awaitTrue(t, func() bool { return runs.Load() > most && len(held(t, sarah)) == 1 })
	if n := runs.Load(); n > 2*most {
		t.Errorf("%d runs after the owner granted %d more", n, most)
	}
	if again := held(t, sarah)[0]; again.Rule == rule { // not another bound
		answerAsk(t, sarah, again, acl.ApproveConversation)
		awaitTrue(t, func() bool { return runs.Load() > 3*most })
	}
}

// TestTurns (AM-92, AM-93): two agents that answer every answer stop at each bound.
func TestTurns(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*rules.Autonomy)
		most int32
		rule string
	}{
		{"conversation", func(a *rules.Autonomy) { a.Conversation = 3 }, 3, "autonomy.conversation"},
		{"peer", func(a *rules.Autonomy) { a.Peer = 3 }, 3, "autonomy.peer"},
		{"strangers", func(a *rules.Autonomy) { a.Strangers = 3 }, 2, "autonomy.source"},
		{"total", func(a *rules.Autonomy) { a.Total = 3 }, 3, "autonomy.total"},
		{"never alone", func(a *rules.Autonomy) { a.Conversation = 0 }, 0, "autonomy.conversation"},
		{"never with a peer", func(a *rules.Autonomy) { a.Peer = 0 }, 0, "autonomy.peer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bounds := wide
			tt.set(&bounds)
			stopAtBound(t, 0, bounds, tt.most, tt.rule)
		})
	}
}

// TestEndAtBound (AM-93): the owner ends it. The peer learns that, and the hook does not run again.
func TestEndAtBound(t *testing.T) {
	bounds := wide
	bounds.Conversation = 2
	sarah, chris, runs := chatters(t, 0, bounds)
	sent := mustSend(t, chris.Node, outgoing(t, sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"hello"}}`), 5*time.Second)
	awaitTrue(t, func() bool { return len(held(t, sarah)) == 1 })
	answerAsk(t, sarah, held(t, sarah)[0], acl.Reject)
	awaitTrue(t, func() bool { return showConversation(t, chris, sent.Conversation).State == conversations.Failed })
	if runs.Load() != 2 {
		t.Errorf("%d runs", runs.Load())
	}
}

// TestTurnsOfTheDoor (AM-92): what the agent writes by itself through its door are turns, too. Once it has none left, its
// message waits for the owner, whose approval counts as an act in the conversation.
func TestTurnsOfTheDoor(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	bounds := wide
	bounds.Door = 2
	sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Autonomy = &bounds })
	conv := wire.NewConversationID()
	send := func() owner.Sent {
		t.Helper()
		var sent owner.Sent
		status := sarah.CallAgent("POST", "/send", map[string]any{
			"to": ann.ID, "conversation": conv, "intent": "mesh.message", "payload": map[string]any{"action": "deliver", "message": map[string]string{"body": "hi"}},
		}, &sent)
		if status >= 300 {
			t.Fatal(status)
		}
		return sent
	}
	for i := range 2 {
		if sent := send(); sent.State == owner.SendHeld {
			t.Fatalf("message %d waits", i)
		}
	}
	if sent := send(); sent.State != owner.SendHeld {
		t.Fatalf("the third message is %s", sent.State)
	}
	asks := held(t, sarah)
	if len(asks) != 1 || asks[0].Rule != "autonomy.conversation" {
		t.Fatalf("questions: %+v", asks)
	}
	answerAsk(t, sarah, asks[0], acl.Approve)
	if sent := send(); sent.State == owner.SendHeld {
		t.Error("the owner's approval is no act in the conversation")
	}
}

func answerAsk(t *testing.T, m *meshtest.Member, ask acl.Ask, choice acl.Choice) {
	t.Helper()
	if _, err := m.Asks().Decide(t.Context(), ask.ID, ask.Hash, choice, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
}
