package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
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

// stateOf returns the state of a conversation of the member.
func stateOf(t *testing.T, m *meshtest.Member, peer wire.AgentID, id string) conversations.State {
	t.Helper()
	row, err := m.Store.Steps().Conversation(t.Context(), store.ConvKey{Peer: string(peer), ID: id}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	conv, err := conversations.Decode(row)
	if err != nil {
		t.Fatal(err)
	}
	return conv.State
}

// awaitFailed waits until the given number of the member's messages have failed, and returns their outbox entries.
func awaitFailed(t *testing.T, m *meshtest.Member, want int) []node.OutboxEntry {
	t.Helper()
	var entries []node.OutboxEntry
	waitFor(t, fmt.Sprint(want, " messages have failed"), func() (done bool) {
		var err error
		entries, _, err = m.Outbox(t.Context(), owner.SendFailed, "", 10)
		return err == nil && len(entries) == want
	})
	return entries
}

// TestFetchableAnswer: if an answer cannot be delivered, but its receiver can fetch it by repeating its message, the
// conversation does not fail, and later messages in it still leave (AM-22).
func TestFetchableAnswer(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris") // its endpoint does not answer
	sarah := mesh.Node("sarah", mode(acl.Approval))
	raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	receipt := awaitFailed(t, sarah, 1)[0]
	if got := stateOf(t, sarah, chris.ID, "conv_one"); got != conversations.Open || receipt.Action != wire.ActionReceived {
		t.Fatalf("after %q could not be delivered the conversation is %s, want open", receipt.Action, got)
	}
	if told := noticesOf(t, sarah, "undelivered"); len(told) != 0 {
		t.Errorf("the owner got a notice about a receipt: %v", told)
	}

	body := map[string]any{"conversation": "conv_one", "payload": json.RawMessage(`{"action":"deliver","message":{"body":"hello back"}}`)}
	if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusOK {
		t.Fatalf("reply: %d", status)
	}
	if m := meshtest.Post(t, sarah.URL, raw).Message(t, sarah); m.Action() != "deliver" || m.Meta("in_reply_to") == "" {
		t.Errorf("a repeat gets %s", m.Payload.JSON())
	}
	answer := awaitFailed(t, sarah, 2)[1]
	if got := stateOf(t, sarah, chris.ID, "conv_one"); got != conversations.Open || answer.Hint == "" {
		t.Errorf("after the answer could not be delivered the conversation is %s, want open; hint %q", got, answer.Hint)
	}
	if told := noticesOf(t, sarah, "undelivered"); len(told) != 1 {
		t.Errorf("notices of undelivered messages: %q, want one, of the answer", told)
	}

	// A message that answers nothing cannot be fetched: if it cannot be delivered, the conversation fails (AM-47).
	body["payload"] = json.RawMessage(`{"action":"deliver","message":{"body":"one thing more"}}`)
	if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusOK {
		t.Fatalf("a further message: %d", status)
	}
	awaitFailed(t, sarah, 3)
	if got := stateOf(t, sarah, chris.ID, "conv_one"); got != conversations.Failed {
		t.Errorf("after a message of our own could not be delivered the conversation is %s, want failed", got)
	}
}

// TestFetchableAnswerToMail: an answer to a message that came through the mailbox can be fetched too. Its sender got no
// provisional answer on a connection, but a repeat gets one until the owner has answered (AM-22).
func TestFetchableAnswerToMail(t *testing.T) {
	for name, answer := range map[string]struct {
		hook hook.Answer
		err  error
		held bool // the hook's answer waits for the owner
	}{
		"asynchronous": {hook: hook.Answer{Async: true}}, "failed": {err: errors.New("broken")}, "held": {hook: says(t, hello), held: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mesh := meshtest.New(t)
			chris := mesh.Stranger("chris") // its endpoint does not answer
			configure := configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
				return answer.hook, answer.err
			}, func(cfg *node.Config) {
				cfg.Relay = mesh.Directory()
				cfg.Identity.Card = meshtest.Card(t, "sarah", mesh.URL+"/mailbox/"+string(meshtest.Key("sarah").Public().AgentID()))
				if answer.held {
					cfg.Outbound.Approve = []string{"mesh.message"}
				}
			})
			sarah := mesh.Node("sarah", configure)
			sarah.Stop()
			raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))
			must(t, meshtest.Post(t, mesh.URL+"/mailbox/"+string(sarah.ID()), raw), http.StatusAccepted)

			sarah = mesh.Restart(sarah, configure)
			waitFor(t, "the hook has run", func() bool {
				items, _, err := sarah.Inbox(t.Context(), "", "", 10)
				return err == nil && len(items) == 1 && items[0].State != owner.ItemRunning
			})
			must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
			if answer.held {
				decide(t, sarah, theAsk(t, sarah), acl.Approve)
			} else {
				body := map[string]any{"conversation": "conv_one", "payload": json.RawMessage(hello)}
				if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusOK {
					t.Fatalf("reply: %d", status)
				}
			}
			must(t, meshtest.Post(t, sarah.URL, raw), http.StatusOK)
			awaitFailed(t, sarah, 1)
			if got := stateOf(t, sarah, chris.ID, "conv_one"); got != conversations.Open {
				t.Errorf("after the answer could not be delivered the conversation is %s, want open", got)
			}
		})
	}
}
