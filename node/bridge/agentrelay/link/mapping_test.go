package link

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

// A text stays a text: what the node adds to a reply is said by the frame's ref.
func TestReplyStaysText(t *testing.T) {
	x, n := play(t, nil, Config{})
	for _, reply := range []struct {
		intent  wire.Intent
		payload string
	}{
		{wire.Deliver, `{"action":"deliver","message":{"body":"tea at four"},"metadata":{"in_reply_to":"msg_1"}}`},
		{wire.RequestInfo, `{"action":"answer","answer":"tea at four","metadata":{"in_reply_to":"msg_1"}}`},
	} {
		x.from("agent-042", `{"id":"%s","type":"question","payload":"when?"}`, frame.NewID())
		got := n.all()
		f := x.send(outgoing(t, got[len(got)-1].ConvID, reply.intent, reply.payload))
		if f.GetStr("type") != "answer" || f.GetStr("payload") != "tea at four" {
			t.Errorf("%s left as %s, want the text alone", reply.payload, f.JSON())
		}
	}
	q := x.send(outgoing(t, wire.NewConversationID(), wire.RequestInfo, `{"action":"ask","question":"why?","metadata":{"in_reply_to":"msg_1"}}`))
	if q.GetStr("payload") != "why?" {
		t.Errorf("a question left as %s, want the text alone", q.JSON())
	}
}

// AR-28: only what somebody may answer by its ref carries our id as one. A ref of anything else would refer to nothing.
func TestRefOnlyWhereAnswered(t *testing.T) {
	x, _ := play(t, nil, Config{})
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
		d := outgoing(t, wire.NewConversationID(), tt.intent, tt.payload)
		f := x.send(d)
		_, has := f.Get("ref")
		if has != tt.ref || has && f.GetStr("ref") != string(d.Message.ID) {
			t.Errorf("%s left as %s, want a ref: %v", tt.payload, f.JSON(), tt.ref)
		}
	}
}

// TestPlainPeerHearsThatTheOwnerDecides: a plain agent whose message waits is told in one line, unless the owner does not
// want that. It used to hear nothing unless the owner had asked for the line.
func TestPlainPeerHearsThatTheOwnerDecides(t *testing.T) {
	const pending = `{"action":"pending_approval","estimated_response":"2026-11-22T18:00:00.000Z","reason":"r"}`
	for option, want := range map[string]bool{"": true, "true": true, "false": false} {
		x, n := play(t, func(l *bridge.Link) {
			if option != "" {
				l.Options = map[string]string{optPending: option}
			}
		}, Config{})
		x.from("agent-042", `{"id":"%s","type":"thought","payload":"hello"}`, frame.NewID())
		frame, _, err := x.link.encode(t.Context(), "agent-042", outgoing(t, n.all()[0].ConvID, wire.Deliver, pending).Message)
		if err != nil || strings.Contains(string(frame), "My owner is asked first") != want {
			t.Errorf("with %s %q the peer gets %q, %v; want a line: %v", optPending, option, frame, err, want)
		}
	}
}
