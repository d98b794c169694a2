package node_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPeerThatMoved: if the old endpoint of a peer refuses a message for good, the message goes to the endpoint that
// the peer's card names now, although the cached old card is still valid for minutes (AM-86).
func TestPeerThatMoved(t *testing.T) {
	mesh := meshtest.New(t)
	before := newPeer(t, mesh, "ann")
	before.answers(before.says(`{"action":"received"}`))
	chris := mesh.Node("chris", nil)
	send := func(want owner.SendState) {
		t.Helper()
		if sent := mustSend(t, chris.Node, before.message(t, "hello"), 10*time.Second); sent.State != want {
			t.Fatalf("sent = %+v, want %s", sent, want)
		}
	}
	send(owner.SendDelivered)
	after := newPeer(t, mesh, "ann") // the same agent at another endpoint
	after.answers(after.says(`{"action":"received"}`))
	before.answers(func(w http.ResponseWriter, _ wire.Message) { // the peer may have processed the message
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte(`{"error":{"code":"AGENT_UNAVAILABLE","message":"broken","retry":false}}`))
	})
	out := before.message(t, "hello")
	out.Conv = "conv_2"
	if sent := mustSend(t, chris.Node, out, 10*time.Second); sent.State != owner.SendFailed || len(after.got()) != 0 {
		t.Fatalf("sent = %+v after an answer that leaves the outcome open, want it failed", sent)
	}
	before.answers(status(http.StatusNotFound))
	send(owner.SendDelivered)
	if got := len(after.got()); got != 1 {
		t.Errorf("%d messages arrived at the new endpoint, want 1", got)
	}
	after.answers(status(http.StatusNotFound))
	send(owner.SendFailed)
	if got := len(after.got()); got != 2 {
		t.Errorf("%d attempts at an endpoint that has not changed, want 1 more", got)
	}
}

// TestMovedPeerWithAnotherKey: a node does not follow an endpoint on a card whose key the pinned key does not vouch
// for.
func TestMovedPeerWithAnotherKey(t *testing.T) {
	mesh := meshtest.New(t)
	before := newPeer(t, mesh, "ann")
	before.answers(before.says(`{"action":"received"}`))
	chris := mesh.Node("chris", nil)
	mustSend(t, chris.Node, before.message(t, "hello"), 10*time.Second)
	before.answers(status(http.StatusNotFound))
	after := newPeer(t, mesh, "ann")
	after.answers(after.says(`{"action":"received"}`))
	thief := meshtest.Key("thief")
	card, err := mesh.Directory().Card(t.Context(), after.ID)
	if err != nil {
		t.Fatal(err)
	}
	card = card.With("public_key", wire.Text(thief.PublicText()))
	if _, err := mesh.Directory().Renew(t.Context(), card, client.Credential("credential-of-ann"), thief); err != nil {
		t.Fatal(err)
	}
	if sent := mustSend(t, chris.Node, before.message(t, "hello"), 10*time.Second); sent.State != owner.SendFailed || len(after.got()) != 0 {
		t.Errorf("sent = %+v, %d messages at the thief's endpoint; want it failed and none", sent, len(after.got()))
	}
}
