package view

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// keyOfProposal returns the key of a proposal on an empty board.
func keyOfProposal(t *testing.T, payload string, to ...string) string {
	t.Helper()
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	var b Board
	b.Observe(&envelope.Envelope{ID: "p", From: "proposer", Kind: envelope.KindProposal, To: to, Payload: v}, time.Now())
	return b.proposals[0].Key
}

// TestKeysOfProposalsCannotBeMade: nobody can make a proposal with the key of another one, so that the owner would
// approve something other than what was shown. The first two have the same first 12 digits of a plain SHA-256; finding
// them took half a minute.
func TestKeysOfProposalsCannotBeMade(t *testing.T) {
	shown := keyOfProposal(t, `{"method":"tools/call","params":{"name":"list","n":13955319}}`)
	if sent := keyOfProposal(t, `{"method":"tools/call","params":{"name":"delete","n":43606178}}`); sent == shown {
		t.Errorf("two proposals that were made to collide have the key %s", sent)
	}
	if one, two := keyOfProposal(t, `{}`, "alice\x00bob"), keyOfProposal(t, `{}`, "alice", "bob"); one == two {
		t.Error("one recipient with a NUL in its id has the key of two recipients")
	}
	if again := keyOfProposal(t, `{"method":"tools/call","params":{"name":"list","n":13955319}}`); again != shown {
		t.Error("the same proposal, made again, has another key")
	}
}
