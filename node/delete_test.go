package node_test

import (
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestReplayAfterDelete (THREATS 4): after the owner deleted a conversation, a captured message does not open it again
// while its timestamp is still valid, and the deleted answer is not returned.
func TestReplayAfterDelete(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	raw := chris.Sign(d)
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusOK)
	if got := sarah.Call("DELETE", "/conversations/"+string(d.Conversation), nil, nil); got != http.StatusNoContent {
		t.Fatalf("delete = %d", got)
	}
	before := state(t, sarah)
	resent := d
	resent.ID = wire.NewMessageID()
	resent.Payload = d.Payload.With("metadata", wire.Obj(wire.Member{Key: "resend_of", Value: wire.Text(string(d.ID))}))
	for name, body := range map[string][]byte{"replay": raw, "signed again": chris.Sign(resent)} {
		if a := meshtest.Post(t, sarah.URL, body); a.Code() != wire.ConversationClosed {
			t.Errorf("%s: %d %s, want %s", name, a.Status, a.Body, wire.ConversationClosed)
		}
	}
	if after := state(t, sarah); after != before {
		t.Errorf("state = %s, want %s", after, before)
	}
}

// TestDeleteLeavesNothing: the inbox items of a deleted conversation are deleted, and its questions no longer keep the
// sender from asking again (AM-33).
func TestDeleteLeavesNothing(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusAccepted)
	theAsk(t, sarah)
	if got := sarah.Call("DELETE", "/conversations/"+string(d.Conversation), nil, nil); got != http.StatusNoContent {
		t.Fatalf("delete = %d", got)
	}
	if asks := pendingAsks(t, sarah); len(asks) != 0 {
		t.Errorf("%d asks are pending after the delete, want 0", len(asks))
	}
	if items, _, err := sarah.Inbox(t.Context(), "", "", 10); err != nil || len(items) != 0 {
		t.Errorf("inbox after the delete = %v, %v, want none", items, err)
	}
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
}
