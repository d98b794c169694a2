package agentrelay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

var allOn = Extensions{Semantic: true, Voting: true, History: true}

// ask sends a command and returns the payload of what the relay answers.
func (a *agent) ask(kind, payload string) wire.Value {
	a.t.Helper()
	a.send(fmt.Sprintf(`{"to":["relay"],"type":"%s","ref":"ask","payload":%s}`, kind, payload))
	f := a.next()
	if f.GetStr("ref") != "ask" || f.GetStr("from") != relayID {
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

// Section 8: what is on stands in the welcome.
func TestAnnounced(t *testing.T) {
	s := newSite(t, RelayConfig{Extensions: Extensions{Voting: true, History: true}})
	w := s.welcome("alice")
	payload, _ := w.payload.Get("extensions")
	if string(payload.JSON()) != `["voting","history"]` {
		t.Errorf("extensions %s", payload.JSON())
	}
}

// AR-45, AR-46: history, search and replay show an agent what it could have received, and survive a restart.
func TestHistory(t *testing.T) {
	st := openStore(t)
	s := newSiteOn(t, st, RelayConfig{Extensions: Extensions{History: true}})
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
	check := func(s *site, a, b, c *agent) {
		t.Helper()
		if got := list(b.ask("command", `{"command":"history"}`), "messages", "from"); !slices.Equal(got, []string{"bbb", "aaa", "aaa", "aaa"}) {
			t.Errorf("history of bbb: %v", got)
		}
		if got := list(c.ask("command", `{"command":"history"}`), "messages", "payload"); !slices.Equal(got, []string{"calendar"}) {
			t.Errorf("history of ccc: %v", got)
		}
		found := b.ask("command", `{"command":"search","query":"GO calendar"}`)
		if got := list(found, "messages", "from"); !slices.Equal(got, []string{"aaa", "aaa", "bbb"}) {
			t.Errorf("search of bbb: %s", found.JSON())
		}
		if got := list(c.ask("command", `{"command":"search","query":"secret"}`), "messages", "from"); len(got) != 0 {
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
	first := list(rest, "messages", "id")[0]
	replay := b.ask("command", `{"command":"replay","since_message_id":"`+first+`"}`)
	if got := list(replay, "messages", "from"); !slices.Equal(got, []string{"aaa", "aaa", "bbb"}) {
		t.Errorf("replay: %s", replay.JSON())
	}
	for _, bad := range []string{`{"command":"replay"}`, `{"command":"search"}`, `{"command":"history","limit":0}`, `{"command":"history","limit":"x"}`,
		`{"command":"history","since":"yesterday"}`, `{"command":"search","query":"` + strings.Repeat("x", 1025) + `"}`} {
		if got := b.ask("command", bad).GetStr("code"); got != codeInvalid {
			t.Errorf("%.60s: %s", bad, got)
		}
	}
	for _, unknown := range []string{`{"command":"drop"}`, `null`, `"history"`, `[]`} {
		if got := b.ask("command", unknown).GetStr("code"); got != codeUnknown {
			t.Errorf("%s: %s", unknown, got)
		}
	}
	s.stop()
	s = newSiteOn(t, st, RelayConfig{Extensions: Extensions{History: true}})
	check(s, s.connectAs("aaa", a.token), s.connectAs("bbb", b.token), s.connectAs("ccc", c.token))
}

// Messages that come faster than the house is kept make room themselves.
func TestHistoryCrowded(t *testing.T) {
	h := &history{records: openStore(t).Records(), keep: defaultKeep, max: 5}
	for n := range 2 * sweepAtOnce {
		e := &entry{id: fmt.Sprint(n), from: "aaa", ts: time.Now().UnixMilli(), seq: uint64(n), raw: []byte(`{}`)}
		if err := h.append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if len(h.list) > h.max+sweepAtOnce {
			t.Fatalf("%d messages are in memory, want %d at most", len(h.list), h.max+sweepAtOnce)
		}
	}
	page, err := h.records.List(t.Context(), nsHistory, "", "", 2*sweepAtOnce, time.Now())
	if err != nil || len(page.Records) > h.max+sweepAtOnce {
		t.Errorf("%d messages are stored, %v", len(page.Records), err)
	}
}

// AR-46: who gets an id that somebody had before reads nothing of what was said to that one.
func TestHistoryOfAnotherHolder(t *testing.T) {
	st := openStore(t)
	s := newSiteOn(t, st, RelayConfig{MaxAgents: 2, Extensions: Extensions{History: true}})
	alice := s.join("alice")
	bob := &registration{ID: "bob", Token: hashToken("x"), Since: time.Now().Add(-keepUnused)}
	s.agents.mu.Lock()
	s.agents.put(bob)
	s.agents.mu.Unlock()
	alice.send(`{"to":["bob"],"payload":"for bob alone"}`)
	alice.quiet()
	if _, _, err := s.agents.register(t.Context(), registration{ID: "eve"}); err != nil { // bob makes way
		t.Fatal(err)
	}
	if err := s.agents.remove(t.Context(), "eve"); err != nil {
		t.Fatal(err)
	}
	if got := s.join("bob").ask("command", `{"command":"history"}`); len(list(got, "messages", "id")) != 0 {
		t.Errorf("who has the id now reads %s", got.JSON())
	}
}

// AR-45, AR-46: answers stay below 64 KB, and what is kept is bounded in number and age.
func TestHistoryBounded(t *testing.T) {
	s := newSite(t, RelayConfig{Extensions: Extensions{History: true, MaxMessages: 5}})
	a := s.join("aaa")
	for n := range 10 {
		a.send(fmt.Sprintf(`{"to":["aaa"],"payload":"%d%s"}`, n, strings.Repeat("x", 29<<10)))
		a.next()
	}
	a.send(`{"to":["relay"],"type":"command","ref":"ask","payload":{"command":"history"}}`)
	raw := a.raw()
	if len(raw) > MaxFrame || strings.Count(string(raw), `"from":"aaa"`) != 2 { // two fit
		t.Errorf("an answer of %d bytes: %.300s", len(raw), raw)
	}
	if err := s.history.sweep(t.Context(), time.Now()); err != nil || len(s.history.live(time.Now())) != 5 {
		t.Errorf("%d messages are kept, %v, want 5", len(s.history.live(time.Now())), err)
	}
	if page, err := s.store.Records().List(t.Context(), nsHistory, "", "", 100, time.Now()); err != nil || len(page.Records) != 5 {
		t.Errorf("%d messages are stored, %v, want 5", len(page.Records), err)
	}
	if n := len(s.history.live(time.Now().Add(8 * 24 * time.Hour))); n != 0 {
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

// AR-38: a query finds cards of the directory, connected agents and messages, never a foreign direct message; it says
// that it is lexical.
func TestQuery(t *testing.T) {
	var asked SearchQuery
	search := func(_ context.Context, q SearchQuery) ([]Found, error) {
		asked = q
		if q.Text == "broken" {
			return nil, errors.New("down")
		}
		return []Found{{"Cal", "calendars", []string{"calendar"}}}, nil
	}
	s := newSite(t, RelayConfig{Extensions: allOn, Search: search})
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
	if more, _ := got.Get("more"); len(list(got, "agents", "name")) != 1 || len(list(got, "messages", "id")) != 0 || string(more.JSON()) != "true" {
		t.Errorf("narrowed: %s", got.JSON())
	}
	if asked.Capability != "go" {
		t.Errorf("the directory was asked %+v", asked)
	}
	if got := a.ask("query", `{"query":"broken","scope":"agents"}`); len(list(got, "agents", "name")) != 0 {
		t.Errorf("without a directory: %s", got.JSON())
	}
	for _, bad := range []string{`null`, `7`, `""`, `{}`, `{"query":"x","scope":"all"}`, `{"query":"x","limit":0}`, `"` + strings.Repeat("x", 1025) + `"`} {
		if code := a.ask("query", bad).GetStr("code"); code != codeInvalid {
			t.Errorf("query %.40s: %q", bad, code)
		}
	}
	for _, cmd := range [][2]string{{"command", `{"command":"semantic_subscribe","query":"x","threshold":0.5}`}, {"semantic_subscribe", `{"query":"x"}`}} {
		if code := a.ask(cmd[0], cmd[1]).GetStr("code"); code != codeUnsupported {
			t.Errorf("%s: %q", cmd[0], code)
		}
	}
}

// AR-37: a narrow broadcast goes to whom it may concern; embeddings pass through.
func TestNarrow(t *testing.T) {
	s := newSite(t, RelayConfig{Extensions: allOn})
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

// AR-40 to AR-44: votes.
func TestVoting(t *testing.T) {
	st := openStore(t)
	s := newSiteOn(t, st, RelayConfig{Extensions: Extensions{Voting: true, History: true}})
	var all []*agent
	for _, id := range []string{"aaa", "bbb", "ccc", "ddd"} {
		a := s.join(id)
		a.send(`{"to":["nobody"],"payload":"here"}`) // counts for the quorum
		a.quiet()
		all = append(all, a)
	}
	a, b, c, d := all[0], all[1], all[2], all[3]
	propose := func() string {
		t.Helper()
		a.send(`{"to":["*"],"type":"proposal","payload":{"any":"thing"}}`)
		id := b.next().GetStr("id")
		c.next()
		d.next()
		return id
	}
	vote := func(x *agent, to, id string, approve bool) {
		x.send(fmt.Sprintf(`{"to":["%s"],"type":"vote","ref":"%s","payload":{"approve":%v,"weight":99}}`, to, id, approve))
		if to == "aaa" {
			if got := a.next(); got.GetStr("type") != "vote" {
				t.Fatalf("the proposer got %s", got.JSON())
			}
		} else {
			x.quiet()
		}
	}
	p := propose()
	if got := s.votes.get(p); got == nil || got.Quorum != 4 {
		t.Fatalf("proposal %+v, want quorum 4", got)
	}
	vote(b, "relay", p, false)
	vote(b, "relay", p, true) // the last one counts
	vote(c, "aaa", p, true)   // to the proposer
	if got := s.votes.get(p); len(got.Votes) != 2 || got.Status != "" {
		t.Errorf("after two of four: %+v", got)
	}
	d.send(fmt.Sprintf(`{"to":["relay"],"type":"vote","ref":"%s","payload":{"approve":true}}`, p))
	for _, x := range all {
		got := x.next()
		if payload, _ := got.Get("payload"); got.GetStr("type") != "vote_result" || got.GetStr("ref") != p || got.GetStr("from") != relayID ||
			string(payload.JSON()) != `{"status":"passed","votes":{"approve":3,"reject":0},"quorum":4}` {
			t.Errorf("%s got %s", x.id, got.JSON())
		}
		x.quiet() // exactly once
	}
	for ref, want := range map[string]string{p: codeClosed, "msg_unknown": codeNoProposal} {
		b.send(fmt.Sprintf(`{"to":["relay"],"type":"vote","ref":"%s","payload":{"approve":true}}`, ref))
		if got := b.next(); code(got) != want {
			t.Errorf("a vote on %s: %s, want %s", ref, got.JSON(), want)
		}
	}
	b.send(`{"to":["relay"],"type":"vote","ref":"` + p + `","payload":{"approve":"yes"}}`)
	if got := b.next(); code(got) != codeInvalid {
		t.Errorf("a vote of no kind: %s", got.JSON())
	}
	// Undecided over a restart, rejected by time, told once.
	tie := propose()
	vote(b, "relay", tie, true)
	vote(c, "relay", tie, false)
	s.stop()
	s = newSiteOn(t, st, RelayConfig{Extensions: Extensions{Voting: true, History: true}})
	b2 := s.connectAs("bbb", b.token)
	if got := s.votes.get(tie); len(got.Votes) != 2 || got.Status != "" {
		t.Fatalf("after a restart: %+v", got)
	}
	for range 2 {
		s.endVotes(t.Context(), time.Now().Add(8*24*time.Hour))
	}
	if got := b2.next(); got.GetStr("ref") != tie || !strings.Contains(string(got.JSON()), `"status":"rejected"`) {
		t.Errorf("the result of a tie: %s", got.JSON())
	}
	b2.quiet()
	if got := list(b2.ask("command", `{"command":"history"}`), "messages", "type"); len(got) == 0 || got[0] != "vote_result" {
		t.Errorf("history %v", got)
	}
}

// AR-44: proposals are bounded for each agent.
func TestProposalsBounded(t *testing.T) {
	s := newSite(t, RelayConfig{Extensions: Extensions{Voting: true}})
	a := s.join("aaa")
	for range maxProposalsADay {
		a.send(`{"to":["*"],"type":"proposal","payload":1}`)
		a.quiet()
	}
	a.send(`{"to":["*"],"type":"proposal","payload":1}`)
	if got := a.next(); code(got) != codeRate {
		t.Errorf("the sixth proposal: %s", got.JSON())
	}
}

// What is kept of votes is bounded: the one that closed first makes way, in the store too.
func TestVotesBounded(t *testing.T) {
	st := openStore(t)
	var changes []store.Change
	closed := time.Now().Add(-time.Hour)
	for n := range maxVotes {
		p := &proposal{ID: fmt.Sprintf("msg_%04d", n), By: "bbb", At: closed, Status: "passed", Closed: closed.Add(time.Duration(-n) * time.Second)}
		if n == 0 {
			p.Status, p.At = "", time.Now() // open: it stays
		}
		changes = append(changes, p.change())
	}
	if err := st.Records().Apply(t.Context(), changes, time.Now()); err != nil {
		t.Fatal(err)
	}
	s := newSiteOn(t, st, RelayConfig{Extensions: Extensions{Voting: true}})
	a := s.join("aaa")
	a.send(`{"to":["*"],"type":"proposal","payload":1}`)
	a.quiet()
	check := func(s *site) {
		t.Helper()
		last := fmt.Sprintf("msg_%04d", maxVotes-1)
		if n := len(s.votes.all); n != maxVotes || s.votes.get(last) != nil || s.votes.get("msg_0000") == nil {
			t.Errorf("%d votes are kept, want %d; the oldest: %v", n, maxVotes, s.votes.get(last))
		}
	}
	check(s)
	s.stop()
	check(newSiteOn(t, st, RelayConfig{Extensions: Extensions{Voting: true}}))
}

// AR-43: when a vote ends.
func TestOutcome(t *testing.T) {
	for _, tt := range []struct {
		approve, reject, quorum int
		after                   time.Duration
		want                    string
	}{
		{1, 0, 2, 0, ""}, {2, 0, 2, 0, "passed"}, {0, 2, 2, 0, "rejected"}, {2, 2, 4, 0, ""}, {3, 0, 4, 0, "passed"}, {3, 3, 4, 0, "rejected"},
		{2, 1, 5, 0, ""}, {3, 0, 5, 0, "passed"}, {2, 0, 5, 7 * 24 * time.Hour, "rejected"}, {0, 0, 2, 7*24*time.Hour - 1, ""},
	} {
		p := &proposal{At: time.Now(), Quorum: tt.quorum, Votes: map[string]bool{}}
		for i := range tt.approve + tt.reject {
			p.Votes[fmt.Sprint(i)] = i < tt.approve
		}
		if got := p.outcome(p.At.Add(tt.after), defaultVoteFor); got != tt.want {
			t.Errorf("%+v = %q", tt, got)
		}
	}
}
