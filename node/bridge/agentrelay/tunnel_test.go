package agentrelay

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestTunnel: two nodes talk through a relay with the same verification as over HTTP. A replayed message is not
// accepted twice, a message that is altered or for another agent is refused, and an unsigned message of a stranger has
// no effect (AR-59).
func TestTunnel(t *testing.T) {
	s := newTestBridge(t)
	mesh := meshtest.New(t)
	sarah, alex := mesh.Node("sarah", nil), mesh.Node("alex", nil)
	a := linkNode(t, s, sarah, "sarah-node")
	linkNode(t, s, alex, "alex-node")
	identifyPeer(t, a, "alex-node", alex.ID())
	eve := s.join("eve")
	payload, err := wire.Parse([]byte(`{"action":"deliver","message":{"body":"through the relay"}}`))
	if err != nil {
		t.Fatal(err)
	}
	sent, err := sarah.Send(t.Context(), node.Outgoing{To: alex.ID(), Intent: wire.Deliver, Payload: payload, Via: "owner"}, patience)
	if err != nil || sent.State != owner.SendDelivered || sent.Reply == nil {
		t.Fatalf("Send() = %+v, %v, want a verified reply", sent, err)
	}
	if n := s.frames(); n != 2 {
		t.Errorf("%d frames went over the relay, want message and reply", n)
	}
	items, _, err := alex.Inbox(t.Context(), "", "", 10)
	if err != nil || len(items) != 1 || items[0].Verified != bridge.VerifiedSignature || items[0].Peer != sarah.ID() || items[0].Address != "" {
		t.Fatalf("alex has %+v, %v", items, err)
	}
	entries, _, err := sarah.Outbox(t.Context(), "", "", 10)
	if err != nil || len(entries) != 1 {
		t.Fatalf("outbox %+v, %v", entries, err)
	}
	signed := entries[0].Raw
	for _, tt := range []struct {
		name, to string
		message  []byte
		want     string // in the answer
	}{
		{"replayed", "alex-node", signed, `"signature"`}, // the stored answer, and nothing happens
		{"altered", "alex-node", bytes.Replace(signed, []byte("through"), []byte("Through"), 1), string(wire.InvalidSignature)},
		{"altered and renamed", "alex-node", bytes.Replace(signed, []byte(`"message_id":"msg_`), []byte(`"message_id":"msg_0`), 1), string(wire.InvalidSignature)},
		{"for another", "sarah-node", signed, string(wire.InvalidMessage)},
		{"no message", "alex-node", []byte(`{"from":"` + string(sarah.ID()) + `"}`), string(wire.InvalidMessage)},
	} {
		eve.send(fmt.Sprintf(`{"to":["%s"],"type":"agentmesh","payload":%s}`, tt.to, tt.message))
		got := eve.next()
		if got.GetStr("type") != "agentmesh" || !strings.Contains(string(got.JSON()), tt.want) {
			t.Errorf("%s was answered with %s, want %s", tt.name, got.JSON(), tt.want)
		}
	}
	// An answer for which nobody waits gets no answer: otherwise two nodes would answer each other forever.
	eve.send(fmt.Sprintf(`{"to":["alex-node"],"type":"agentmesh","ref":"another","payload":%s}`, signed))
	eve.quiet()
	if items, _, err := alex.Inbox(t.Context(), "", "", 10); err != nil || len(items) != 1 {
		t.Errorf("alex has %d messages, %v, want 1", len(items), err)
	}
}

// TestThroughRelay: a message to a foreign address leaves over the link, and the answer arrives in its conversation
// (AR-56, AR-57).
func TestThroughRelay(t *testing.T) {
	s := newTestBridge(t)
	sarah := meshtest.New(t).Node("sarah", nil)
	linkNode(t, s, sarah, "sarah-node")
	plain := s.join("plain-agent")
	var sent struct {
		Conversation string `json:"conversation_id"`
	}
	if status := sarah.Call("POST", "/send", map[string]any{
		"to": "agentrelay:free/plain-agent", "intent": "mesh.request_info", "payload": map[string]string{"action": "ask", "question": "tea?"}, "wait_seconds": 0,
	}, &sent); status >= 300 {
		t.Fatalf("send: %d", status)
	}
	q := plain.next()
	if q.GetStr("type") != "question" || q.GetStr("payload") != "tea?" {
		t.Fatalf("the agent got %s", q.JSON())
	}
	plain.send(`{"to":["sarah-node"],"type":"answer","ref":"` + q.GetStr("ref") + `","payload":"please"}`)
	items, _, err := sarah.WaitInbox(t.Context(), owner.Query{State: string(owner.ItemNew), Limit: 10, Wait: patience})
	if err != nil || len(items) != 1 || string(items[0].Conversation) != sent.Conversation || items[0].Verified != bridge.VerifiedNone ||
		!strings.Contains(string(items[0].Payload), `"please"`) {
		t.Errorf("the answer is %+v, %v", items, err)
	}
}
