//go:build slow

package a2a_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestMessageWaitsForAnswer checks that a message waits until the agent has answered the previous one of the
// conversation. It is then a new task.
func TestMessageWaitsForAnswer(t *testing.T) {
	t.Parallel() // it mostly waits
	p := newPeerAgent(t)
	working := p.answer
	var done atomic.Value // id of the task that has ended
	done.Store("")
	p.answer = func(method string, params wire.Value) (string, int) {
		if id := text(params, "id"); method == "GetTask" && id == done.Load() {
			return strings.Replace(completed, "t1", id, 1), 0
		}
		return working(method, params)
	}
	h := serve(t, nil, nil, nil)
	first := h.write("a2a:"+p.URL, "first")
	second, err := h.node.OwnerAPI().Send(t.Context(), owner.NewMessage{To: "a2a:" + p.URL, Conversation: first.Conversation, Intent: wire.Deliver, Payload: deliver("second")}, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.bridge.AwaitSent(t)
	h.bridge.AgeSent(t, time.Hour)
	h.bridge.AwaitPolls(t)
	if n := p.count("SendMessage"); n != 1 {
		t.Errorf("the agent has %d messages while it works on the first", n)
	}
	done.Store("task-" + string(first.MessageID))
	h.bridge.AgeSent(t, 0)
	for _, want := range []wire.MessageID{first.MessageID, second.MessageID} {
		n := 1
		if want == second.MessageID {
			n = 2
			for deadline := time.Now().Add(time.Minute); p.count("SendMessage") != 2; <-time.After(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the second message did not leave")
				}
			}
			done.Store("task-" + string(want))
		}
		if v := h.inbox(first.Conversation, n); text(v, "message.body") != "done" || text(v, "metadata.in_reply_to") != string(want) {
			t.Errorf("answer %d is %s", n, v.JSON())
		}
	}
}
