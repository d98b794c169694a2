//go:build slow

package mess

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

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

func (a *remoteWork) threads() int {
	a.t.Helper()
	page, err := a.home.List(a.t.Context(), exchange.Owner("test"), "", "", 100)
	if err != nil {
		a.t.Fatal(err)
	}
	return len(page.Threads)
}
