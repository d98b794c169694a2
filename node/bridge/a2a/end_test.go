package a2a

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestEndOfConversation checks how the end of a conversation ends the tasks that are still open in it. A caller with
// our extension may close a conversation itself, and then no close of ours decides.
func TestEndOfConversation(t *testing.T) {
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b, book := &Bridge{cfg: Config{Store: s}}, &conversations.Book{Steps: s.Steps()}
	for _, tt := range []struct {
		status string
		ago    time.Duration
		want   a2a.TaskState
	}{
		{"completed", 0, ""}, {"completed", 2 * closeTime, a2a.TaskStateCompleted}, {"failed", 2 * closeTime, a2a.TaskStateCanceled},
	} {
		key, at := store.ConvKey{Peer: "am_ann", ID: "conv_" + tt.status + tt.ago.String()}, time.Now().Add(-tt.ago)
		for _, e := range []conversations.Event{
			{Kind: conversations.Received, At: at, Intent: wire.Deliver, Payload: wire.Obj(wire.TextField("action", "deliver"))},
			{Kind: conversations.ClosedByPeer, At: at, Payload: wire.Obj(wire.TextField("action", wire.ActionClose), wire.TextField("status", tt.status))},
		} {
			if err := book.Try(t.Context(), key, at, func(u *conversations.Unit) error { return u.Record(e) }); err != nil {
				t.Fatal(err)
			}
		}
		end, _, next, err := b.endOf(t.Context(), key)
		if err != nil || end.State != tt.want {
			t.Errorf("%s %v ago: %q, %v, want %q", tt.status, tt.ago, end.State, err, tt.want)
		}
		if wait := time.Until(next); wait <= 0 || wait > closeTime {
			t.Errorf("%s %v ago: compared again in %v", tt.status, tt.ago, wait)
		}
	}
}
