package gateway

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

const padded = 512 << 10

// paddedEnvelope returns an envelope with much content that nobody reads.
func paddedEnvelope(kind, id, rest string) string {
	return `{"id":"` + id + `","kind":"` + kind + `"` + rest + `,"padding":"` + strings.Repeat("x", padded) + `"}`
}

// TestWhatIsKeptIsSmall: a space remembers little of an envelope, however large it was: ids, not the text around them.
func TestWhatIsKeptIsSmall(t *testing.T) {
	r := start(t, newLabConfig(t))
	s := r.G.Space("lab")
	admin := s.members.byName["admin"]
	const each = 60
	before := mewtest.Heap()
	for n := range each {
		for _, e := range []string{
			paddedEnvelope("mcp/proposal", fmt.Sprintf("p%d", n), `,"payload":{"method":"x"}`),
			paddedEnvelope("reasoning/start", fmt.Sprintf("r%d", n), `,"payload":{}`),
			paddedEnvelope("stream/request", fmt.Sprintf("s%d", n), `,"payload":{"description":"d"}`),
			paddedEnvelope("capability/grant", fmt.Sprintf("g%d", n), fmt.Sprintf(`,"payload":{"recipient":"bob","capabilities":["acme/%d"]}`, n)),
			paddedEnvelope("space/invite", fmt.Sprintf("i%d", n), fmt.Sprintf(`,"payload":{"participant_id":"guest%d","initial_capabilities":["chat"]}`, n)),
		} {
			if _, fault := s.receive(admin, []byte(e), "http"); fault != nil {
				t.Fatalf("%.60s: %s", e, fault.Payload.JSON())
			}
		}
	}
	s.mu.Lock()
	s.out.history = history{} // the history has its own bound
	s.mu.Unlock()
	if grown := mewtest.Heap() - before; grown > 5*each*padded/8 {
		t.Errorf("%d KiB are kept of %d envelopes", grown>>10, 5*each)
	}
	if st := s.View(); len(st.Proposals) != each || len(st.Reasoning) != each || len(st.Streams) != each || len(st.Participants) < each {
		t.Errorf("not all is remembered: %d proposals, %d sequences, %d streams", len(st.Proposals), len(st.Reasoning), len(st.Streams))
	}
}

// TestDecisionsWaitSmall: decisions that wait for a slow disk hold no envelopes in memory.
func TestDecisionsWaitSmall(t *testing.T) {
	j := NewJournal(t.TempDir(), false, true, slog.New(slog.DiscardHandler)) // nothing runs, so the decisions wait
	s := &Space{cfg: SpaceConfig{ID: "lab"}}
	m := &member{name: "alice", id: "alice"}
	const each = 200
	before := mewtest.Heap()
	for n := range each {
		e, fault := envelope.Parse([]byte(paddedEnvelope("chat", fmt.Sprintf("c%d", n), `,"correlation_id":["x"],"payload":{}`)))
		if fault != nil {
			t.Fatal(fault)
		}
		j.logDecision(s.cfg.ID, &submission{Envelope: e, by: m}, nil)
	}
	if grown := mewtest.Heap() - before; grown > each*padded/8 {
		t.Errorf("%d KiB wait for %d decisions", grown>>10, each)
	}
	runtime.KeepAlive(j)
}

// TestRejoins: a client that repeats its join without end does not get a welcome for each (MEW-J2).
func TestRejoins(t *testing.T) {
	r := start(t, newLabConfig(t))
	alice := r.Join("alice-token")
	for range 3 * maxRejoins {
		alice.Send(`{"type":"join"}`)
	}
	welcomes, refusals := 0, 0
	for _, s := range alice.Fence() {
		switch {
		case strings.Contains(s, `"system/welcome"`):
			welcomes++
		case strings.Contains(s, `"rate_limited"`):
			refusals++
		}
	}
	if welcomes < maxRejoins || welcomes > 2*maxRejoins || welcomes+refusals != 3*maxRejoins { // a slow machine may see a minute end
		t.Errorf("%d welcomes and %d refusals for %d joins", welcomes, refusals, 3*maxRejoins)
	}
}
