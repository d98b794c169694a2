package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

// TestWelcomeIsBounded: a welcome stays below a mebibyte, whatever the participants hold and open. It reports if
// something did not fit, and begins with the capabilities of its reader (MEW-Q4).
func TestWelcomeIsBounded(t *testing.T) {
	const people = 40
	cfg := newLabConfig(t)
	var wide []string
	for n := range 40 {
		wide = append(wide, fmt.Sprintf(`{"kind":"tool-%d","payload":{"text":%q}}`, n, strings.Repeat("x", 700)))
	}
	for n := range people {
		name := fmt.Sprintf("guest-%d", n)
		cfg.Participants = append(cfg.Participants, Participant{Name: name, Tokens: []string{name + "-token"}, Capabilities: mewtest.Caps(t, wide...)})
	}
	r := start(t, cfg)
	alice, bob := r.Join("alice-token"), r.Join("bob-token")
	for n, p := range []*mewtest.Player{alice, bob} {
		for range 8 {
			p.Send(fmt.Sprintf(`{"kind":"stream/request","payload":{"description":%q,"n":%d}}`, strings.Repeat("d", 60<<10), n))
		}
		p.Fence()
	}
	s := r.G.Space("lab")
	if got := s.View(); len(got.Streams) != 8 { // four of 60 KiB an owner
		t.Errorf("%d streams of 60 KiB are open, want 4 an owner", len(got.Streams))
	}
	for n := range people {
		r.Join(fmt.Sprintf("guest-%d-token", n))
	}
	_, raw := r.Open("/ws", "admin-token").Next()
	if len(raw) >= envelope.MaxEnvelope {
		t.Errorf("the welcome has %d bytes, want fewer than %d", len(raw), envelope.MaxEnvelope)
	}
	w := mewtest.Parse(t, raw)
	if got := mewtest.Payload(w, "participants"); got.Len() != people+2 {
		t.Errorf("%d participants, want %d", got.Len(), people+2)
	}
	if cut, _ := mewtest.Payload(w, "truncated").Boolean(); !cut || mewtest.Payload(w, "you", "capabilities").Len() != 1 || mewtest.Payload(w, "active_streams").Len() != 8 {
		t.Errorf("truncated %v, you %s, %d streams, want true, own capabilities and 8 streams",
			cut, mewtest.Payload(w, "you").JSON(), mewtest.Payload(w, "active_streams").Len())
	}
}

// TestWelcomeAfterGrant: the welcome after a change of rights does not repeat the streams (MEW-Q4), and has no
// "truncated" if nothing was left out.
func TestWelcomeAfterGrant(t *testing.T) {
	r := start(t, newLabConfig(t))
	admin, alice := r.Join("admin-token"), r.Join("alice-token")
	alice.Send(`{"id":"s","kind":"stream/request","payload":{"direction":"upload"}}`)
	alice.Until(envelope.KindStreamRequest)
	admin.Send(`{"kind":"capability/grant","payload":{"recipient":"alice","capabilities":[{"kind":"mcp/request"}]}}`)
	alice.Until(envelope.KindGrant)
	w, _ := alice.Until(envelope.KindWelcome).Get("payload")
	if _, has := w.Get("active_streams"); has || w.Len() != 2 {
		t.Errorf("after a grant the welcome is %s, want you and participants only", w.JSON())
	}
}

// TestWelcomeIsNotTooDeep: a participant cannot make the gateway send a welcome or presence that is nested deeper than
// an envelope may be. Every client with that bound, such as our links, would be locked out (MEW-1).
func TestWelcomeIsNotTooDeep(t *testing.T) {
	cfg := newLabConfig(t)
	cfg.Participants[1].Capabilities = append(cfg.Participants[1].Capabilities, mewtest.Cap(t, "capability/grant"))
	r := start(t, cfg)
	for levels := 58; levels < envelope.MaxDepth; levels++ {
		nested := strings.Repeat(`{"a":`, levels) + `1` + strings.Repeat(`}`, levels)
		r.Post("alice", "alice-token", `{"kind":"stream/request","payload":`+nested+`}`)
		r.Post("alice", "alice-token", grantTo("g", "alice", `{"kind":"chat","payload":`+nested+`}`))
	}
	bob := r.Join("bob-token") // parses its welcome
	r.Join("alice-token")
	bob.Want(envelope.KindPresence)
	s := r.G.Space("lab")
	if got := s.View(); len(got.Streams) == 0 || len(s.members.byName["alice"].record.Grants) == 0 {
		t.Errorf("%d streams and %d grants, want some", len(got.Streams), len(s.members.byName["alice"].record.Grants))
	}
}
