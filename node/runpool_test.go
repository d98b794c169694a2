package node_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestStrangersLeaveAHook: even if strangers' messages keep hooks busy for as long as possible, a message of a known
// peer is answered while theirs wait.
func TestStrangersLeaveAHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, ann := mesh.Stranger("chris"), mesh.Stranger("ann")
		var mu sync.Mutex
		atWork, most := 0, 0
		sarah := mesh.Node("sarah", configureHook(func(ctx context.Context, c hook.Call) (hook.Answer, error) {
			if c.Sender.AgentID == chris.ID {
				mu.Lock()
				atWork++
				most = max(most, atWork)
				mu.Unlock()
				time.Sleep(4 * time.Minute)
				mu.Lock()
				atWork--
				mu.Unlock()
			}
			return says(t, `{"action":"confirmed"}`), nil
		}, unlimited, func(cfg *node.Config) { cfg.Policy.Allow = []string{string(ann.ID)} }))
		sarah.Start()
		for range 20 {
			must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		}
		if a := sarah.Post(ann.Sign(ann.Draft(sarah.ID(), wire.Deliver, hello))); a.Status != http.StatusOK {
			t.Errorf("message of a known peer: %d %s", a.Status, a.Body)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if most != 3 || atWork != 0 {
			t.Errorf("strangers had %d hooks at once, want 3, and %d are still running", most, atWork)
		}
	})
}
