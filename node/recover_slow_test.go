//go:build slow

package node_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestMoreInterruptedThanRoom: a node starts even if a crash left more runs than the queue has room for, and does them
// all.
func TestMoreInterruptedThanRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		senders := []*meshtest.Stranger{mesh.Stranger("chris"), mesh.Stranger("tom")} // one gets at most half of the places
		const each = 130                                                              // twice that is more than the 256 that may run or wait
		many := func(to wire.AgentID) (bodies [][]byte) {
			for i := range each {
				from := senders[i%2]
				bodies = append(bodies, from.Sign(from.Draft(to, wire.Deliver, hello)))
			}
			return bodies
		}
		killed := killWhileRunning(t, mesh, nil, many)
		killed = killWhileRunning(t, mesh, killed, many)
		again := mesh.Restart(killed, configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			time.Sleep(time.Second)
			return hook.Answer{}, nil
		}, repeatable))
		again.Start()
		time.Sleep(5 * time.Minute)
		items, _, err := again.Inbox(t.Context(), owner.ItemAnswered, "", 1000)
		if err != nil || len(items) != 2*each {
			t.Errorf("%d items are answered, want %d (%v)", len(items), 2*each, err)
		}
	})
}
