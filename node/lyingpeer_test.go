package node_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAnswerAfterTheDeadline: if a peer answers after our deadline, it gets the same bytes again. Its answer is
// accepted once, whether it comes with the repeat or the peer sent it to our endpoint before.
func TestAnswerAfterTheDeadline(t *testing.T) {
	t.Parallel()
	for name, posts := range map[string]bool{"by the repetition": false, "at our endpoint first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mesh := meshtest.New(t)
			ann := newPeer(t, mesh, "ann")
			chris := mesh.Node("chris", impatient(t))
			var mu sync.Mutex
			var reply []byte
			end := make(chan struct{})
			t.Cleanup(func() { close(end) })
			ann.answers(func(w http.ResponseWriter, m wire.Message) {
				mu.Lock()
				if reply != nil { // AM-21
					w.Write(reply)
					mu.Unlock()
					return
				}
				reply = ann.Sign(ann.reply(m, `{"action":"confirmed"}`))
				mu.Unlock()
				<-end
			})
			out := ann.message(t, "hello")
			if sent := mustSend(t, chris.Node, out, 30*time.Second); sent.State != owner.SendQueued {
				t.Fatalf("after the deadline: %+v, want it queued", sent)
			}
			if posts {
				mu.Lock()
				must(t, meshtest.Post(t, chris.URL, reply), http.StatusOK)
				mu.Unlock()
			}
			waitFor(t, "the entry is delivered", func() bool { return theEntry(t, chris.Node).State == owner.SendDelivered })
			got := ann.got()
			if len(got) != 2 || got[0].ID != got[1].ID {
				t.Errorf("the peer got %d messages, want the same one twice", len(got))
			}
			if got := state(t, chris); got != "1 items, 1 conversations, 0 asks" {
				t.Errorf("state: %s", got)
			}
			if n := entries(t, chris, string(out.Conv)); n["in"] != 1 || n["out"] != map[bool]int{false: 1, true: 2}[posts] {
				t.Errorf("transcript: %v", n)
			}
		})
	}
}

// entries counts the transcript entries of a conversation by direction.
func entries(t *testing.T, m *meshtest.Member, conv string) map[string]int {
	t.Helper()
	var page struct {
		Transcript []struct{ Direction string }
	}
	if status := m.Call("GET", "/conversations/"+conv, nil, &page); status != http.StatusOK {
		t.Fatalf("conversation %s: %d", conv, status)
	}
	n := map[string]int{}
	for _, e := range page.Transcript {
		n[e.Direction]++
	}
	return n
}

// carrier is a bridge that carries every message.
type carrier struct {
	bridge.Transport
	carry func(message []byte) ([]byte, error)
}

func (c carrier) Carry(_ context.Context, _ wire.AgentID, message []byte) ([]byte, bool, error) {
	answer, err := c.carry(message)
	return answer, true, err
}

// TestCarriedAnswerThatIsNotJSON: an answer that a carrier brings and that nobody can read is an unverified answer. The
// peer has the message, so its conversation goes on (AM-18).
func TestCarriedAnswerThatIsNotJSON(t *testing.T) {
	mesh := meshtest.New(t)
	ann, sarah := mesh.Stranger("ann"), mesh.Node("sarah", nil)
	sarah.Connect(bridge.Kind{Name: "toy"}, carrier{carry: func([]byte) ([]byte, error) { return []byte("<html>"), nil }})
	out := outgoing(t, ann.ID, wire.Deliver, hello)
	out.Conv = "conv_one"
	if sent := mustSend(t, sarah.Node, out, 10*time.Second); sent.State != owner.SendUnverified {
		t.Errorf("the message is %s: %v, want unverified", sent.State, sent.Err)
	}
	if got := convState(t, sarah.Store, out); got != conversations.Open {
		t.Errorf("the conversation is %s, want open", got)
	}
}
