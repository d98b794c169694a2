package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// stateOf returns where a conversation of the member stands.
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

// failedLetters waits until as many messages of the member as wanted are given up.
func failedLetters(t *testing.T, m *meshtest.Member, want int) []node.Letter {
	t.Helper()
	var letters []node.Letter
	waitFor(t, fmt.Sprint(want, " messages are given up"), func() (done bool) {
		var err error
		letters, _, err = m.Outbox(t.Context(), node.SendFailed, "", 10)
		return err == nil && len(letters) == want
	})
	return letters
}

// TestFetchableAnswer: an answer that its receiver can fetch by repeating its message does not fail the conversation when
// it cannot be delivered, and what is said after it in the conversation still leaves (AM-22).
func TestFetchableAnswer(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris") // nobody answers at its endpoint
	sarah := mesh.Node("sarah", mode(acl.Approval))
	raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	receipt := failedLetters(t, sarah, 1)[0]
	if got := stateOf(t, sarah, chris.ID, "conv_one"); got != conversations.Open || receipt.Action != wire.ActionReceived {
		t.Fatalf("after %q could not be delivered the conversation is %s, want open", receipt.Action, got)
	}
	if told := noticesOf(t, sarah, "undelivered"); len(told) != 0 {
		t.Errorf("the owner is told of a receipt: %v", told)
	}

	body := map[string]any{"conversation": "conv_one", "payload": json.RawMessage(`{"action":"deliver","message":{"body":"hello back"}}`)}
	if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusOK {
		t.Fatalf("reply: %d", status)
	}
	if m := meshtest.Post(t, sarah.URL, raw).Message(t, sarah); m.Action() != "deliver" || m.Meta("in_reply_to") == "" {
		t.Errorf("a repeat gets %s", m.Payload.JSON())
	}
	answer := failedLetters(t, sarah, 2)[1]
	if got := stateOf(t, sarah, chris.ID, "conv_one"); got != conversations.Open || answer.Hint == "" {
		t.Errorf("after the answer could not be delivered the conversation is %s, want open; hint %q", got, answer.Hint)
	}
	if told := noticesOf(t, sarah, "undelivered"); len(told) != 1 {
		t.Errorf("notices of undelivered messages: %q, want one, of the answer", told)
	}

	// What answers nothing cannot be fetched: when it cannot be delivered, the conversation has failed (AM-47).
	body["payload"] = json.RawMessage(`{"action":"deliver","message":{"body":"one thing more"}}`)
	if status := sarah.Call("POST", "/reply", body, nil); status != http.StatusOK {
		t.Fatalf("a further message: %d", status)
	}
	failedLetters(t, sarah, 3)
	if got := stateOf(t, sarah, chris.ID, "conv_one"); got != conversations.Failed {
		t.Errorf("after a message of our own could not be delivered the conversation is %s, want failed", got)
	}
}
