package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// TestRepeatedSend: a call that is repeated with its idempotency key sends one message, also if the first one waits for
// the owner and if both come at once. The key of another message is refused.
func TestRepeatedSend(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", open)
	sarah := mesh.Node("sarah", func(c *node.Config) { c.Outbound.Mode = acl.Open })
	body := func(key, text string) map[string]any {
		return map[string]any{
			"to": chris.ID(), "intent": "mesh.message", "idempotency_key": key, "wait_seconds": 5,
			"payload": json.RawMessage(`{"action":"deliver","message":{"body":"` + text + `"}}`),
		}
	}
	var first, again owner.Sent
	if status := sarah.CallAgent("POST", "/send", body("k1", "one"), &first); status != http.StatusOK {
		t.Fatalf("send: %d", status)
	}
	if status := sarah.CallAgent("POST", "/send", body("k1", "one"), &again); status != http.StatusOK || again.MessageID != first.MessageID || again.Conversation != first.Conversation {
		t.Errorf("repetition: %d %+v, want %+v", status, again, first)
	}
	if status := sarah.CallAgent("POST", "/send", body("k1", "two"), nil); status != http.StatusConflict {
		t.Errorf("another message with the key: %d, want 409", status)
	}
	var group sync.WaitGroup
	ids := make([]owner.Sent, 8)
	for i := range ids {
		group.Go(func() { sarah.CallAgent("POST", "/send", body("k2", "at once"), &ids[i]) })
	}
	group.Wait()
	for _, sent := range ids {
		if sent.MessageID != ids[0].MessageID || sent.MessageID == "" {
			t.Errorf("at once: %+v and %+v", sent, ids[0])
		}
	}
	var inbox owner.List[owner.Item]
	chris.Call("GET", "/inbox", nil, &inbox)
	if len(inbox.Items) != 2 {
		t.Errorf("chris got %d messages, want 2", len(inbox.Items))
	}
}

// TestRepeatedSendToday: the repetition of a call tells what became of its message: delivered, with the answer of the
// peer, or refused by the owner.
func TestRepeatedSendToday(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", open)
	for name, tt := range map[string]struct {
		mode   acl.Mode
		choice acl.Choice
		want   owner.SendState
	}{
		"delivered": {acl.Open, "", owner.SendDelivered}, "approved": {acl.Approval, acl.Approve, owner.SendDelivered},
		"rejected": {acl.Approval, acl.Reject, owner.SendFailed},
	} {
		sarah := mesh.Node("sarah-"+name, func(c *node.Config) { c.Outbound.Mode = tt.mode })
		body := map[string]any{
			"to": chris.ID(), "intent": "mesh.message", "idempotency_key": "k", "wait_seconds": 0, "payload": json.RawMessage(hello),
		}
		var first, again owner.Sent
		sarah.CallAgent("POST", "/send", body, &first)
		if tt.choice != "" {
			ask := theAsk(t, sarah)
			sarah.Call("POST", "/approvals/"+ask.ID, owner.Decision{Choice: tt.choice, Hash: ask.Hash}, nil)
		}
		for until := time.Now().Add(10 * time.Second); again.State != tt.want && time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			sarah.CallAgent("POST", "/send", body, &again)
		}
		if again.State != tt.want || tt.want == owner.SendDelivered && again.ReplyTree.GetStr("message_id") == "" {
			t.Errorf("%s: first %+v, then %+v", name, first, again)
		}
	}
}

// TestManyKeys: 10,000 keys of earlier hours leave room for new ones.
func TestManyKeys(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", open)
	sarah := mesh.Node("sarah", func(c *node.Config) { c.Outbound.Mode = acl.Open })
	for n := range 20 {
		changes := make([]store.Change, 500)
		for i := range changes {
			changes[i].Record = store.Record{NS: "repeats", Key: fmt.Sprint(n, "/", i), Terms: []string{"earlier"}, Expires: time.Now().Add(time.Hour)}
		}
		if err := sarah.Store.Records().Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	status := sarah.CallAgent("POST", "/send", map[string]any{
		"to": chris.ID(), "intent": "mesh.message", "idempotency_key": "k", "wait_seconds": 5, "payload": json.RawMessage(hello),
	}, nil)
	if status != http.StatusOK {
		t.Errorf("after 10,000 keys of earlier hours: %d, want 200", status)
	}
}

// TestRepeatedHeldSend: the repetition of a message that waits for the owner asks nothing a second time.
func TestRepeatedHeldSend(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", open)
	sarah := mesh.Node("sarah", func(c *node.Config) { c.Outbound.Mode = acl.Approval })
	body := map[string]any{
		"to": chris.ID(), "intent": "mesh.message", "idempotency_key": "k", "wait_seconds": 0, "payload": json.RawMessage(hello),
	}
	var first, again owner.Sent
	sarah.CallAgent("POST", "/send", body, &first)
	sarah.CallAgent("POST", "/send", body, &again)
	if first.State != owner.SendHeld || again.State != owner.SendHeld || again.Ask != first.Ask || again.Conversation != first.Conversation {
		t.Errorf("repetition: %+v, want %+v", again, first)
	}
	theAsk(t, sarah)
}
