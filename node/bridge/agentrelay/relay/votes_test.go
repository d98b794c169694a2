package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/store"
)

func stored(t *testing.T, r *Relay, id string) proposal {
	t.Helper()
	p, err := r.proposal(t.Context(), id, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func countVotes(t *testing.T, r *Relay) int {
	t.Helper()
	list, err := r.proposals(t.Context(), "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestVoting checks proposals, votes and results (AR-40 to AR-44).
func TestVoting(t *testing.T) {
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{Extensions: allOn})
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
	if got := stored(t, s.Relay, p); got.Quorum != 4 {
		t.Fatalf("proposal %+v, want quorum 4", got)
	}
	vote(b, "relay", p, false)
	vote(b, "relay", p, true) // the last one counts
	vote(c, "aaa", p, true)   // to the proposer
	if got := stored(t, s.Relay, p); len(got.Votes) != 2 || got.Status != "" {
		t.Errorf("after two of four: %+v", got)
	}
	d.send(fmt.Sprintf(`{"to":["relay"],"type":"vote","ref":"%s","payload":{"approve":true}}`, p))
	for _, x := range all {
		got := x.next()
		if payload, _ := got.Get("payload"); got.GetStr("type") != "vote_result" || got.GetStr("ref") != p || got.GetStr("from") != frame.RelayID ||
			string(payload.JSON()) != `{"status":"passed","votes":{"approve":3,"reject":0},"quorum":4}` {
			t.Errorf("%s got %s", x.id, got.JSON())
		}
		x.quiet() // exactly once
	}
	for ref, want := range map[string]string{p: frame.CodeClosed, "msg_unknown": frame.CodeNoProposal} {
		b.send(fmt.Sprintf(`{"to":["relay"],"type":"vote","ref":"%s","payload":{"approve":true}}`, ref))
		if got := b.next(); code(got) != want {
			t.Errorf("a vote on %s: %s, want %s", ref, got.JSON(), want)
		}
	}
	b.send(`{"to":["relay"],"type":"vote","ref":"` + p + `","payload":{"approve":"yes"}}`)
	if got := b.next(); code(got) != frame.CodeInvalid {
		t.Errorf("a vote of no kind: %s", got.JSON())
	}
	// An undecided vote survives a restart, time rejects it, and the relay announces the result once.
	tie := propose()
	vote(b, "relay", tie, true)
	vote(c, "relay", tie, false)
	s.stop()
	s = newTestRelayOn(t, st, Config{Extensions: allOn})
	b2 := s.connectAs("bbb", b.token)
	if got := stored(t, s.Relay, tie); len(got.Votes) != 2 || got.Status != "" {
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
	if got := list(b2.ask("query", `{"query":"rejected","scope":"messages"}`), "messages", "type"); len(got) != 1 || got[0] != "vote_result" {
		t.Errorf("a search for the status of a result finds %v", got)
	}
}

// TestVoteEndsWithListeners: a relay that was not running when a vote ended announces the result after its agents have had
// time to connect again.
func TestVoteEndsWithListeners(t *testing.T) {
	st := openStore(t)
	ended := &proposal{ID: "msg_ended", By: "aaa", At: time.Now().Add(-8 * 24 * time.Hour), Quorum: 2}
	if err := st.Records().Apply(t.Context(), []store.Change{ended.change()}, time.Now()); err != nil {
		t.Fatal(err)
	}
	s := newTestRelayOn(t, st, Config{Extensions: Extensions{Voting: true}})
	a := s.join("aaa")
	a.quiet()
	s.maintain(t.Context())
	if got := a.next(); got.GetStr("type") != "vote_result" || got.GetStr("ref") != "msg_ended" {
		t.Errorf("the agent got %s", got.JSON())
	}
}

// TestProposalsBounded: an agent may open only so many proposals a day (AR-44).
func TestProposalsBounded(t *testing.T) {
	s := newTestRelay(t, Config{Extensions: Extensions{Voting: true}})
	a := s.join("aaa")
	for range maxProposalsADay {
		a.send(`{"to":["*"],"type":"proposal","payload":1}`)
		a.quiet()
	}
	a.send(`{"to":["*"],"type":"proposal","payload":1}`)
	if got := a.next(); code(got) != frame.CodeRate {
		t.Errorf("the sixth proposal: %s", got.JSON())
	}
}

// TestVotesBounded: the number of stored votes is bounded. The vote that closed first is dropped, in the store too.
func TestVotesBounded(t *testing.T) {
	st := openStore(t)
	var changes []store.Change
	closed := time.Now().Add(-time.Hour)
	for n := range maxVotes {
		p := &proposal{ID: fmt.Sprintf("msg_%04d", n), By: "bbb", At: closed, Status: "passed", Closed: closed.Add(time.Duration(-n) * time.Second)}
		if n == 0 {
			p.Status, p.At = "", time.Now() // an open vote stays
		}
		changes = append(changes, p.change())
	}
	if err := st.Records().Apply(t.Context(), changes, time.Now()); err != nil {
		t.Fatal(err)
	}
	s := newTestRelayOn(t, st, Config{Extensions: Extensions{Voting: true}})
	a := s.join("aaa")
	a.send(`{"to":["*"],"type":"proposal","payload":1}`)
	a.quiet()
	check := func(s *testRelay) {
		t.Helper()
		oldest := stored(t, s.Relay, fmt.Sprintf("msg_%04d", maxVotes-1))
		if n := countVotes(t, s.Relay); n != maxVotes || oldest.By != "" || stored(t, s.Relay, "msg_0000").By == "" {
			t.Errorf("%d votes are kept, want %d; the oldest: %v", n, maxVotes, oldest)
		}
	}
	check(s)
	s.stop()
	check(newTestRelayOn(t, st, Config{Extensions: Extensions{Voting: true}}))
}

// TestOutcome checks when a vote ends (AR-43).
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
		if got := p.outcome(p.At.Add(tt.after), defaultVoteDuration); got != tt.want {
			t.Errorf("%+v = %q", tt, got)
		}
	}
}

// TestProposalNeedsItsHistory: a proposal that cannot go into the history opens no vote, and its sender gets an error.
func TestProposalNeedsItsHistory(t *testing.T) {
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{Extensions: allOn})
	a, b := s.join("aaa"), s.join("bbb")
	s.history.records = hookedRecords{st.Records(), func() error { return errors.New("the disk is full") }}
	a.send(`{"to":["*"],"type":"proposal","payload":{}}`)
	if got := a.next(); code(got) != frame.CodeUnavailable {
		t.Errorf("the proposer got %s, want %s", got.JSON(), frame.CodeUnavailable)
	}
	if n := countVotes(t, s.Relay); n != 0 {
		t.Errorf("%d votes are open about a proposal that nobody got", n)
	}
	s.history.records = st.Records()
	a.send(`{"to":["*"],"type":"proposal","payload":{}}`)
	id := b.next().GetStr("id")
	if list := s.history.snapshot(time.Now()); countVotes(t, s.Relay) != 1 || len(list) != 1 || list[0].id != id {
		t.Errorf("%d votes are open, and %d messages are in the history; want one of each", countVotes(t, s.Relay), len(list))
	}
}
