package view

import (
	"slices"
	"strconv"
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

// TestProposalByID: the owner may name a proposal by its id, but not by an id that stood for something else before.
func TestProposalByID(t *testing.T) {
	var b Board
	propose := func(from, id, payload string) Proposal {
		t.Helper()
		v, err := wire.Parse([]byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		b.Observe(&envelope.Envelope{ID: id, From: from, Kind: envelope.KindProposal, Payload: v}, time.Now())
		return b.proposals[len(b.proposals)-1]
	}
	shown := propose("cat", "p1", `{"method":"list"}`)
	for range 2 { // the same proposal again is no other one
		if p, ok := b.Find("p1"); !ok || p.Key != shown.Key {
			t.Errorf("by its id: %+v, %v", p, ok)
		}
		propose("cat", "p1", `{"method":"list"}`)
	}
	b.Observe(&envelope.Envelope{ID: "w", From: "cat", Kind: envelope.KindWithdraw, Correlation: []string{"p1"}}, time.Now())
	other := propose("cat", "p1", `{"method":"delete"}`)
	if p, ok := b.Find("p1"); ok {
		t.Errorf("an id that stood for another proposal finds %s", p.Payload)
	}
	if p, ok := b.Find(other.Key); !ok || p.Key != other.Key {
		t.Errorf("by its key: %+v, %v", p, ok)
	}
	if p, ok := b.Find("p2"); ok {
		t.Errorf("an id that nobody used finds %+v", p)
	}
	copied := propose("dog", other.Key, `{"method":"delete all"}`)
	if p, ok := b.Find(other.Key); !ok || p.Key == copied.Key {
		t.Errorf("a key that is also the id of another proposal finds %s, %v", p.Payload, ok)
	}
}

// TestReasoningExpires: a reasoning sequence that its participant neither continues nor ends leaves the board after a
// day. A thought keeps it.
func TestReasoningExpires(t *testing.T) {
	var b Board
	start := time.Now()
	for _, id := range []string{"silent", "busy"} {
		b.Observe(&envelope.Envelope{ID: id, From: "thinker", Kind: envelope.KindReasoningStart}, start)
	}
	b.Observe(&envelope.Envelope{ID: "t", From: "thinker", Kind: envelope.KindReasoningThought, Context: "busy"}, start.Add(time.Hour))
	for _, tt := range []struct {
		after time.Duration
		want  []string
	}{
		{keepReasoning, []string{"silent", "busy"}},
		{keepReasoning + time.Second, []string{"busy"}},
		{keepReasoning + time.Hour + time.Second, nil},
	} {
		b.Expire(start.Add(tt.after))
		var got []string
		for _, r := range b.ListReasoning() {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("after %s: %q, want %q", tt.after, got, tt.want)
		}
	}
}

// TestReasoningOfOthers: a participant can neither push the reasoning of another one off the board nor end it, continue
// it or replace it by reusing its id. It can ask the other one to stop.
func TestReasoningOfOthers(t *testing.T) {
	var b Board
	start := time.Now()
	observe := func(from, kind, id, context string, at time.Time) {
		b.Observe(&envelope.Envelope{ID: id, From: from, Kind: kind, Context: context}, at)
	}
	hasVictim := func() bool {
		return slices.ContainsFunc(b.ListReasoning(), func(r Reasoning) bool { return r.From == "victim" && r.ID == "r" && r.Last.Equal(start) })
	}
	observe("victim", envelope.KindReasoningStart, "r", "", start)
	for i := range maxBoard {
		observe("thief", envelope.KindReasoningStart, strconv.Itoa(i), "", start)
	}
	if own := len(b.ListReasoning()) - 1; !hasVictim() || own != MaxOwnBoard {
		t.Errorf("after %d starts of another participant: its own %d, want %d; the victim's is shown: %v", maxBoard, own, MaxOwnBoard, hasVictim())
	}
	b = Board{}
	observe("victim", envelope.KindReasoningStart, "r", "", start)
	observe("thief", envelope.KindReasoningThought, "t", "r", start.Add(time.Hour))
	observe("thief", envelope.KindReasoningStart, "r", "", start.Add(time.Hour))
	observe("thief", envelope.KindReasoningEnd, "e", "r", start.Add(time.Hour))
	if !hasVictim() || len(b.ListReasoning()) != 1 {
		t.Errorf("after another participant reused the id: %+v", b.ListReasoning())
	}
	observe("thief", envelope.KindReasoningCancel, "c", "r", start)
	if got := b.ListReasoning(); len(got) != 0 {
		t.Errorf("after a request to stop: %+v", got)
	}
}
