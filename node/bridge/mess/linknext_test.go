package mess

import (
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// waitSuccessor waits until a thread here has a message that it continues there as another one.
func (p *meshNode) waitSuccessor(ref, as string) {
	p.t.Helper()
	eventually(p.t.(*testing.T), ref+" goes on as "+as, func() bool { return strings.Contains(p.allText(ref), "continues there as "+as) })
}

// TestDelegatedThroughALink: an executor there delegates a request of ours. Our thread stays open and follows the
// successor: claim, question, answer, result, and another delegation.
func TestDelegatedThroughALink(t *testing.T) {
	for _, name := range []string{"we know who we are there", "after a start we do not"} {
		t.Run(name, func(t *testing.T) {
			a := newForeignLink(t, nil)
			carol := a.register("carol")
			a.home.executor("carol") // is another executor
			here, there := a.ask("{id: water, intent: water the roses}")
			depends := a.home.request(thread.OwnerID, "{intent: look at the roses, constraints: {depends_on: [water]}}")
			a.set(there, `{"status":"claimed"}`)
			a.home.waitStatus(here, thread.Claimed)
			if strings.HasPrefix(name, "after") {
				remote := a.home.bridge.links.All()[0].remote.(*restRemote)
				if err := remote.updateState(t.Context(), func(s *restState) { *s = restState{} }); err != nil {
					t.Fatal(err)
				}
			}
			a.set(there, `{"mess":[{"status":{"re":"`+there+`","code":"delegated","delegated_to":"carol"}}]}`)
			goesOn := a.thread(there).Successors[0]
			a.home.waitSuccessor(here, goesOn)
			a.home.want(here, thread.Claimed)
			a.home.refuse(404, "carol", "- status: {re: "+here+", code: in_progress}")

			a.want(200, carol, "PATCH", "requests/"+goesOn, `{"status":"needs_input","message":"how much?"}`)
			a.wakePoll()
			a.home.waitStatus(here, thread.NeedsInput)
			a.home.do(thread.OwnerID, "- reply: {re: "+here+", answers: {amount: a lot}}")
			eventually(t, "the answer over there", func() bool { return a.thread(goesOn).Status == thread.InProgress })

			a.want(200, carol, "PATCH", "requests/"+goesOn, `{"mess":[{"status":{"re":"`+goesOn+`","code":"delegated","delegated_to":"bob"}}]}`)
			a.wakePoll()
			ends := a.thread(goesOn).Successors[0]
			a.home.waitSuccessor(here, ends)
			a.set(ends, `{"status":"completed","mess":[{"response":{"re":"`+ends+`","content":["wet"]}}]}`)
			a.home.waitStatus(here, thread.Completed)
			eventually(t, "the result", func() bool { return strings.Contains(a.home.allText(here), "wet") })
			a.home.waitStatus(depends, thread.Received)
			if list, err := a.home.List(t.Context(), exchange.Owner("test"), "", "", 10); err != nil || len(list.Threads) != 2 {
				t.Errorf("%d threads, %v: what we asked for came back as somebody's request", len(list.Threads), err)
			}
		})
	}
}

// TestCancelOfADelegatedThread: our cancel reaches the thread in which the exchange continues our request.
func TestCancelOfADelegatedThread(t *testing.T) {
	a := newForeignLink(t, nil)
	a.register("carol")
	here, there := a.ask("{id: water, intent: water the roses}")
	a.set(there, `{"mess":[{"status":{"re":"`+there+`","code":"delegated","delegated_to":"carol"}}]}`)
	goesOn := a.thread(there).Successors[0]
	a.home.waitSuccessor(here, goesOn)
	a.home.do(thread.OwnerID, "- cancel: {re: "+here+", reason: it rains}")
	eventually(t, "the cancel over there", func() bool { return a.thread(goesOn).Status == thread.Cancelled })
	a.home.want(here, thread.Cancelled)
}

// TestDelegatedBeforeWeKnowOurName: the exchange continues our first request as another thread, and a poll lists both
// before the link has recorded the first one and learned from it who we are there.
func TestDelegatedBeforeWeKnowOurName(t *testing.T) {
	a := newForeignLink(t, nil)
	a.register("carol")
	lists := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.lists
	}
	eventually(t, "the first poll", func() bool { return a.home.bridge.links.All()[0].Status().State == bridge.LinkUp })
	see := a.hold("/requests/")
	here, there := a.ask("{id: water, intent: water the roses}")
	before := lists()
	a.set(there, `{"mess":[{"status":{"re":"`+there+`","code":"delegated","delegated_to":"carol"}}]}`)
	goesOn := a.thread(there).Successors[0]
	eventually(t, "a list with both threads", func() bool { return lists() > before })
	time.Sleep(50 * time.Millisecond) // the poll now reads the list
	see()
	a.home.waitSuccessor(here, goesOn)
	a.home.want(here, thread.Received)
}

// TestDelegatedElsewhere: a delegation to an executor that the exchange does not know, or into a thread of somebody
// else, only closes the thread. Names of a foreign exchange mean nobody here.
func TestDelegatedElsewhere(t *testing.T) {
	a := newForeignLink(t, nil)
	a.home.executor("dave")
	carol := a.register("carol")
	other, theirs := a.want(201, carol, "POST", "requests", `{"intent":"mow the lawn"}`).GetStr("ref"), ""
	a.wakePoll()
	theirs = a.home.waitThread("mow the lawn")
	here := a.home.request(thread.OwnerID, "{id: water, intent: water the roses}")
	a.home.sendThrough(here)
	there := a.only("water the roses")
	a.set(there, `{"mess":[{"status":{"re":"`+there+`","code":"delegated","delegated_to":"dave","ref":"`+other+`"}}]}`)
	if th := a.home.waitStatus(here, thread.Delegated); len(th.Successors) != 0 {
		t.Errorf("successors = %v", th.Successors)
	}
	if text := a.home.allText(here); strings.Contains(text, other) {
		t.Errorf("it says %s", text)
	}
	a.home.want(theirs, thread.Received) // and is followed as before
	a.home.status("dave", theirs, "claimed")
	eventually(t, "the claim over there", func() bool { return a.thread(other).Holder != "" })
	a.want(200, carol, "PATCH", "requests/"+other, `{"status":"cancelled"}`)
	a.wakePoll()
	a.home.waitStatus(theirs, thread.Cancelled)
}

func (p *meshNode) sendThrough(ref string) {
	p.t.Helper()
	address := p.bridge.links.All()[0].Address()
	if err := p.bridge.offerTo(p.t.Context(), ref, string(address.Pseudonym()), address.String(), nil); err != nil {
		p.t.Fatal(err)
	}
}

func (s *sharedFolder) request(body string) (here, there string) {
	s.t.Helper()
	here = s.home.request(thread.OwnerID, body)
	s.home.sendThrough(here)
	their := s.side("bob")
	eventually(s.t, "the request in the directory", func() bool {
		list, err := their.list(s.t.Context())
		if err == nil && len(list) == 1 {
			there = list[0].ref
		}
		return there != ""
	})
	return here, there
}

// TestDelegatedInADirectory: the same in a directory, and over the mesh.
func TestDelegatedInADirectory(t *testing.T) {
	s := newSharedFolder(t, false, nil)
	here, there := s.request("{id: saw, intent: saw the log}")
	goesOn := s.create("us", "{id: again, intent: saw the log}") // the owner of the directory writes it in our name
	s.say("bob", there, "- status: {re: x, code: delegated, delegated_to: carol, ref: "+goesOn+"}")
	s.home.waitSuccessor(here, goesOn)
	s.say("carol", goesOn, "- status: {re: x, code: claimed}\n- status: {re: x, code: completed}\n- response: {re: x, content: [sawn]}")
	s.home.waitStatus(here, thread.Completed)
	if text := s.home.allText(here); !strings.Contains(text, "sawn") {
		t.Errorf("it says %s", text)
	}
}

func TestDelegatedThroughTheMesh(t *testing.T) {
	home, away := pair(t, acl.Open)
	away.executor("carol")
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	there := away.waitMeshThread()
	away.status("bob", there, "claimed")
	home.waitStatus(ref, thread.Claimed)
	away.status("bob", there, "delegated, delegated_to: carol")
	goesOn := away.thread(there).Successors[0]
	home.waitSuccessor(ref, goesOn)
	away.status("carol", goesOn, "needs_input, questions: [{field: shelf, question: Which shelf?}]")
	home.waitStatus(ref, thread.NeedsInput)
	home.do("client", "- reply: {re: "+ref+", answers: {shelf: the top one}}")
	away.waitStatus(goesOn, thread.InProgress)
	away.do("carol", "- response: {re: "+goesOn+", content: [eggs]}")
	home.waitStatus(ref, thread.Completed)
}

// TestLocalDelegationIsNotReported: a delegation among our own executors is not reported to the exchange of the
// requester.
func TestLocalDelegationIsNotReported(t *testing.T) {
	a := newForeignLink(t, func(c *Config) { c.Links[0].Options = map[string]string{"as": "us"} })
	a.home.executor("eve")
	a.home.executor("dan")
	there, here, _ := a.offerRequest(`{"intent":"mow the lawn"}`)
	a.home.status("eve", here, "in_progress")
	eventually(t, "the claim over there", func() bool { return a.thread(there).Status == thread.InProgress })
	a.home.status("eve", here, "delegated, delegated_to: dan")
	next := a.home.thread(here).Successors[0]
	a.home.status("dan", next, "claimed") // the server would refuse it: we hold the thread, and it is in progress
	a.home.do("dan", "- response: {re: "+next+", content: [mown]}")
	eventually(t, "the result over there", func() bool { return a.thread(there).Status == thread.Completed })
	a.home.want(next, thread.Completed)
	if th := a.thread(there); len(th.Successors) != 0 || th.Holder != "us" {
		t.Errorf("there it is %+v", th)
	}
	if n := a.home.countNotices("mess", "may not follow"); n != 0 {
		t.Errorf("the owner is told of %d refusals", n)
	}
}

// TestDelegatedWithAClose: a closed conversation has no successor, whatever the close says.
func TestDelegatedWithAClose(t *testing.T) {
	home, away := pair(t, acl.Open)
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	there := away.waitMeshThread()
	away.status("bob", there, "claimed")
	home.waitStatus(ref, thread.Claimed)
	away.closeWith(there, home.node.ID(), `[{"status":{"re":"look","code":"delegated","delegated_to":"x","ref":"2026-01-01-001"}}]`)
	if th := home.waitStatus(ref, thread.Delegated); len(th.Successors) != 0 {
		t.Errorf("successors = %v", th.Successors)
	}
}
