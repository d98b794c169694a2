package node_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// startTwoProcesses starts two processes of sarah in a bubble, the first of which has the duties of the node. If doomed
// is not nil, the second one ends, as by kill -9, after its first commit to the inbox while doomed is set, and unsets it.
func startTwoProcesses(t *testing.T, mesh *meshtest.Mesh, configure func(*node.Config), doomed *atomic.Bool) (holder, other *meshtest.Member) {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, LeaseTTL: processTTL})
	if err != nil {
		t.Fatal(err)
	}
	holder = mesh.Process("sarah", db.Handle("holder"), nil, configure)
	shaky := storetest.NewShaky(db.Handle("other"), 0)
	other = mesh.Process("sarah", shaky, holder, configure)
	ctx, stop := context.WithCancel(t.Context())
	otherCtx, stopOther := context.WithCancel(ctx)
	other.Store.(*store.Observed).OnCommit(func(changes []store.Change) {
		if doomed != nil && slices.ContainsFunc(changes, func(c store.Change) bool { return c.Record.NS == "inbox" }) && doomed.CompareAndSwap(true, false) {
			shaky.Kill()
			stopOther()
		}
	})
	var running sync.WaitGroup
	running.Go(func() { _ = holder.Run(ctx) })
	synctest.Wait()
	running.Go(func() { _ = other.Run(otherCtx) }) // a process that was killed cannot store its limits
	synctest.Wait()
	t.Cleanup(func() {
		stop()
		running.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return holder, other
}

// sayInTurn posts texts, each at another time, so that the inbox has them in this order.
func sayInTurn(s stranger, texts ...string) {
	for _, text := range texts {
		s.says(text)
		time.Sleep(time.Millisecond)
	}
}

// TestDecisionOfAKilledProcess: if the process at which the owner decided dies after the first message, the process
// with the duties carries out the decision about the others within a minute.
func TestDecisionOfAKilledProcess(t *testing.T) {
	for choice, state := range map[acl.Choice]owner.ItemState{acl.Approve: owner.ItemNew, acl.Reject: owner.ItemRejected} {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			var doomed atomic.Bool
			holder, other := startTwoProcesses(t, mesh, mode(acl.Approval), &doomed)
			sayInTurn(stranger{mesh.Stranger("chris"), t, holder}, "a1", "b1", "a2", "c1")
			ask := theAsk(t, other)
			doomed.Store(true)
			decide(t, other, ask, choice)
			if doomed.Load() { // the other process may have gone on at once
				t.Error("the process did not die after the first message")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			wantTexts(t, holder, state, "a1", "b1", "a2", "c1")
		})
	}
}

// TestHooksOfADecisionElsewhere (AM-33): the agent gets the messages that the owner approved together one after the
// other, whichever process the owner used.
func TestHooksOfADecisionElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []string
		note := func(event string, c hook.Call) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, event+" "+bodyOf(t, c.Payload))
		}
		mesh := meshtest.InMemory(t)
		holder, other := startTwoProcesses(t, mesh, configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			note("begin", c)
			time.Sleep(50 * time.Millisecond)
			note("end", c)
			return hook.Answer{}, nil
		}, mode(acl.Approval)), nil)
		sayInTurn(stranger{mesh.Stranger("chris"), t, holder}, "a1", "b1", "c1")
		decide(t, other, theAsk(t, other), acl.Approve)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := "[begin a1 end a1 begin b1 end b1 begin c1 end c1]"; fmt.Sprint(seen) != want {
			t.Errorf("hooks: %q, want %s", seen, want)
		}
	})
}
