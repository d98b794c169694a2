package node_test

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestExactRepeat (AM-21): the same bytes get the same answer, whatever their age, and have no further effect.
func TestExactRepeat(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	first := meshtest.Post(t, sarah.URL, raw)
	must(t, first, http.StatusOK)
	before := state(t, sarah)
	second := meshtest.Post(t, sarah.URL, raw)
	if !bytes.Equal(first.Body, second.Body) || second.Status != first.Status {
		t.Errorf("repeat = %d %s, want %d %s", second.Status, second.Body, first.Status, first.Body)
	}
	if after := state(t, sarah); after != before {
		t.Errorf("state = %s, want %s", after, before)
	}
}

// TestManyCopiesAtOnce (AM-21): of many copies that arrive at once, one is accepted, and all get the same answer.
func TestManyCopiesAtOnce(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	const copies = 64
	answers := make([]meshtest.Answer, copies)
	var group sync.WaitGroup
	for i := range copies {
		group.Go(func() { answers[i] = meshtest.Post(t, sarah.URL, raw) })
	}
	group.Wait()
	for i, a := range answers {
		if a.Status != http.StatusOK || !bytes.Equal(a.Body, answers[0].Body) {
			t.Fatalf("copy %d: %d %s, want the answer of the first, %s", i, a.Status, a.Body, answers[0].Body)
		}
	}
	if got, want := state(t, sarah), "1 items, 1 conversations, 0 asks"; got != want {
		t.Errorf("state = %s, want %s", got, want)
	}
}

// TestTwoBodiesUnderOneID (THREATS 5): if two messages with the same id arrive at once, one is accepted, and every
// copy of the other is refused (AM-21).
func TestTwoBodiesUnderOneID(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	for round := range 5 {
		d := chris.Draft(sarah.ID(), wire.Deliver, hello)
		first := chris.Sign(d)
		d.Payload = chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"goodbye"}}`).Payload
		bodies := [2][]byte{first, chris.Sign(d)}
		const copies = 16
		var answers [copies]meshtest.Answer
		var group sync.WaitGroup
		for i := range copies {
			group.Go(func() { answers[i] = meshtest.Post(t, sarah.URL, bodies[i%2]) })
		}
		group.Wait()
		accepted := 0
		if answers[1].Status == http.StatusOK {
			accepted = 1
		}
		for i, a := range answers {
			switch {
			case i%2 == accepted && a.Status != http.StatusOK:
				t.Errorf("round %d: copy %d of the accepted message: %d %s", round, i, a.Status, a.Body)
			case i%2 != accepted && (a.Status != http.StatusConflict || a.Code() != wire.InvalidMessage):
				t.Errorf("round %d: copy %d of the other message: %d %s, want 409 %s", round, i, a.Status, a.Body, wire.InvalidMessage)
			}
		}
		if got, want := state(t, sarah), fmt.Sprintf("%d items, %[1]d conversations, 0 asks", round+1); got != want {
			t.Errorf("state = %s, want %s", got, want)
		}
	}
}

// TestReplayElsewhere (THREATS 4): a message to one agent is refused by another.
func TestReplayElsewhere(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah, tom := mesh.Node("sarah", open), mesh.Node("tom", open)
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	a := meshtest.Post(t, tom.URL, raw)
	if a.Code() != wire.InvalidMessage || a.Status != http.StatusBadRequest {
		t.Errorf("answer = %d %s, want 400", a.Status, a.Body)
	}
}

// TestResendIsKnown (AM-48): a message that its sender signed again gets the answer to the first one.
func TestResendIsKnown(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	first := meshtest.Post(t, sarah.URL, chris.Sign(d))
	must(t, first, http.StatusOK)
	resent := d
	resent.ID = wire.NewMessageID()
	resent.Payload = d.Payload.With("metadata", wire.Obj(wire.Member{Key: "resend_of", Value: wire.Text(string(d.ID))}))
	a := meshtest.Post(t, sarah.URL, chris.Sign(resent))
	if !bytes.Equal(a.Body, first.Body) {
		t.Errorf("resend = %d %s, want the stored answer %s", a.Status, a.Body, first.Body)
	}
	if got, want := state(t, sarah), "1 items, 1 conversations, 0 asks"; got != want {
		t.Errorf("state = %s, want %s", got, want)
	}

	// A message that names one of another conversation is an ordinary message.
	resent.ID, resent.Conversation = wire.NewMessageID(), "conv_other"
	a = meshtest.Post(t, sarah.URL, chris.Sign(resent))
	if must(t, a, http.StatusOK); bytes.Equal(a.Body, first.Body) {
		t.Errorf("in another conversation it gets the answer of the first: %s", a.Body)
	}
	if got, want := state(t, sarah), "2 items, 2 conversations, 0 asks"; got != want {
		t.Errorf("state = %s, want %s", got, want)
	}
}
