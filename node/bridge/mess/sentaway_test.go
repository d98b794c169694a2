package mess

import (
	"testing"

	"github.com/agentmesh/agentmesh/acl"
)

// What was sent away and nobody there has claimed yet is taken back there too.
func TestCancelOfWhatWasSentAway(t *testing.T) {
	t.Run("through a link", func(t *testing.T) {
		a := newAbroad(t, nil)
		here, there := a.ask("{id: water, intent: water the roses}")
		a.home.do(ownerID, "- cancel: {re: "+here+", reason: it rains}")
		eventually(t, "the cancel over there", func() bool { return a.thread(there).Status == Cancelled })
	})
	t.Run("through the mesh", func(t *testing.T) {
		home, away := pair(t, acl.Open)
		ref := home.request("client", "{id: look, intent: look into the fridge}")
		there := away.theirs()
		home.do("client", "- cancel: {re: "+ref+"}")
		away.reaches(there, Cancelled)
	})
}

// What was sent away and somebody here has claimed meanwhile is taken back there: it is done once.
func TestClaimOfWhatWasSentAway(t *testing.T) {
	t.Run("through a link", func(t *testing.T) {
		a := newAbroad(t, nil)
		a.home.executor("eve")
		here, there := a.ask("{id: water, intent: water the roses}")
		a.home.status("eve", here, "claimed")
		eventually(t, "the end over there", func() bool { return a.thread(there).Status == Cancelled })
		a.home.status("eve", here, "completed")
		a.home.want(here, Completed)
	})
	t.Run("through the mesh", func(t *testing.T) {
		home, away := pair(t, acl.Open)
		ref := home.request("client", "{id: look, intent: look into the fridge}")
		there := away.theirs()
		home.do(ownerID, "- response: {re: "+ref+", content: [eggs]}")
		away.reaches(there, Cancelled)
		home.want(ref, Completed)
	})
}
