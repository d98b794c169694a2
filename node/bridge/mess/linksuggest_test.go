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
