package mew

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
)

// heapNow is what is in use once the collector has run.
func heapNow() int64 {
	runtime.GC()
	runtime.GC()
	var st runtime.MemStats
	runtime.ReadMemStats(&st)
	return int64(st.HeapAlloc)
}

const padded = 512 << 10

// fat is an envelope with much in it that nobody reads.
func fat(kind, id, rest string) string {
	return `{"id":"` + id + `","kind":"` + kind + `"` + rest + `,"padding":"` + strings.Repeat("x", padded) + `"}`
}

// What a space remembers of an envelope is small, however large the envelope was: ids, not the text that they stood in.
func TestWhatIsKeptIsSmall(t *testing.T) {
	r := start(t, lab(t))
	s := r.g.Space("lab")
	admin := s.members["admin"]
	const each = 60
	before := heapNow()
	for n := range each {
		for _, e := range []string{
			fat("mcp/proposal", fmt.Sprintf("p%d", n), `,"payload":{"method":"x"}`),
			fat("reasoning/start", fmt.Sprintf("r%d", n), `,"payload":{}`),
			fat("stream/request", fmt.Sprintf("s%d", n), `,"payload":{"description":"d"}`),
			fat("capability/grant", fmt.Sprintf("g%d", n), fmt.Sprintf(`,"payload":{"recipient":"bob","capabilities":["acme/%d"]}`, n)),
			fat("space/invite", fmt.Sprintf("i%d", n), fmt.Sprintf(`,"payload":{"participant_id":"guest%d","initial_capabilities":["chat"]}`, n)),
		} {
			if _, fault := s.receive(admin, []byte(e), "http"); fault != nil {
				t.Fatalf("%.60s: %s", e, fault.Payload.JSON())
			}
		}
	}
	s.mu.Lock()
	s.history = history{} // bounded by itself
	s.mu.Unlock()
	if grown := heapNow() - before; grown > 5*each*padded/8 {
		t.Errorf("%d KiB are kept of %d envelopes", grown>>10, 5*each)
	}
	if st := s.Status(); len(st.Proposals) != each || len(st.Reasoning) != each || len(st.Streams) != each || len(st.Participants) < each {
		t.Errorf("not all is remembered: %d proposals, %d sequences, %d streams", len(st.Proposals), len(st.Reasoning), len(st.Streams))
	}
}

// Decisions that wait to be logged, because the disk does not keep up, hold no envelopes.
func TestDecisionsWaitSmall(t *testing.T) {
	j := NewJournal(t.TempDir(), false, true, slog.New(slog.DiscardHandler)) // nothing writes what it gathers
	s := &Space{id: "lab"}
	m := &member{name: "alice", runtime: "alice"}
	const each = 200
	before := heapNow()
	for n := range each {
		e, fault := envelope.Parse([]byte(fat("chat", fmt.Sprintf("c%d", n), `,"correlation_id":["x"],"payload":{}`)))
		if fault != nil {
			t.Fatal(fault)
		}
		j.decided(s.id, &post{Envelope: e, by: m}, nil)
	}
	if grown := heapNow() - before; grown > each*padded/8 {
		t.Errorf("%d KiB wait for %d decisions", grown>>10, each)
	}
	runtime.KeepAlive(j)
}

// A space of others cannot fill the memory of a node that takes part in it (THREATS 22).
func TestLinkKeepsLittle(t *testing.T) {
	r := start(t, club(t, everything))
	k := newLinked(t, r, Config{Node: blocked{make(chan struct{})}, Records: r.st.Records()})
	k.l.mu.Lock()
	conn := k.l.conn
	k.l.mu.Unlock()
	before := heapNow()
	const each = 100
	long := strings.Repeat("y", padded)
	for n := range each {
		for _, e := range []string{
			fmt.Sprintf(`{"id":"a%d","from":"system:gateway","kind":"system/presence","payload":{"event":"join","participant":{"id":"m%d","capabilities":[{"kind":"%s"}]}}}`, n, n, long),
			fmt.Sprintf(`{"id":"b%d","from":"gateway","kind":"stream/open","payload":{"stream_id":"s%d","description":"%s"}}`, n, n, long),
			fmt.Sprintf(`{"id":"c%d","from":"v%d","kind":"mcp/proposal","to":["x"],"payload":{"method":"%s"}}`, n, n, long),
			fmt.Sprintf(`{"id":"d%d","from":"w%d","kind":"reasoning/start","payload":{"x":"%s"}}`, n, n, long),
			fmt.Sprintf(`{"id":"e%d","from":"u%d","kind":"chat","payload":{"text":"%s"}}`, n, n, long),
		} {
			k.l.take(t.Context(), conn, []byte(e))
		}
	}
	if grown := heapNow() - before; grown > maxBoardBytes+maxCapsBytes+8<<20 {
		t.Errorf("%d KiB are kept of %d envelopes", grown>>10, 5*each)
	}
	st := k.l.space()
	if len(st.Participants) <= each || len(st.Streams) != each || len(st.Reasoning) != each || len(st.Proposals) == 0 {
		t.Errorf("too little is remembered: %d participants, %d streams, %d sequences, %d proposals", len(st.Participants), len(st.Streams), len(st.Reasoning), len(st.Proposals))
	}
	if k.Links()[0].State != bridge.LinkUp {
		t.Error("the link went down")
	}
}

// Who opens connections and never joins is held back like one with a wrong token (MEW-Q4).
func TestSilentJoins(t *testing.T) {
	r := start(t, lab(t))
	began := time.Now() // nothing has been given back at this time, however slow the machine
	players := make([]*player, maxFailedJoins)
	for i := range players {
		players[i] = r.open("/ws", "")
	}
	for _, p := range players {
		p.closed(envelope.CloseUnauthorized)
	}
	req := httptest.NewRequest("GET", "/ws", nil)
	req.RemoteAddr = "127.0.0.1:1"
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for patience := time.After(30 * time.Second); r.g.failed.Admit(addressOf(req), began) == 0; {
		select {
		case <-tick.C:
		case <-patience:
			t.Fatalf("after %d connections without a join one more is let in", maxFailedJoins)
		}
	}
}

// A join that is repeated for ever does not have the whole space listed for ever (MEW-J2).
func TestRejoins(t *testing.T) {
	r := start(t, lab(t))
	alice := r.join("alice-token")
	for range 3 * maxRejoins {
		alice.send(`{"type":"join"}`)
	}
	welcomes, refusals := 0, 0
	for _, s := range alice.fence() {
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
