package node_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestRejectAllStrangers: the owner can empty a flooded list at once. Each sender stays rejected until the owner lifts
// that (AM-35). Questions about known senders and about messages of ours stay open.
func TestRejectAllStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		friend := mesh.Stranger("friend")
		sarah := mesh.Node("sarah", func(cfg *node.Config) {
			cfg.Policy = acl.Policy{Mode: acl.Approval, Allow: []string{string(friend.ID)}}
			cfg.Rates = acl.Rates{}
		})
		const many = 45
		var last *meshtest.Stranger
		for i := range many {
			last = mesh.Stranger(fmt.Sprintf("evil-%d", i))
			for range 1 + i%2 { // every other stranger sends two messages
				must(t, sarah.Post(last.Sign(last.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
				time.Sleep(time.Millisecond)
			}
			if i == many/2 {
				must(t, sarah.Post(friend.Sign(friend.Draft(sarah.ID(), wire.Negotiate, `{"action":"propose","terms":{"description":"tea"}}`))), http.StatusAccepted)
			}
		}
		reject := func() (n int) {
			t.Helper()
			var done struct{ Rejected int }
			if status := sarah.Call("POST", "/approvals/reject-strangers", map[string]string{"by": "cli"}, &done); status != http.StatusOK {
				t.Fatalf("reject: %d", status)
			}
			return done.Rejected
		}
		if n := reject(); n != many {
			t.Errorf("%d senders were rejected, want %d", n, many)
		}
		if asks := pendingAsks(t, sarah); len(asks) != 1 || asks[0].Subject != string(friend.ID) {
			t.Errorf("%d questions are open, want only the friend's", len(asks))
		}
		if items, _, err := sarah.Inbox(t.Context(), owner.ItemRejected, "", 1000); err != nil || len(items) != many+many/2 {
			t.Errorf("%d messages are rejected, %v, want %d", len(items), err, many+many/2)
		}
		if a := sarah.Post(last.Sign(last.Draft(sarah.ID(), wire.Deliver, hello))); a.Code() != wire.OwnerRejected {
			t.Errorf("a rejected sender again: %d %s", a.Status, a.Body)
		}
		if n := reject(); n != 0 {
			t.Errorf("%d senders were rejected a second time", n)
		}
	})
}
