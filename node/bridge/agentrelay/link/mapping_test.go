package link

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// TestReplyStaysText: a reply that is a text stays a text, because the frame's ref replaces what the node adds to a
// reply.
func TestReplyStaysText(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	for _, reply := range []struct {
		intent  wire.Intent
		payload string
	}{
		{wire.Deliver, `{"action":"deliver","message":{"body":"tea at four"},"metadata":{"in_reply_to":"msg_1"}}`},
		{wire.RequestInfo, `{"action":"answer","answer":"tea at four","metadata":{"in_reply_to":"msg_1"}}`},
	} {
		x.from("agent-042", `{"id":"%s","type":"question","payload":"when?"}`, frame.NewID())
		got := n.all()
		f := x.send(newDelivery(t, got[len(got)-1].ConvID, reply.intent, reply.payload))
		if f.GetStr("type") != "answer" || f.GetStr("payload") != "tea at four" {
			t.Errorf("%s left as %s, want the text alone", reply.payload, f.JSON())
		}
	}
	q := x.send(newDelivery(t, wire.NewConversationID(), wire.RequestInfo, `{"action":"ask","question":"why?","metadata":{"in_reply_to":"msg_1"}}`))
	if q.GetStr("payload") != "why?" {
		t.Errorf("a question left as %s, want the text alone", q.JSON())
	}
}

// TestManyMembers: a message with as many members as fit into a frame is mapped at once. A thought or a vote like this
// once kept a worker busy for half a minute.
func TestManyMembers(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"text":"x","approve":true`)
	for i := 0; b.Len() < linkReadLimit-100; i++ {
		fmt.Fprintf(&b, `,"%x":1`, i)
	}
	p, err := wire.ParseForeign([]byte(b.String()+"}"), frame.MaxDepth, linkReadLimit)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"thought", "alert", "question", "answer", "proposal", "vote", "sync"} {
		start := time.Now()
		in := incoming{kind: kind, payload: p}
		if _, _, ok := in.toMesh(); !ok || time.Since(start) > 5*time.Second {
			t.Errorf("a %s with %d members is mapped %v, after %v", kind, p.Len(), ok, time.Since(start))
		}
	}
}

// TestNumbersStay: a payload with a number that no message can hold becomes a text, in which the number is unchanged.
func TestNumbersStay(t *testing.T) {
	for _, payload := range []string{`{"id":9007199254740993}`, `{"id":9007199254740993.0}`, `{"id":9007199254740993E0}`, `{"id":1e999}`, `9007199254740993`} {
		p, err := wire.ParseForeign([]byte(payload), frame.MaxDepth, linkReadLimit)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"thought", "question", "answer", "proposal", "data"} {
			in := incoming{kind: kind, payload: p}
			_, got, ok := in.toMesh()
			stored, err := wire.ParseObject(signing.Canonical(got, signing.JCS))
			number := strings.Trim(payload, `{"id:}`)
			if text := string(stored.JSON()); !ok || err != nil || !strings.Contains(text, number) {
				t.Errorf("a %s with %s becomes %s, %v", kind, payload, text, err)
			}
		}
	}
}

// TestVoteWithoutItsMembers: a vote counts even if no message can hold its other members.
func TestVoteWithoutItsMembers(t *testing.T) {
	p, err := wire.ParseForeign([]byte(`{"approve":true,"note":9007199254740993}`), frame.MaxDepth, linkReadLimit)
	if err != nil {
		t.Fatal(err)
	}
	in := incoming{kind: "vote", payload: p}
	if intent, got, ok := in.toMesh(); !ok || intent != wire.Negotiate || string(got.JSON()) != `{"action":"accept"}` {
		t.Errorf("the vote becomes %s %s, %v", intent, got.JSON(), ok)
	}
}

// TestRefOnlyWhereAnswered: only a message that a peer may answer by its ref has its id as ref (AR-28).
func TestRefOnlyWhereAnswered(t *testing.T) {
	x, _ := newLinkedNode(t, nil, Config{})
	for _, tt := range []struct {
		intent  wire.Intent
		payload string
		ref     bool
	}{
		{wire.Deliver, `{"action":"deliver","message":{"body":"hello"}}`, false},
		{wire.Deliver, `{"action":"deliver","message":{"body":"hello","priority":"high"}}`, false},
		{"chat.agentrelay.data", `{"action":"data","data":{"n":1}}`, false},
		{wire.RequestInfo, `{"action":"ask","question":"why?"}`, true},
		{wire.Negotiate, `{"action":"propose","terms":{"description":"d"}}`, true},
	} {
		d := newDelivery(t, wire.NewConversationID(), tt.intent, tt.payload)
		f := x.send(d)
		_, has := f.Get("ref")
		if has != tt.ref || has && f.GetStr("ref") != string(d.Message.ID) {
			t.Errorf("%s left as %s, want a ref: %v", tt.payload, f.JSON(), tt.ref)
		}
	}
}

// TestPlainPeerHearsThatTheOwnerDecides: an agent without AgentMesh gets one line if its message waits for the owner,
// unless the owner disabled that.
func TestPlainPeerHearsThatTheOwnerDecides(t *testing.T) {
	const pending = `{"action":"pending_approval","estimated_response":"2026-11-22T18:00:00.000Z","reason":"r"}`
	for option, want := range map[string]bool{"": true, "true": true, "false": false} {
		x, n := newLinkedNode(t, func(l *bridge.Link) {
			if option != "" {
				l.Options = map[string]string{optPending: option}
			}
		}, Config{})
		x.from("agent-042", `{"id":"%s","type":"thought","payload":"hello"}`, frame.NewID())
		frame, _, err := x.link.encode(t.Context(), "agent-042", newDelivery(t, n.all()[0].ConvID, wire.Deliver, pending).Message)
		if err != nil || strings.Contains(string(frame), "My owner is asked first") != want {
			t.Errorf("with %s %q the peer gets %q, %v; want a line: %v", optPending, option, frame, err, want)
		}
	}
}
