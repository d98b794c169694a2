//go:build slow

package node_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestKeySwapInMidConversation: in the middle of a conversation a directory swaps key and endpoint of an agent.
// Messages signed by the new key are refused, our messages wait and go to neither endpoint, and the owner gets one
// notice and one question. Only the owner's approval lets both kinds through (AM-11).
func TestKeySwapInMidConversation(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	mallory := newPeer(t, mesh, "mallory")
	swapped := ann.Forger("mallory")
	mallory.answers(func(w http.ResponseWriter, m wire.Message) {
		w.Write(swapped.Sign(mallory.reply(m, `{"action":"received"}`)))
	})
	chris := mesh.Node("chris", open)
	out := ann.message(t, "1")
	if sent := mustSend(t, chris.Node, out, 30*time.Second); sent.State != owner.SendDelivered {
		t.Fatalf("before: %+v", sent)
	}
	must(t, meshtest.Post(t, chris.URL, ann.Sign(in(out.Conv, ann.Draft(chris.ID(), wire.Deliver, hello)))), http.StatusOK)

	victim, err := mesh.Directory().Card(t.Context(), mallory.ID)
	if err != nil {
		t.Fatal(err)
	}
	card := meshtest.Card(t, "ann", victim.GetStr("endpoint")).Tree.With("public_key", wire.Text(swapped.Key.PublicText()))
	if _, err := mesh.Directory().Renew(t.Context(), card, client.Credential("credential-of-ann"), swapped.Key); err != nil {
		t.Fatal(err)
	}
	chris = mesh.Restart(chris, open) // a restart empties the card cache, like the end of its ten minutes

	before := entries(t, chris, string(out.Conv))
	for range 3 {
		a := meshtest.Post(t, chris.URL, swapped.Sign(in(out.Conv, swapped.Draft(chris.ID(), wire.Deliver, hello))))
		if a.Status != http.StatusUnauthorized || a.Code() != wire.InvalidSignature {
			t.Errorf("message by the swapped key: %d %s", a.Status, a.Body)
		}
	}
	if after := entries(t, chris, string(out.Conv)); after["in"] != before["in"] {
		t.Errorf("the transcript has %d messages of the peer, had %d", after["in"], before["in"])
	}
	out = ann.message(t, "2")
	if sent := mustSend(t, chris.Node, out, 30*time.Second); sent.State != owner.SendQueued || sent.Err == nil {
		t.Errorf("our message while the key is in doubt: %+v, want it to wait", sent)
	}
	if len(ann.got()) != 1 || len(mallory.got()) != 0 {
		t.Errorf("the old endpoint got %d messages, the new one %d; want 1 and 0", len(ann.got()), len(mallory.got()))
	}
	ask := theAsk(t, chris)
	if ask.Kind != "key-change" || ask.Subject != string(ann.ID) {
		t.Errorf("ask = %+v", ask)
	}
	if kinds := noticeKinds(t, chris.Store); !slices.Contains(kinds, "key-change") {
		t.Errorf("notices %v, want one about the key", kinds)
	}

	decide(t, chris, ask, acl.Approve)
	waitFor(t, "the message that waited leaves", func() bool { return len(mallory.got()) == 1 })
	must(t, meshtest.Post(t, chris.URL, swapped.Sign(in(out.Conv, swapped.Draft(chris.ID(), wire.Deliver, hello)))), http.StatusOK)
}
