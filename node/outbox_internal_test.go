package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestLoadBehindANewLetter: what an earlier process may have sent is known as such, although a letter of this one came
// into its lane before.
func TestLoadBehindANewLetter(t *testing.T) {
	t.Parallel()
	o := newOutbox(nil)
	key := store.ConvKey{Peer: "am_ann", ID: "conv_1"}
	letter := func(n int) Letter {
		return Letter{OutboxEntry: owner.OutboxEntry{
			ID: fmt.Sprintf("out_%014x", n), State: SendQueued, To: wire.AgentID(key.Peer), Conversation: wire.ConversationID(key.ID), InFlight: true,
		}}
	}
	o.add([]Letter{letter(4)}, true)
	o.add([]Letter{letter(1), letter(2), letter(3)}, false)
	for i, w := range o.lanes[key].letters {
		if w.fresh != (i > 0) {
			t.Errorf("letter %s is fresh: %v", w.id, w.fresh)
		}
	}
}

// TestLanesOfOneMoment: lanes that are due together have their turns in the order in which they had them last.
func TestLanesOfOneMoment(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := laneHeap{}
	for _, turn := range []uint64{3, 1, 2} {
		h = append(h, &lane{turn: turn, letters: []waiting{{due: now}}})
	}
	if h.Less(0, 1) || !h.Less(1, 2) || !h.Less(2, 0) {
		t.Error("the turns do not decide")
	}
	h[0].letters[0].due = now.Add(-time.Nanosecond)
	if !h.Less(0, 1) {
		t.Error("what is due earlier does not go first")
	}
}
