package mess

import (
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestPeerHoldsAfterItsApproval: a peer whose owner let the request in and is now asked about the job holds the thread;
// the late ack of the request does not release it.
func TestPeerHoldsAfterItsApproval(t *testing.T) {
	home, away := pair(t, acl.Approval)
	ref := home.request("client", "{id: look, intent: look into the fridge, confirm_before: true}")
	home.waitStatus(ref, thread.Held)
	away.decide("message", acl.Approve)
	there := away.waitMeshThread()
	away.want(there, thread.Held)
	eventually(t, "the peer's hold", func() bool { return home.thread(ref).Parked == thread.ParkedPeer })
	home.want(ref, thread.Held)
	away.decide(askHeld, acl.Approve)
	home.waitStatus(ref, thread.Received)
	away.status("bob", there, "claimed")
	home.waitStatus(ref, thread.Claimed)
}

// TestCancelNamesTwice: one cancel may name a thread twice, by its ref and as the last one.
func TestCancelNamesTwice(t *testing.T) {
	l := newLab(t)
	first := l.request("alice", "{id: a, intent: buy milk}")
	last := l.request("alice", "{id: b, intent: buy eggs}")
	l.do("alice", "- cancel: {re: [a, b, last, "+last+"]}")
	l.want(first, thread.Cancelled)
	if th := l.want(last, thread.Cancelled); th.Serial != 2 {
		t.Errorf("the thread has %d messages, want the request and one cancel", th.Serial)
	}
}
