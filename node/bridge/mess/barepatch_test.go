package mess

import (
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// patch sends a block about one thread as a PATCH does: its entries need no references.
func (l *lab) patch(who, ref, block string) {
	l.t.Helper()
	if _, err := l.Do(l.t.Context(), actor(who), mustParse(l.t, block), exchange.Options{Lax: true, Re: ref}); err != nil {
		l.t.Fatalf("%s sends %s: %v", who, block, err)
	}
}

// TestEntriesWithoutReferencesThroughTheMesh: a PATCH may leave out the references of its entries (MESS-20). They reach
// the other exchange all the same.
func TestEntriesWithoutReferencesThroughTheMesh(t *testing.T) {
	home, away := pair(t, acl.Open)
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	there := away.waitMeshThread()
	away.patch("bob", there, "- status: {code: claimed}\n")
	home.waitStatus(ref, thread.Claimed)
	away.patch("bob", there, "- status: {code: needs_input, questions: [{field: shelf, question: Which?}]}\n")
	home.waitStatus(ref, thread.NeedsInput)
	home.patch("client", ref, "- reply: {answers: {shelf: the top one}}\n")
	away.waitStatus(there, thread.InProgress)
	away.patch("bob", there, "- status: {code: completed}\n- response: {content: [eggs]}\n")
	home.waitStatus(ref, thread.Completed)
}

// TestBareCodesThroughTheMesh: the web client sends codes without the members that they require (MESS-20). The other
// exchange takes what its peer's exchange has accepted.
func TestBareCodesThroughTheMesh(t *testing.T) {
	for _, code := range []thread.Code{thread.Failed, thread.NeedsInput, thread.NeedsConfirmation, thread.Partial, thread.Waiting, thread.Retrying, thread.Declined} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			home, away := pair(t, acl.Open)
			ref := home.request("client", "{id: look, intent: look into the fridge}")
			there := away.waitMeshThread()
			away.patch("bob", there, "- status: {code: claimed}\n")
			home.waitStatus(ref, thread.Claimed)
			away.patch("bob", there, "- status: {code: "+string(code)+"}\n")
			home.waitStatus(ref, code)
		})
	}
}
