package moltspeak

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// reachedMesh records what the bridge reports as reachable again.
type reachedMesh struct {
	bridge.Mesh
	reached *[]string
}

func (m reachedMesh) Reachable(a bridge.Address) { *m.reached = append(*m.reached, a.String()) }

// TestLinkGoesDown: a link goes down if our token, our key or the peer's key is refused. Nothing is sent over it until
// a test of the link succeeds. The refusal of one message does not affect the link.
func TestLinkGoesDown(t *testing.T) {
	query := `{"action":"query","domain":"weather"}`
	refusal := func(r *rig, code message.Code) func(string, wire.Value) []byte {
		return func(peer string, got wire.Value) []byte {
			d := r.draft(peer, message.OpError, string(message.Fail(code).Payload(false).JSON()))
			d.Re = got.GetStr("id")
			return r.sign(peer, d)
		}
	}
	for _, tt := range []struct {
		name string
		want bridge.LinkState
		play func(r *rig)
	}{
		{"our key is refused", bridge.LinkDown, func(r *rig) { r.reply = refusal(r, message.CodeAuthFailed) }},
		{"the message is refused", bridge.LinkUp, func(r *rig) { r.reply = refusal(r, message.CodeCapability) }},
		{"the signature of the message is refused", bridge.LinkUp, func(r *rig) { r.reply = refusal(r, message.CodeSignature) }},
		{"too many", bridge.LinkUp, func(r *rig) { r.reply = refusal(r, message.CodeRateLimit) }},
		{"the token is refused", bridge.LinkDown, func(r *rig) { r.status = http.StatusUnauthorized }},
		{"the server is broken", bridge.LinkConnecting, func(r *rig) { r.status = http.StatusServiceUnavailable }},
		{"the answer is refused", bridge.LinkUp, func(r *rig) {
			r.reply = func(peer string, got wire.Value) []byte {
				d := r.draft(peer, message.OpRespond, `{"status":"success","data":1}`)
				d.Re, d.Class = got.GetStr("id"), message.Confidential
				return r.sign(peer, d)
			}
		}},
		{"another key answers", bridge.LinkDown, func(r *rig) {
			r.reply = func(peer string, got wire.Value) []byte {
				d := r.draft(peer, message.OpRespond, `{"status":"success","data":1}`)
				d.Re, d.From.Key = got.GetStr("id"), self(dog).Key
				return r.sign(dog, d)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reached := []string{}
			r, _ := newTestRig(t, func(c *Config) { c.Mesh = reachedMesh{c.Mesh, &reached} })
			r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // pins its key
			tt.play(r)
			if _, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, query)); err == nil {
				t.Fatal("the delivery succeeds")
			}
			for len(r.queue(cat)) > 0 {
				<-r.queue(cat)
			}
			if got := r.b.Links()[0]; got.State != tt.want || (got.Error == "") != (tt.want == bridge.LinkUp) {
				t.Errorf("%+v, want %s", got, tt.want)
			}
			r.reply, r.status = nil, 0
			_, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, query))
			sent, again := errors.AsType[*client.SendError](err)
			if down := tt.want == bridge.LinkDown; down != (again && sent.Retry && sent.Awaits == "moltspeak:cats/") || down == (len(r.queue(cat)) > 0) {
				t.Errorf("the next message: %v, %d left", err, len(r.queue(cat)))
			}
			r.reply = func(peer string, got wire.Value) []byte {
				d := r.draft(peer, message.OpRespond, `{"status":"success","data":{"protocol_versions":["0.1"]}}`)
				d.Re = got.GetStr("id")
				return r.sign(peer, d)
			}
			if err := r.b.Test(t.Context(), "cats"); err != nil || r.b.Links()[0].State != bridge.LinkUp {
				t.Errorf("after the test of the link: %v, %+v", err, r.b.Links()[0])
			}
			if !slices.Equal(reached, []string{"moltspeak:cats/"}) {
				t.Errorf("after the test of the link, %v can be reached, want it", reached)
			}
			if _, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, query)); err != nil {
				t.Errorf("the message after that: %v", err)
			}
		})
	}
}
