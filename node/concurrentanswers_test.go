package node_test

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestTwoReadersOneAnswer: if many agents read one inbox and answer the same item, exactly one succeeds. The others
// get an error, and their answers are not sent. The same holds if the owner must approve the answers.
func TestTwoReadersOneAnswer(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", unlimited)
	read := func() node.Item {
		t.Helper()
		must(t, sarah.Post(ann.Sign(ann.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 1)
		if err != nil || len(items) != 1 {
			t.Fatalf("inbox = %v, %v", items, err)
		}
		return items[0]
	}
	item := read()
	reply := func(id string) meshtest.Answer {
		body, _ := json.Marshal(map[string]any{"item": id, "payload": json.RawMessage(hello)})
		return sarah.Ask("POST", "/reply", body)
	}
	var readers sync.WaitGroup
	var answered, told atomic.Int32
	for range 16 {
		readers.Go(func() {
			switch a := reply(item.ID); a.Status {
			case http.StatusOK:
				answered.Add(1)
			case http.StatusConflict:
				told.Add(1)
			default:
				t.Errorf("reply = %d %s", a.Status, a.Body)
			}
		})
	}
	readers.Wait()
	if answered.Load() != 1 || told.Load() != 15 {
		t.Errorf("%d readers answered and %d were refused; want 1 and 15", answered.Load(), told.Load())
	}
	if n := entries(t, sarah, string(item.Conversation)); n["out"] != 2 { // the answer on the connection, and ours
		t.Errorf("%d messages of ours, want 2", n["out"])
	}
	if got, err := sarah.Item(t.Context(), item.ID); err != nil || got.State != owner.ItemAnswered {
		t.Errorf("item is %s, %v", got.State, err)
	}
	if a := reply("in_nothing"); a.Status != http.StatusNotFound {
		t.Errorf("reply to a missing item = %d %s", a.Status, a.Body)
	}

	// If answers wait for the owner, two agents may answer the same item. The second approval finds it answered
	// already.
	sarah = mesh.Restart(sarah, func(cfg *node.Config) {
		unlimited(cfg)
		cfg.Outbound.Approve = []string{"mesh.*"}
	})
	item = read()
	for range 2 {
		must(t, reply(item.ID), http.StatusOK)
	}
	asks := pendingAsks(t, sarah)
	if len(asks) != 2 {
		t.Fatalf("%d questions to the owner, want 2", len(asks))
	}
	decide(t, sarah, asks[0], acl.Approve)
	body, _ := json.Marshal(map[string]any{"hash": asks[1].Hash, "choice": acl.Approve})
	if a := sarah.Ask("POST", "/approvals/"+asks[1].ID, body); a.Status != http.StatusConflict {
		t.Errorf("second approval = %d %s", a.Status, a.Body)
	}
}
