package moltspeak

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/quota"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/store"
)

// eachNetwork runs play with an attacker that has all addresses of a network, for each kind of network.
func eachNetwork(t *testing.T, play func(t *testing.T, attacker func(i int) []rate.Source)) {
	for _, n := range apitest.Networks {
		t.Run(n.Name, func(t *testing.T) {
			play(t, func(i int) []rate.Source { return rate.AddrSources(n.Addr(i)) })
		})
	}
}

var newcomer = rate.AddrSources(apitest.Newcomer)

func hosted(i int) []rate.Source { return rate.AddrSources(apitest.HostedAddr(i)) }

// codeFrom is like [rig.code] for a message from the given sources.
func (r *rig) codeFrom(sources []rate.Source, peer string, d message.Draft) message.Code {
	r.t.Helper()
	reply := r.b.Receive(r.t.Context(), r.sign(peer, d), sources, nil)
	p, e := message.ReadPacket(reply.Body, boxOf(peer))
	if e != nil || message.Op(p.Tree.GetStr("op")) != message.OpError {
		return ""
	}
	payload, _ := p.Tree.Get("p")
	return message.Code(payload.GetStr("code"))
}

// TestHandshakesAreShared: a newcomer gets a challenge, and can answer it, although an attacker takes all that it can.
func TestHandshakesAreShared(t *testing.T) {
	eachNetwork(t, func(t *testing.T, attacker func(int) []rate.Source) {
		h, now := newHandshakes(), time.Now()
		ask := func(peer string, known bool, sources []rate.Source) (string, bool) {
			return h.challenge(peer, "k", true, known, sources, now)
		}
		answer := func(peer, text string) bool {
			return h.redeem(peer, "k", text, now)
		}
		flood := func(from int) {
			for i := range 2 * strangersChallenges {
				ask(fmt.Sprint("evil", from+i), false, attacker(i))
			}
			if n := h.countWaiting(false); n != strangersChallenges {
				t.Errorf("strangers have %d challenges, want %d", n, strangersChallenges)
			}
		}
		flood(0)
		text, ok := ask("newcomer", false, newcomer)
		if !ok {
			t.Fatal("the newcomer gets no challenge")
		}
		flood(10_000)
		if !answer("newcomer", text) {
			t.Fatal("the newcomer's challenge went to the attacker")
		}
		for i := range 8 {
			if text, ok := ask(fmt.Sprint("hosted", i), false, hosted(i)); !ok || !answer(fmt.Sprint("hosted", i), text) {
				t.Errorf("agent %d at a hosting provider cannot answer a challenge", i)
			}
		}
		if text, ok := ask("friend", true, attacker(0)); !ok || !answer("friend", text) {
			t.Error("a known peer cannot answer a challenge")
		}
	})
}

// acceptConn returns a server's connection, whose client never reads.
func acceptConn(t *testing.T) *websocket.Conn {
	t.Helper()
	conns := make(chan *websocket.Conn, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, websocket.Options{ReadLimit: 1 << 10, QueueFrames: 1, QueueBytes: 1 << 10})
		if err != nil {
			t.Error(err)
		}
		conns <- conn
		_, _, _ = conn.Read()
	}))
	dial(t, srv)
	return <-conns
}

// TestStreamPlacesAreShared: a newcomer gets a stream although an attacker has as many, bound and unbound, as
// strangers may have.
func TestStreamPlacesAreShared(t *testing.T) {
	eachNetwork(t, func(t *testing.T, attacker func(int) []rate.Source) {
		s, start := newSockets(), time.Now().Add(-time.Hour)
		put := func(i int, peer string, sources []rate.Source, c *websocket.Conn) *socket {
			at := start.Add(time.Duration(i) * time.Millisecond)
			s.all[c] = &socket{conn: c, peer: peer, sources: sources, since: at, hello: time.NewTimer(time.Hour)}
			return s.all[c]
		}
		for i := range strangersSockets - 1 {
			put(i, fmt.Sprint("evil", i), attacker(i), new(websocket.Conn))
		}
		newest := put(strangersSockets, "evil", attacker(0), acceptConn(t)).conn
		bind := func(peer string, known bool, sources []rate.Source) bool {
			c := new(websocket.Conn)
			put(9999, "", sources, c)
			ok := s.bind(c, peer, known)
			if !ok {
				delete(s.all, c)
			}
			return ok
		}
		if bind("more evil", false, attacker(7)) {
			t.Error("the attacker has more streams than all strangers may")
		}
		if !bind("newcomer", false, newcomer) || s.all[newest] != nil {
			t.Error("the newcomer does not get the place of the attacker's newest stream")
		}
		if !bind("friend", true, attacker(1)) {
			t.Error("a known peer gets no stream")
		}

		s = newSockets()
		honest := new(websocket.Conn)
		put(0, "", newcomer, honest)
		victims := make(map[*websocket.Conn]bool)
		for i := range unboundSockets - 1 {
			c := new(websocket.Conn)
			if i < 3 {
				c = acceptConn(t)
				victims[c] = true
			}
			put(1+i, "", attacker(i), c)
		}
		for i := range len(victims) {
			if !s.add(acceptConn(t), attacker(i)) {
				t.Error("a connection was refused")
			}
		}
		for c := range victims {
			if s.all[c] != nil {
				t.Error("the attacker's longest wait did not give way")
			}
		}
		if s.all[honest] == nil {
			t.Error("the attacker's connections pushed out a newcomer that had no time for its hello")
		}
	})
}

// TestOpenStreamsAreShared: a newcomer begins a stream although an attacker has all places of strangers.
func TestOpenStreamsAreShared(t *testing.T) {
	eachNetwork(t, func(t *testing.T, attacker func(int) []rate.Source) {
		now := time.Now()
		tick := func() time.Time { now = now.Add(time.Millisecond); return now }
		s := newStreams()
		begin := func(peer string, sources []rate.Source) *message.Error {
			_, e := s.add(partFrom(peer, false, sources, tick()), message.Stream{Action: "start", ID: "s"})
			return e
		}
		for i := range maxStreams / 2 {
			begin(fmt.Sprint("evil", i), attacker(i))
		}
		if begin("more evil", attacker(1)) == nil {
			t.Error("the attacker has more streams than all strangers may")
		}
		if e := begin("newcomer", newcomer); e != nil {
			t.Errorf("the newcomer begins a stream: %v", e)
		}
	})
}

func evil(i int) string { return fmt.Sprintf("evil%d@flood", i) }

// TestPinsThatStay: a pin with a conversation is displaced only if its source has no other, and never if the owner is
// asked about it.
func TestPinsThatStay(t *testing.T) {
	r, _ := newTestRig(t, nil)
	thick := rate.AddrSources(netip.MustParseAddr("192.0.2.1"))
	const talker, asker = "talker@flood", "asker@flood"
	for _, peer := range []string{"older@flood", talker} {
		r.codeFrom(thick, peer, r.draft(peer, message.OpQuery, plainQuery))
	}
	r.codeFrom(thick, asker, r.draft(asker, message.OpConsent, `{"action":"request","data_types":["email"],"purpose":"x","duration":"session"}`))
	late := peer{Name: "newcomer@x", Key: self(cat).Key, First: time.Now(), Last: time.Now(), Sources: newcomer, rev: store.Absent}
	if err := r.b.pins.displace(t.Context(), late, time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"older@flood": true, talker: false, asker: true, late.Name: true} {
		if _, known, err := r.b.pins.get(t.Context(), name, time.Now()); known != want || err != nil {
			t.Errorf("%s has a pin: %v, %v, want %v", name, known, err, want)
		}
	}
}

// TestSeenHasRoom: strangers never fill the replay records, and each record stores only a small answer.
func TestSeenHasRoom(t *testing.T) {
	eachNetwork(t, func(t *testing.T, attacker func(int) []rate.Source) {
		s, now, n := quota.NewStrangers(), time.Now(), 0
		for end := now.Add(replaySlice); now.Before(end); now = now.Add(20 * time.Millisecond) {
			for ; ; n++ {
				if _, ok := s.Take(evil(n), attacker(n), now); !ok {
					break
				}
			}
		}
		if _, ok := s.Take("newcomer@x", newcomer, now); !ok || n >= maxReplays {
			t.Errorf("the attacker sent %d messages, want less than %d; the newcomer's is taken: %v", n, maxReplays, ok)
		}
	})
	r, _ := newTestRig(t, nil)
	ping := r.draft("stranger@x", message.OpPing, `{"nonce":"`+strings.Repeat("x", 100<<10)+`"}`)
	if code := r.codeFrom(newcomer, "stranger@x", ping); code != "" {
		t.Fatal(code)
	}
	var kept replayRecord
	if _, ok, err := store.ReadRecord(t.Context(), r.b.records, nsReplays, replayKey(self("stranger@x"), ping.ID), &kept, time.Now()); !ok || err != nil || len(kept.Reply) > maxReply {
		t.Errorf("%d bytes are kept of an answer, %v, %v", len(kept.Reply), ok, err)
	}
	if m, status := r.say("stranger@x", ping); status != http.StatusAccepted && status != http.StatusOK || m.Op != "" {
		t.Errorf("a repeat is answered %d %s", status, m.Op)
	}
}

// TestSourcesReachTheNode: the node gets the sources of a sender, so that its limits for strangers tell senders apart
// (AM-42).
func TestSourcesReachTheNode(t *testing.T) {
	r, n := newTestRig(t, nil)
	for i, sources := range [][]rate.Source{newcomer, hosted(1)} {
		if code := r.codeFrom(sources, evil(i), r.draft(evil(i), message.OpQuery, plainQuery)); code != "" || !slices.Equal(n.got[i].Sources, sources) {
			t.Errorf("code %q, the node got the sources %v, want %v", code, n.got[i].Sources, sources)
		}
	}
}

// TestConsentQuestionsAreShared: a newcomer can ask for consent although an attacker has all questions that strangers
// may have.
func TestConsentQuestionsAreShared(t *testing.T) {
	eachNetwork(t, func(t *testing.T, attacker func(int) []rate.Source) {
		r, _ := newTestRig(t, nil)
		ask := func(sources []rate.Source, peer string) message.Code {
			return r.codeFrom(sources, peer, r.draft(peer, message.OpConsent, `{"action":"request","data_types":["email"],"purpose":"x","duration":"session"}`))
		}
		for i := range strangersConsentAsks {
			if code := ask(attacker(i), evil(i)); code != "" {
				t.Fatalf("question %d: %s", i, code)
			}
		}
		if code := ask(attacker(3), "late@flood"); code != message.CodeRateLimit {
			t.Errorf("one more question of the attacker: %q", code)
		}
		if code := ask(newcomer, "newcomer@x"); code != "" {
			t.Errorf("the newcomer: %s", code)
		}
		for i := range 4 {
			if code := ask(hosted(i), fmt.Sprintf("hosted%d@provider", i)); code != "" {
				t.Errorf("agent %d at a hosting provider: %s", i, code)
			}
		}
		if code := ask(nil, cat); code != "" {
			t.Errorf("a known peer: %s", code)
		}
		asks, _, err := r.b.cfg.Mesh.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 1000, time.Now())
		if err != nil || len(asks) != strangersConsentAsks+1 {
			t.Errorf("%d questions wait, %v, want %d", len(asks), err, strangersConsentAsks+1)
		}
	})
}
