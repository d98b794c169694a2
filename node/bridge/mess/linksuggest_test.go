package mess

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// remoteWork is a node whose requests are carried out elsewhere.
type remoteWork struct {
	t        *testing.T
	home     *meshNode
	away     *lab // has the executors bob and carol
	who      string
	send     func(here string) // sends a thread that is not sent by itself
	wakePoll func()
}

// elsewhere returns the ways there: a link over REST, and the mesh.
func elsewhere(t *testing.T) map[string]func(t *testing.T) *remoteWork {
	return map[string]func(t *testing.T) *remoteWork{
		"link": func(t *testing.T) *remoteWork {
			a := newForeignLink(t, nil)
			a.register("carol")
			send := func(here string) {
				a.home.sendThrough(here)
			}
			return &remoteWork{t: t, home: a.home, away: a.lab, who: thread.OwnerID, send: send, wakePoll: a.wakePoll}
		},
		"mesh": func(t *testing.T) *remoteWork {
			home, away := pair(t, acl.Open)
			away.executor("carol")
			return &remoteWork{t: t, home: home, away: away.lab, who: "client", send: func(string) {}, wakePoll: func() {}}
		},
	}
}

func (a *remoteWork) ask(intent string) (here, there string) {
	a.t.Helper()
	here = a.home.request(a.who, "{id: "+intent+", intent: "+intent+"}")
	a.send(here)
	away := &meshNode{lab: a.away}
	return here, away.waitThread(intent)
}

func (a *remoteWork) post(who, block string) {
	a.t.Helper()
	a.away.do(who, block)
	a.wakePoll()
}

// waitSuggestion waits for a suggestion here that can be answered by its id.
func (a *remoteWork) waitSuggestion(here, id string) {
	a.t.Helper()
	eventually(a.t, "the suggestion "+id, func() bool {
		th := a.home.thread(here)
		_, ok := a.home.Resolve(a.t.Context(), exchange.Actor{ID: th.Requester}, id)
		return ok && slices.ContainsFunc(th.Suggestions, func(s thread.Suggestion) bool { return s.ID == id })
	})
}

func (a *remoteWork) waitDecision(there, id, want string) {
	a.t.Helper()
	eventually(a.t, "the word about "+id+" over there", func() bool {
		return slices.ContainsFunc(a.away.thread(there).Suggestions, func(s thread.Suggestion) bool { return s.ID == id && s.Decided == want })
	})
}

func (a *remoteWork) threads() int {
	a.t.Helper()
	page, err := a.home.List(a.t.Context(), exchange.Owner("test"), "", "", 100)
	if err != nil {
		a.t.Fatal(err)
	}
	return len(page.Threads)
}

// TestForeignSuggestions: a suggestion of a foreign executor is carried out there, and our thread follows the thread
// there. The requester's decision is about the suggestion that it names, whatever was suggested later.
func TestForeignSuggestions(t *testing.T) {
	t.Parallel()
	kinds := map[string]struct {
		proposed string
		accepted func(t *testing.T, a *remoteWork, here, there, other string, claimed bool)
	}{
		"delegate": {"{executor: carol}", func(t *testing.T, a *remoteWork, here, there, _ string, _ bool) {
			goesOn := a.away.thread(there).Successors[0]
			a.home.waitSuccessor(here, goesOn)
			a.post("carol", "- status: {re: "+goesOn+", code: completed}\n- response: {re: "+goesOn+", content: [wet]}")
			a.home.waitStatus(here, thread.Completed)
		}},
		"split": {"[roses, lawn]", func(t *testing.T, a *remoteWork, here, there, _ string, _ bool) {
			if th := a.home.waitStatus(here, thread.Superseded); len(th.Successors) != 0 {
				t.Errorf("successors = %v", th.Successors)
			}
			for _, part := range a.away.thread(there).Successors {
				if text := a.home.allText(here); !strings.Contains(text, part) || !strings.Contains(text, "not followed") {
					t.Errorf("it says nothing of %s: %s", part, text)
				}
				a.post("bob", "- status: {re: "+part+", code: claimed}")
			}
			a.home.want(here, thread.Superseded)
		}},
		"merge": {"{combined_intent: both}", func(t *testing.T, a *remoteWork, here, there, other string, _ bool) {
			a.home.waitStatus(here, thread.Superseded)
			a.home.waitStatus(other, thread.Superseded)
			for _, ref := range []string{here, other} {
				if text := a.home.allText(ref); !strings.Contains(text, a.away.thread(there).Successors[0]) {
					t.Errorf("it says %s", text)
				}
			}
		}},
		"defer": {"{until: 2h}", func(t *testing.T, a *remoteWork, here, there, _ string, claimed bool) {
			if th := a.home.waitStatus(here, thread.Waiting); (th.Holder != "") != claimed {
				t.Errorf("it is held by %q", th.Holder)
			}
			if text := a.home.allText(here); !strings.Contains(text, "available_at") {
				t.Errorf("it says %s", text)
			}
			if !claimed {
				a.post(thread.OwnerID, "- status: {re: "+there+", code: received}")
				a.home.waitStatus(here, thread.Received)
				a.post("carol", "- status: {re: "+there+", code: claimed}")
				a.home.waitStatus(here, thread.Claimed)
			}
		}},
		"alternative": {"{intent: pray for rain}", func(t *testing.T, a *remoteWork, here, there, _ string, claimed bool) {
			want := thread.Received
			if claimed {
				want = thread.Claimed
			}
			a.home.want(here, want)
			a.post("bob", "- suggestion: {id: s3, type: alternative, re: "+there+", reason: another}")
			a.waitSuggestion(here, "s3")
		}},
	}
	for way, begin := range elsewhere(t) {
		for kind, c := range kinds {
			for _, claimed := range []bool{false, true} {
				name := way + " " + kind
				if claimed {
					name += " of who has it"
				}
				start := func(t *testing.T) (a *remoteWork, here, there, other string) {
					a = begin(t)
					here, there = a.ask("water")
					re, threads := there, []string{here}
					if kind == "merge" {
						var second string
						other, second = a.ask("weed")
						re, threads = "["+there+", "+second+"]", append(threads, other)
					}
					if claimed {
						a.post("bob", "- status: {re: "+there+", code: claimed}")
						a.home.waitStatus(here, thread.Claimed)
					}
					if way == "link" { // is another executor
						a.home.executor("carol")
					}
					a.post("bob", "- suggestion: {id: s1, type: "+kind+", re: "+re+", proposed: "+c.proposed+", reason: better so}\n"+
						"- suggestion: {id: s2, type: alternative, re: "+there+", reason: why not}")
					for _, ref := range threads {
						a.waitSuggestion(ref, "s1")
					}
					a.waitSuggestion(here, "s2")
					return a, here, there, other
				}
				t.Run(name+", yes", func(t *testing.T) {
					a, here, there, other := start(t)
					n := a.threads()
					a.home.do(a.who, "- reply: {re: s1, accept: true}")
					if got := a.threads(); got != n {
						t.Errorf("%d threads were opened here", got-n)
					}
					a.wakePoll()
					a.waitDecision(there, "s1", "accepted")
					a.wakePoll()
					c.accepted(t, a, here, there, other, claimed)
					a.waitDecision(there, "s2", "")
					status := http.StatusNotFound
					if kind == "merge" { // the suggestion stays in the other thread, which has ended
						status = http.StatusConflict
					}
					a.home.refuse(status, a.who, "- reply: {re: s1, accept: true}")
				})
				t.Run(name+", no", func(t *testing.T) {
					a, here, there, _ := start(t)
					was := a.home.thread(here).Status
					a.home.do(a.who, "- reply: {re: s1, accept: false, reason: as I said}")
					a.waitDecision(there, "s1", "refused")
					a.waitDecision(there, "s2", "")
					a.home.want(here, was)
					a.away.want(there, was)
				})
			}
		}
	}
}

// TestSuggestionsInADirectory: in a directory, the decision is written with the id of the suggestion, so that any
// participant can carry it out.
func TestSuggestionsInADirectory(t *testing.T) {
	s := newSharedFolder(t, false, nil)
	here, there := s.request("{id: saw, intent: saw the log}")
	a := &remoteWork{t: t, home: s.home}
	s.say("bob", there, "- suggestion: {id: s1, type: delegate, re: x, proposed: carol}\n- suggestion: {id: s2, type: defer, re: x, proposed: when it is dry}")
	a.waitSuggestion(here, "s2") // a suggestion that we could not carry out arrives too
	s.home.do(thread.OwnerID, "- reply: {re: s1, accept: true}\n- reply: {re: s2, accept: false}")
	eventually(t, "the words in the directory", func() bool {
		v, err := s.side("bob").view(t.Context(), there)
		var said []string
		for _, m := range v.messages {
			said = append(said, string(m.Mess.JSON()))
		}
		return err == nil && slices.Contains(said, `[{"reply":{"accept":true,"re":"s1"}}]`) && slices.Contains(said, `[{"reply":{"accept":false,"re":"s2"}}]`)
	})
	s.home.want(here, thread.Received)
}

// TestSuggestionsOfOthers: a suggestion there does not depend on who holds the thread by now, and a suggestion here is
// not sent there.
func TestSuggestionsOfOthers(t *testing.T) {
	home, away := pair(t, acl.Open)
	a := &remoteWork{t: t, home: home, away: away.lab, who: "client", send: func(string) {}, wakePoll: func() {}}
	here, there := a.ask("water")
	second, secondThere := a.ask("weed")
	a.post("bob", "- suggestion: {id: theirs, type: split, re: "+there+", proposed: [roses, lawn]}")
	a.waitSuggestion(here, "theirs")
	home.executor("eve")
	home.do("eve", "- suggestion: {id: ours, type: alternative, re: "+here+", reason: it rains}\n")
	a.post("bob", "- status: {re: "+there+", code: claimed}")
	home.waitStatus(here, thread.Claimed)
	home.do("client", "- reply: {re: ours, accept: true}")
	home.do("client", "- reply: {re: theirs, accept: false}") // arrives after the other one would have
	a.waitDecision(there, "theirs", "refused")
	if text := (&meshNode{lab: away.lab}).allText(there); strings.Contains(text, `"accept":true`) {
		t.Errorf("there it says %s", text)
	}

	a.post("bob", "- suggestion: {id: late, type: split, re: "+secondThere+", proposed: [roses, lawn]}")
	a.waitSuggestion(second, "late")
	home.status("eve", second, "claimed")
	home.refuse(http.StatusConflict, "client", "- reply: {re: late, accept: true}")
	away.waitStatus(secondThere, thread.Cancelled)
	home.do("client", "- reply: {re: late, accept: false}")
	home.want(second, thread.Claimed)
}

// TestSuggestionThatIsRefusedThere: a decision that the other exchange cannot carry out changes nothing, and through a
// link the owner gets a notice. A decision that comes too late is not taken for one about another suggestion. The
// conversation goes on.
func TestSuggestionThatIsRefusedThere(t *testing.T) {
	a := newForeignLink(t, nil)
	here, there := a.ask("{id: water, intent: water the roses}")
	both := &remoteWork{t: t, home: a.home, away: a.lab}
	a.do("bob", "- suggestion: {id: s1, type: delegate, re: "+there+", proposed: nobody}\n- suggestion: {id: s2, type: split, re: "+there+", proposed: [roses, lawn]}")
	a.wakePoll()
	both.waitSuggestion(here, "s2")
	a.home.do(thread.OwnerID, "- reply: {re: s1, accept: true}")
	eventually(t, "the notice", func() bool { return a.home.countNotices("mess", "no approved executor") == 1 })
	both.waitDecision(there, "s1", "")
	both.waitDecision(there, "s2", "")
	a.home.want(here, thread.Received)

	home, away := pair(t, acl.Open)
	both = &remoteWork{t: t, home: home, away: away.lab, who: "client", send: func(string) {}, wakePoll: func() {}}
	here, there = both.ask("water")
	both.post("bob", "- suggestion: {id: s1, type: split, re: "+there+", proposed: [roses, lawn]}\n- suggestion: {id: s2, type: split, re: "+there+", proposed: [a, b]}")
	both.waitSuggestion(here, "s1")
	both.waitSuggestion(here, "s2")
	away.do(thread.OwnerID, "- reply: {re: "+there+", accept: false}")
	both.waitDecision(there, "s2", "refused")
	home.do("client", "- reply: {re: s2, accept: true}")
	both.post("bob", "- status: {re: "+there+", code: claimed}")
	home.waitStatus(here, thread.Claimed)
	home.do("client", "- reply: {re: s1, accept: false}")
	both.waitDecision(there, "s1", "refused")
	away.want(there, thread.Claimed)
}
