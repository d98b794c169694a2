package agentrelay

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// AR-59: two nodes talk through a relay as verified as over HTTP; what is replayed is not taken twice, what is altered
// or for somebody else is refused, and a stranger's unsigned word is nothing.
func TestTunnel(t *testing.T) {
	s := newSite(t)
	mesh := meshtest.New(t)
	sarah, alex := mesh.Node("sarah", nil), mesh.Node("alex", nil)
	a := onRelay(t, s, sarah, "sarah-node")
	onRelay(t, s, alex, "alex-node")
	knowPeer(t, a, "alex-node", alex.ID())
	eve := s.join("eve")
	payload, err := wire.Parse([]byte(`{"action":"deliver","message":{"body":"through the relay"}}`))
	if err != nil {
		t.Fatal(err)
	}
	sent, err := sarah.Send(t.Context(), node.Outgoing{To: alex.ID(), Intent: wire.Deliver, Payload: payload, Via: "owner"}, patience)
	if err != nil || sent.State != node.SendDelivered || sent.Reply == nil {
		t.Fatalf("Send() = %+v, %v, want a verified reply", sent, err)
	}
	if n := s.frames(); n != 2 {
		t.Errorf("%d frames went over the relay, want message and reply", n)
	}
	items, _, err := alex.Inbox(t.Context(), "", "", 10)
	if err != nil || len(items) != 1 || items[0].Verified != bridge.VerifiedSignature || items[0].Peer != sarah.ID() || items[0].Address != "" {
		t.Fatalf("alex has %+v, %v", items, err)
	}
	letters, _, err := sarah.Outbox(t.Context(), "", "", 10)
	if err != nil || len(letters) != 1 {
		t.Fatalf("outbox %+v, %v", letters, err)
	}
	signed := letters[0].Raw
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
	// An answer that nobody waits for is not answered: two nodes would go on for ever.
	eve.send(fmt.Sprintf(`{"to":["alex-node"],"type":"agentmesh","ref":"another","payload":%s}`, signed))
	eve.quiet()
	if items, _, err := alex.Inbox(t.Context(), "", "", 10); err != nil || len(items) != 1 {
		t.Errorf("alex has %d messages, %v, want 1", len(items), err)
	}
}

// A message to a foreign address leaves over the link, and the answer comes back into its conversation (AR-56, AR-57).
func TestThroughRelay(t *testing.T) {
	s := newSite(t)
	sarah := meshtest.New(t).Node("sarah", nil)
	onRelay(t, s, sarah, "sarah-node")
	plain := s.join("plain-agent")
	var sent struct {
		Conversation string `json:"conversation_id"`
		State        string `json:"state"`
	}
	status := sarah.Call("POST", "/send", map[string]any{
		"to": "agentrelay:free/plain-agent", "intent": "mesh.request_info", "payload": map[string]string{"action": "ask", "question": "tea?"}, "wait_seconds": 10,
	}, &sent)
	if status != 200 || sent.State != "delivered" {
		t.Fatalf("send: %d %+v", status, sent)
	}
	q := plain.next()
	if q.GetStr("type") != "question" || q.GetStr("payload") != "tea?" {
		t.Fatalf("the agent got %s", q.JSON())
	}
	plain.send(`{"to":["sarah-node"],"type":"answer","ref":"` + q.GetStr("ref") + `","payload":"please"}`)
	items, _, err := sarah.WaitInbox(t.Context(), node.ItemNew, "", 10, patience)
	if err != nil || len(items) != 1 || string(items[0].Conversation) != sent.Conversation || items[0].Verified != bridge.VerifiedNone ||
		!strings.Contains(string(items[0].Payload), `"please"`) {
		t.Errorf("the answer is %+v, %v", items, err)
	}
}
