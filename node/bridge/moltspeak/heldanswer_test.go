package moltspeak

import (
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHeldAnswer: an answer that waits for the owner does not end its conversation: the close would withdraw it.
func TestHeldAnswer(t *testing.T) {
	r, n := newTestRig(t, nil)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusAccepted, Held: true, Raw: []byte(`{"payload":{"action":"pending_approval"}}`)}, nil
	}
	r.reply = func(peer string, got wire.Value) []byte {
		d := r.draft(peer, message.OpRespond, `{"status":"success","data":{"action":"accept"}}`)
		d.Re = got.GetStr("id")
		return r.sign(peer, d)
	}
	_, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, `{"action":"query","domain":"weather","params":{}}`))
	if err != nil || len(n.got) != 1 || n.got[0].Payload.GetStr("action") != "accept" {
		t.Errorf("the node got %d messages, %v, want the answer alone", len(n.got), err)
	}
}
