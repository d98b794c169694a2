package moltspeak

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/store"
)

// TestStrangersTakeNoChallenges: strangers that say hello without end take no challenge of a known peer.
func TestStrangersTakeNoChallenges(t *testing.T) {
	h, now := newHandshakes(), time.Now()
	for i := range 2 * maxChallenges {
		h.challenge(fmt.Sprint("waiting", i), "k", true, false, nil, now)
	}
	if _, more := h.challenge("one more", "k", true, false, nil, now); more {
		t.Error("strangers have more challenges than their share")
	}
	if text, ok := h.challenge("friend", "k", true, true, nil, now); !ok || !h.redeem("friend", "k", text, now) {
		t.Error("strangers' challenges took the place of a known peer's")
	}
}

// fill pins n strangers that last wrote at the given time.
func (r *rig) fill(n int, last time.Time) {
	r.t.Helper()
	var changes []store.Change
	for i := range n {
		p := peer{Name: fmt.Sprintf("stranger%d@flood", i), Key: self(cat).Key, First: last, Last: last}
		if changes = append(changes, p.change()); len(changes) == 500 || i == n-1 {
			if err := r.b.records.Apply(r.t.Context(), changes, time.Now()); err != nil {
				r.t.Fatal(err)
			}
			changes = nil
		}
	}
}

// forgetStrangers does what is due for the pins of strangers at a time.
func (r *rig) forgetStrangers(now time.Time) {
	r.t.Helper()
	for rec, err := range store.AllRecords(r.t.Context(), r.b.records, nsPeers, termStranger, now) {
		if err == nil && rec.Due.After(now) {
			r.t.Errorf("%s is due at %v", rec.Key, rec.Due)
		}
		if err == nil {
			_, err = r.b.pins.workStranger(r.t.Context(), rec, now)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestStrangersTakeNoPins: a flood of pins leaves room for every known peer. It ends by itself, because strangers that
// left nothing behind are forgotten.
func TestStrangersTakeNoPins(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.fill(maxStrangers, time.Now())
	const late, friend = "late@flood", "friend@home"
	ping := func(peer string) message.Code { return r.code(peer, r.draft(peer, message.OpPing, `{"nonce":1}`)) }
	if code := ping(late); code != message.CodeRateLimit {
		t.Errorf("one stranger too many: %q", code)
	}
	if code := ping(cat); code != "" {
		t.Errorf("a peer behind a link: %s", code)
	}
	if err := acl.NewRules(r.store.Records(), acl.Policy{}).Set(t.Context(), "moltspeak:inbound/"+friend, acl.Approved, time.Now()); err != nil {
		t.Fatal(err)
	}
	if code := ping(friend); code != "" {
		t.Errorf("a peer that the owner approved: %s", code)
	}
	r.forgetStrangers(time.Now().Add(forgetEmpty + time.Minute))
	if code := ping(late); code != "" {
		t.Errorf("a stranger after the flood: %s", code)
	}
	list, err := r.b.pins.list(t.Context())
	if err != nil || len(list) != 3 {
		t.Errorf("%d pins are left, %v, want those of three peers", len(list), err)
	}
}

// TestStrangersAreForgotten: the pin of a stranger lives for a day, or as long as its conversation, or for good if the
// owner admitted it, because otherwise another agent could take the name and with it the permission.
func TestStrangersAreForgotten(t *testing.T) {
	r, _ := newTestRig(t, nil)
	const passing, talking, approved, granted = "passing@x", "talking@x", "approved@x", "granted@x"
	for _, peer := range []string{passing, talking, approved, granted} {
		r.say(peer, r.draft(peer, message.OpPing, `{"nonce":1}`))
	}
	r.say(talking, r.draft(talking, message.OpQuery, plainQuery))
	if err := acl.NewRules(r.store.Records(), acl.Policy{}).Set(t.Context(), "moltspeak:inbound/"+approved, acl.Approved, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := r.b.pins.setGranted(t.Context(), granted, true); err != nil {
		t.Fatal(err)
	}
	pinned := func(peer string) bool {
		_, known, err := r.b.pins.get(t.Context(), peer, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return known
	}
	for _, step := range []struct {
		after   time.Duration
		talking bool
	}{{forgetEmpty + time.Minute, true}, {forgetStranger + time.Minute, false}} {
		r.forgetStrangers(time.Now().Add(step.after))
		if pinned(passing) || pinned(talking) != step.talking || !pinned(approved) || !pinned(granted) {
			t.Errorf("after %s: passing %v, talking %v, approved %v, granted %v", step.after, pinned(passing), pinned(talking), pinned(approved), pinned(granted))
		}
	}
	forged := r.draft(approved, message.OpPing, `{"nonce":1}`)
	forged.From.Key = self(dog).Key
	if m, _ := r.sendRaw(dog, r.sign(dog, forged)); m.P.GetStr("code") != string(message.CodeAuthFailed) {
		t.Errorf("another takes the name of an approved peer: %s", m.P.JSON())
	}
}

// TestStrangersUseNoRates: strangers of one network that claim the organization of a known peer use up neither its
// rate nor that of other strangers.
func TestStrangersUseNoRates(t *testing.T) {
	r, _ := newTestRig(t, nil)
	later, network := time.Now().Add(time.Minute), apitest.Networks[0] // later: no token comes back before the next message
	for i := range 3000 {
		r.b.quotas.strangers.Take(fmt.Sprintf("a%d@acme", i), rate.AddrSources(network.Addr(i)), later)
	}
	if _, ok := r.b.quotas.strangers.Take("more@other", rate.AddrSources(network.Addr(1)), later); ok {
		t.Error("one more stranger of the network has something left")
	}
	if _, ok := r.b.quotas.strangers.Take("newcomer@acme", rate.AddrSources(apitest.Newcomer), later); !ok {
		t.Error("a stranger from elsewhere has nothing left")
	}
	if code := r.code(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)); code != "" {
		t.Errorf("a known peer of the organization: %s", code)
	}
}

// TestStrangersAskForConsent: strangers' questions about consent leave room for those of known peers.
func TestStrangersAskForConsent(t *testing.T) {
	r, _ := newTestRig(t, nil)
	request := `{"action":"request","data_types":["email"],"purpose":"x","duration":"session"}`
	limited := false
	for i := range strangersConsentAsks + 1 {
		peer := fmt.Sprintf("s%d@many", i)
		limited = r.code(peer, r.draft(peer, message.OpConsent, request)) == message.CodeRateLimit
	}
	if code := r.code(cat, r.draft(cat, message.OpConsent, request)); !limited || code != "" {
		t.Errorf("the last stranger was limited: %v; a known peer: %q", limited, code)
	}
}

// TestStrangersTakeNoStreams: streams of strangers, and connections without a hello, leave room for known peers. No
// peer gets many streams.
func TestStrangersTakeNoStreams(t *testing.T) {
	s := newSockets()
	open := func(peer string, known bool) bool {
		c := new(websocket.Conn)
		s.all[c] = &socket{conn: c, hello: time.NewTimer(time.Hour)}
		ok := s.bind(c, peer, known)
		if !ok {
			delete(s.all, c)
		}
		return ok
	}
	bound := 0
	for i := range maxSockets {
		if open(fmt.Sprint("stranger", i), false) {
			bound++
		}
	}
	if bound != strangersSockets || !open("friend", true) {
		t.Errorf("%d strangers have streams, want %d, and a known peer finds room", bound, strangersSockets)
	}
	for range socketsPerPeer {
		open("other", true)
	}
	if open("other", true) {
		t.Errorf("a peer has more than %d streams", socketsPerPeer)
	}
}
