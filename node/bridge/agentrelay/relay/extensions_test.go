package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

var allOn = Extensions{Semantic: true, Voting: true, History: true}

// ask sends a command and returns the payload of the relay's answer.
func (a *agent) ask(kind, payload string) wire.Value {
	a.t.Helper()
	a.send(fmt.Sprintf(`{"to":["relay"],"type":"%s","ref":"ask","payload":%s}`, kind, payload))
	f := a.next()
	if f.GetStr("ref") != "ask" || f.GetStr("from") != frame.RelayID {
		a.t.Fatalf("%s %s was answered with %s", kind, payload, f.JSON())
	}
	p, _ := f.Get("payload")
	return p
}

// list returns one text of each message in an answer.
func list(v wire.Value, members, key string) []string {
	out := []string{}
	all, _ := v.Get(members)
	for m := range all.Elems() {
		out = append(out, m.GetStr(key))
	}
	return out
}

// TestAnnounced: the welcome lists the extensions that are on (section 8).
func TestAnnounced(t *testing.T) {
	s := newTestRelay(t, Config{Extensions: Extensions{Voting: true, History: true}})
	welcome, err := wire.ParseForeign(s.newWelcome("alice"), frame.MaxDepth, frame.MaxValues)
	if err != nil {
		t.Fatal(err)
	}
	payload, _ := welcome.Get("payload")
	if on, _ := payload.Get("extensions"); string(on.JSON()) != `["voting","history"]` {
		t.Errorf("extensions %s", on.JSON())
	}
}

// TestHistory: the command history and the messages of a query show an agent what it could have received, and survive a
// restart (AR-38, AR-45, AR-46).
func TestHistory(t *testing.T) {
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{Extensions: allOn})
	a, b := s.join("aaa"), s.join("bbb")
	a.send(`{"to":["*"],"payload":"Calendar sync with Go"}`)
	b.next()
	a.send(`{"to":["bbb"],"type":"thought","payload":{"text":"a secret about go and calendar"}}`)
	b.next()
	a.send(`{"to":["*"],"payload":"not kept","agentmesh_nostore":true}`)
	b.next()
	a.send(`{"to":["*"],"type":"encrypted","payload":{"encrypted_data":"calendar"}}`)
	b.next()
	c := s.join("ccc") // registered after all that
	b.send(`{"to":["*"],"payload":"calendar"}`)
	a.next()
	c.next()
	check := func(s *testRelay, a, b, c *agent) {
		t.Helper()
		if got := list(b.ask("command", `{"command":"history"}`), "messages", "from"); !slices.Equal(got, []string{"bbb", "aaa", "aaa", "aaa"}) {
			t.Errorf("history of bbb: %v", got)
		}
		if got := list(c.ask("command", `{"command":"history"}`), "messages", "payload"); !slices.Equal(got, []string{"calendar"}) {
			t.Errorf("history of ccc: %v", got)
		}
		found := b.ask("query", `{"query":"GO calendar","scope":"messages"}`)
		if got := list(found, "messages", "from"); !slices.Equal(got, []string{"aaa", "aaa", "bbb"}) {
			t.Errorf("search of bbb: %s", found.JSON())
		}
		if got := list(c.ask("query", `{"query":"secret","scope":"messages"}`), "messages", "from"); len(got) != 0 {
			t.Errorf("ccc finds a message that was not for it: %v", got)
		}
	}
	check(s, a, b, c)
	page := b.ask("command", `{"command":"history","limit":3}`)
	if more, _ := page.Get("more"); len(list(page, "messages", "id")) != 3 || string(more.JSON()) != "true" {
		t.Errorf("a page: %s", page.JSON())
	}
	rest := b.ask("command", `{"command":"history","limit":3,"after":"`+page.GetStr("next")+`"}`)
	if got := list(rest, "messages", "payload"); !slices.Equal(got, []string{"Calendar sync with Go"}) {
		t.Errorf("the next page: %s", rest.JSON())
	}
	for _, bad := range []string{`{"command":"history","limit":0}`, `{"command":"history","limit":"x"}`, `{"command":"history","since":"yesterday"}`} {
		if got := b.ask("command", bad).GetStr("code"); got != frame.CodeInvalid {
			t.Errorf("%.60s: %s", bad, got)
		}
	}
	for _, other := range []string{`{"command":"search","query":"go"}`, `{"command":"replay","since_message_id":"msg_1"}`, `{"command":"drop"}`, `null`, `"history"`, `[]`} {
		if got := b.ask("command", other).GetStr("code"); got != frame.CodeUnsupported {
			t.Errorf("%s: %s", other, got)
		}
	}
	s.stop()
	s = newTestRelayOn(t, st, Config{Extensions: allOn})
	check(s, s.connectAs("aaa", a.token), s.connectAs("bbb", b.token), s.connectAs("ccc", c.token))
}

// TestHistoryCrowded: each message makes room for itself.
func TestHistoryCrowded(t *testing.T) {
	h := &history{records: openStore(t).Records(), keep: defaultKeep, max: 5}
	for n := range 2 * maxTrimmed {
		e := &entry{id: fmt.Sprint(n), from: "aaa", ts: time.Now().UnixMilli(), seq: uint64(n), raw: []byte(`{}`)}
		if err := h.append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if len(h.list) > h.max+1 {
			t.Fatalf("%d messages are in memory, want %d at most", len(h.list), h.max+1)
		}
	}
	page, err := h.records.List(t.Context(), nsHistory, "", "", 2*maxTrimmed, time.Now())
	if err != nil || len(page.Records) > h.max+1 {
		t.Errorf("%d messages are stored, %v", len(page.Records), err)
	}
}

// TestHistoryOfAnotherHolder: an agent that gets the id of an earlier agent cannot read the messages to that agent
// (AR-46).
func TestHistoryOfAnotherHolder(t *testing.T) {
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{MaxAgents: 2, Extensions: Extensions{History: true}})
	alice := s.join("alice")
	s.register("bob")
	alice.send(`{"to":["bob"],"payload":"for bob alone"}`)
	alice.quiet()
	for _, id := range []string{"bob", "eve", "mallory"} { // the last removal takes the place of the first one
		if id != "bob" {
			s.register(id)
		}
		if err := s.agents.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.join("bob").ask("command", `{"command":"history"}`); len(list(got, "messages", "id")) != 0 {
		t.Errorf("the new holder of the id reads %s", got.JSON())
	}
}

// TestHistoryBounded: answers stay below 64 KB, and the history is bounded in number and age (AR-45, AR-46).
func TestHistoryBounded(t *testing.T) {
	s := newTestRelay(t, Config{Extensions: Extensions{History: true, MaxMessages: 5}})
	a := s.join("aaa")
	for n := range 10 {
		a.send(fmt.Sprintf(`{"to":["aaa"],"payload":"%d%s"}`, n, strings.Repeat("x", 29<<10)))
		a.next()
	}
	a.send(`{"to":["relay"],"type":"command","ref":"ask","payload":{"command":"history"}}`)
	raw := a.raw()
	if len(raw) > frame.MaxSize || strings.Count(string(raw), `"from":"aaa"`) != 2 { // two fit
		t.Errorf("an answer of %d bytes: %.300s", len(raw), raw)
	}
	if err := s.history.sweep(t.Context(), time.Now()); err != nil || len(s.history.snapshot(time.Now())) != 5 {
		t.Errorf("%d messages are kept, %v, want 5", len(s.history.snapshot(time.Now())), err)
	}
	if page, err := s.store.Records().List(t.Context(), nsHistory, "", "", 100, time.Now()); err != nil || len(page.Records) != 5 {
		t.Errorf("%d messages are stored, %v, want 5", len(page.Records), err)
	}
	if n := len(s.history.snapshot(time.Now().Add(8 * 24 * time.Hour))); n != 0 {
		t.Errorf("%d messages are kept after eight days", n)
	}
	if err := s.history.sweep(t.Context(), time.Now().Add(8*24*time.Hour)); err != nil || s.history.bytes != 0 {
		t.Errorf("after the sweep %d bytes, %v", s.history.bytes, err)
	}
	a.send(`{"to":["aaa"],"payload":"` + strings.Repeat("x", 65_400) + `"}`)
	a.next()
	if got := a.ask("command", `{"command":"history"}`); !strings.Contains(string(got.JSON()), `"truncated":true`) {
		t.Errorf("a message that fits no answer: %.300s", got.JSON())
	}
}

// TestHistoryShowsAny: an answer to "history" shows at least its first message, whatever the size of that message.
func TestHistoryShowsAny(t *testing.T) {
	for size := roomForList - 3; size < roomForList+3; size++ {
		list := []*entry{{id: "m", from: "aaa", raw: []byte(`{"from":"aaa","payload":"` + strings.Repeat("x", size-27) + `"}`)}}
		if n := len(list[0].raw); n != size {
			t.Fatalf("the message has %d bytes, want %d", n, size)
		}
		if shown := fitFrames(list, 5, roomForList); len(shown) != 1 {
			t.Errorf("a message of %d bytes: %d shown", size, len(shown))
		}
	}
}

// TestQuery: a query finds cards of the directory, connected agents and messages, but never a direct message between
// others. The answer says that the ranking is lexical (AR-38).
func TestQuery(t *testing.T) {
	var asked client.Query
	search := func(_ context.Context, q client.Query) ([]wire.Card, error) {
		asked = q
		if q.Text == "broken" {
			return nil, errors.New("down")
		}
		if q.Text == "crowded" {
			return make([]wire.Card, q.Limit), nil
		}
		return []wire.Card{{Name: "Cal", Description: "calendars", Capabilities: []string{"calendar"}}}, nil
	}
	s := newTestRelay(t, Config{Extensions: allOn, Search: search})
	a, b, c := s.join("aaa"), s.join("bbb"), s.join("ccc")
	b.send(`{"to":["relay-not","nobody"],"type":"discovery","payload":{"skills":["Calendar","go"],"available":true}}`)
	b.send(`{"to":["ccc"],"payload":"the calendar is secret"}`)
	c.next()
	b.send(`{"to":["*"],"payload":"my calendar"}`)
	a.next()
	c.next()
	got := a.ask("query", `"calendar"`)
	if !slices.Equal(list(got, "agents", "source"), []string{"directory", "relay"}) || !slices.Equal(list(got, "messages", "payload"), []string{"my calendar"}) ||
		got.GetStr("ranking") != "lexical" || got.GetStr("query") != "calendar" {
		t.Errorf("query_result %s", got.JSON())
	}
	if ids := list(got, "agents", "agent_id"); ids[1] != "bbb" {
		t.Errorf("agents %v", ids)
	}
	got = a.ask("query", `{"query":"calendar","scope":"agents","capability":"go","limit":1}`)
	if len(list(got, "agents", "name")) != 1 || len(list(got, "messages", "id")) != 0 || !isSet(got, "more") {
		t.Errorf("narrowed: %s", got.JSON())
	}
	if !slices.Equal(asked.Capabilities, []string{"go"}) {
		t.Errorf("the directory was asked %+v", asked)
	}
	if got := a.ask("query", `{"query":"broken","scope":"agents"}`); len(list(got, "agents", "name")) != 0 || !isSet(got, "more") {
		t.Errorf("without a directory: %s", got.JSON())
	}
	if got := a.ask("query", `{"query":"crowded","scope":"agents"}`); len(list(got, "agents", "name")) != maxResults || !isSet(got, "more") {
		t.Errorf("with more cards than an answer may have: %s", got.JSON())
	}
	for s.searches.Take(time.Now()) == 0 {
	}
	got = a.ask("query", `{"query":"calendar","scope":"agents"}`)
	if !slices.Equal(list(got, "agents", "source"), []string{"relay"}) || !isSet(got, "more") {
		t.Errorf("when the directory was asked too often: %s", got.JSON())
	}
	for _, bad := range []string{`null`, `7`, `""`, `{}`, `{"query":"x","scope":"all"}`, `{"query":"x","limit":0}`, `"` + strings.Repeat("x", 1025) + `"`} {
		if code := a.ask("query", bad).GetStr("code"); code != frame.CodeInvalid {
			t.Errorf("query %.40s: %q", bad, code)
		}
	}
	for _, cmd := range [][2]string{{"command", `{"command":"semantic_subscribe","query":"x","threshold":0.5}`}, {"semantic_subscribe", `{"query":"x"}`}} {
		if code := a.ask(cmd[0], cmd[1]).GetStr("code"); code != frame.CodeUnsupported {
			t.Errorf("%s: %q", cmd[0], code)
		}
	}
}

// isSet reports whether a member is true.
func isSet(v wire.Value, member string) bool {
	m, _ := v.Get(member)
	return string(m.JSON()) == "true"
}

// TestNarrow: a narrow broadcast goes only to agents whose keywords match or who subscribed; embeddings pass through
// (AR-37).
func TestNarrow(t *testing.T) {
	s := newTestRelay(t, Config{Extensions: allOn})
	a, skilled, filter, subscriber, other := s.join("aaa"), s.join("skilled"), s.join("filter"), s.join("subscriber"), s.join("other")
	skilled.send(`{"to":["nobody"],"type":"discovery","payload":{"skills":["Go"]}}`)
	skilled.quiet()
	filter.send(`{"to":["relay"],"type":"subscribe","payload":{"keywords":["GO"]}}`)
	filter.next()
	subscriber.send(`{"to":["relay"],"type":"subscribe","payload":{"agents":["aaa"]}}`)
	subscriber.next()
	a.send(`{"to":["*"],"narrow":true,"keywords":["go"],"embedding":[0.1,-2e-3],"payload":1}`)
	for _, x := range []*agent{skilled, filter, subscriber} {
		if got := x.next(); !strings.Contains(string(got.JSON()), `"embedding":[0.1,-2e-3]`) {
			t.Errorf("%s got %s", x.id, got.JSON())
		}
	}
	other.quiet()
	a.send(`{"to":["*"],"keywords":["go"],"payload":1}`)
	other.next()
}

// TestHistoryOrder: of two messages of the same millisecond a query shows the newer one first, and a message that
// comes during a sweep is counted right, even if it is older than the others because the clock was set back.
func TestHistoryOrder(t *testing.T) {
	st := openStore(t)
	s, err := New(t.Context(), Config{Records: st.Records(), Registration: credential.Open, Extensions: Extensions{History: true, MaxMessages: 2}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	message := func(ts int64, seq uint64, text string) *entry {
		return &entry{id: text, ts: ts, seq: seq, broadcast: true, raw: []byte(text), text: "word " + text}
	}
	for seq, text := range []string{"first", "second", "third"} {
		s.history.insert(message(now.UnixMilli(), uint64(seq), text))
	}
	var ids []string
	for _, e := range s.history.search(&member{Account: credential.Account{ID: "aaa"}}, "word", 10, now) {
		ids = append(ids, e.id)
	}
	if want := []string{"third", "second"}; !slices.Equal(ids, want) {
		t.Errorf("the search found %v, want %v", ids, want)
	}
	inserted := false
	s.history.records = hookedRecords{st.Records(), func() error {
		if !inserted {
			inserted = true
			s.history.insert(message(now.UnixMilli()-1, 3, "late"))
		}
		return nil
	}}
	if err := s.history.sweep(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if n := len("second") + len("third"); len(s.history.list) != 2 || s.history.bytes != n {
		t.Errorf("the history has %d messages of %d bytes, want 2 of %d", len(s.history.list), s.history.bytes, n)
	}
}

// TestHistoryAfterClockStep: an agent that registers after the clock was set back sees the messages since then, and
// none from before (AR-46), also after a restart.
func TestHistoryAfterClockStep(t *testing.T) {
	cfg := Config{Extensions: Extensions{History: true}}
	s := newTestRelay(t, cfg)
	a := s.join("aaa")
	s.stamps.mu.Lock()
	s.stamps.last = time.Now().Add(time.Hour).UnixMilli() // as if the clock had been an hour ahead
	s.stamps.mu.Unlock()
	a.send(`{"to":["*"],"payload":"before"}`)
	a.quiet()
	b := s.join("bbb")
	a.send(`{"to":["*"],"payload":"after"}`)
	id := b.next().GetStr("id")
	if got := b.ask("command", `{"command":"history"}`); !slices.Equal(list(got, "messages", "id"), []string{id}) {
		t.Errorf("the new agent reads %s, want the message %s", got.JSON(), id)
	}
	s.stop()
	s = newTestRelayOn(t, s.store, cfg)
	c, d := s.join("ccc"), s.join("ddd")
	c.send(`{"to":["*"],"payload":"after the restart"}`)
	id = d.next().GetStr("id")
	for _, who := range []*agent{c, d} {
		if got := who.ask("command", `{"command":"history"}`); !slices.Equal(list(got, "messages", "id"), []string{id}) {
			t.Errorf("an agent that came after a restart reads %s, want the message %s", got.JSON(), id)
		}
	}
	if last := s.history.list[len(s.history.list)-1]; last.id != id {
		t.Errorf("the newest message of the history is %s, want %s", last.id, id)
	}
}
