package mess

import (
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestCancelOfASentThread: cancelling a thread that was sent away, and that nobody there has claimed, withdraws it
// there too.
func TestCancelOfASentThread(t *testing.T) {
	t.Run("through a link", func(t *testing.T) {
		a := newForeignLink(t, nil)
		here, there := a.ask("{id: water, intent: water the roses}")
		a.home.do(thread.OwnerID, "- cancel: {re: "+here+", reason: it rains}")
		eventually(t, "the cancel over there", func() bool { return a.thread(there).Status == thread.Cancelled })
	})
	t.Run("through the mesh", func(t *testing.T) {
		home, away := pair(t, acl.Open)
		ref := home.request("client", "{id: look, intent: look into the fridge}")
		there := away.waitMeshThread()
		home.do("client", "- cancel: {re: "+ref+"}")
		away.waitStatus(there, thread.Cancelled)
	})
}

// TestLocalClaimOfASentThread: if an executor here claims a thread that was sent away, it is withdrawn there, so that
// the work is done once.
func TestLocalClaimOfASentThread(t *testing.T) {
	t.Run("through a link", func(t *testing.T) {
		a := newForeignLink(t, nil)
		a.home.executor("eve")
		here, there := a.ask("{id: water, intent: water the roses}")
		a.home.status("eve", here, "claimed")
		eventually(t, "the end over there", func() bool { return a.thread(there).Status == thread.Cancelled })
		a.home.status("eve", here, "completed")
		a.home.want(here, thread.Completed)
	})
	t.Run("through the mesh", func(t *testing.T) {
		home, away := pair(t, acl.Open)
		ref := home.request("client", "{id: look, intent: look into the fridge}")
		there := away.waitMeshThread()
		home.do(thread.OwnerID, "- response: {re: "+ref+", content: [eggs]}")
		away.waitStatus(there, thread.Cancelled)
		home.want(ref, thread.Completed)
	})
}
