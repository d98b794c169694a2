package node

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// TestLaneKeepsALateLetter: of two steps the second may be told first, and be under way when the first letter comes
// into its lane. What ends then is the letter that was under way.
func TestLaneKeepsALateLetter(t *testing.T) {
	for _, due := range []time.Time{{}, time.Now().Add(time.Hour)} {
		o := newOutbox(nil)
		key := store.ConvKey{Peer: "am_a", ID: "conv_1"}
		letter := func(id string) Letter {
			return Letter{OutboxEntry: owner.OutboxEntry{ID: id, State: SendQueued, To: "am_a", Conversation: "conv_1", InFlight: true}}
		}
		o.add([]Letter{letter("out_02")}, true)
		ln := o.lanes[key]
		o.ready.Pop()
		o.peers[key.Peer], o.active = &peerLoad{active: 1}, 1
		o.add([]Letter{letter("out_01")}, true)
		o.ended(ln, "out_02", due)
		if len(ln.letters) == 0 || ln.letters[0].id != "out_01" || ln.letters[0].due.After(time.Now()) || len(o.ready) != 1 {
			t.Errorf("due %v: lane = %+v, want the first letter ready", due, ln.letters)
		}
	}
}
