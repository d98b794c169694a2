package mess

import (
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
)

// successor waits until a thread is delegated here, and returns the one in which it goes on.
func (p *party) successor(ref string) string {
	p.t.Helper()
	th := p.reaches(ref, Delegated)
	if len(th.Successors) != 1 {
		p.t.Fatalf("successors = %v", th.Successors)
	}
	next := p.thread(th.Successors[0])
	if next.Requester != th.Requester || next.Intent != th.Intent {
		p.t.Errorf("the successor is %+v", next)
	}
	if n := strings.Count(p.said(ref), `"ref":"`+next.Ref+`"`); n != 1 {
		p.t.Errorf("%s names its successor %d times: %s", ref, n, p.said(ref))
	}
	return next.Ref
}

// Who works on a request of ours there hands it to another. It goes on here as it does there: claim, question, answer,
// result, and once more handed on.
func TestDelegatedThroughALink(t *testing.T) {
	for _, name := range []string{"we know who we are there", "after a start we do not"} {
		t.Run(name, func(t *testing.T) {
			a := newAbroad(t, nil)
			carol := a.register("carol")
			a.home.executor("carol") // is somebody else
			here, there := a.ask("{id: water, intent: water the roses}")
			depends := a.home.request(ownerID, "{intent: look at the roses, constraints: {depends_on: [water]}}")
			a.set(there, `{"status":"claimed"}`)
			a.home.reaches(here, Claimed)
			if strings.HasPrefix(name, "after") {
				remote := a.home.bridge.links[0].remote.(*restRemote)
				remote.mu.Lock()
				remote.me = ""
				remote.mu.Unlock()
			}
			a.set(there, `{"mess":[{"status":{"re":"`+there+`","code":"delegated","delegated_to":"carol"}}]}`)
			next := a.home.successor(here)
			goesOn := a.thread(there).Successors[0]
			a.home.want(next, Received)
			a.home.refuse(404, "carol", "- status: {re: "+next+", code: claimed}")

			a.want(200, carol, "PATCH", "requests/"+goesOn, `{"status":"needs_input","message":"how much?"}`)
			a.poke()
			if th := a.home.reaches(next, NeedsInput); th.Holder == "" {
				t.Error("nobody holds the successor")
			}
			a.home.do(ownerID, "- reply: {re: "+next+", answers: {amount: a lot}}")
			eventually(t, "the answer over there", func() bool { return a.thread(goesOn).Status == InProgress })

			a.want(200, carol, "PATCH", "requests/"+goesOn, `{"mess":[{"status":{"re":"`+goesOn+`","code":"delegated","delegated_to":"bob"}}]}`)
			a.poke()
			last := a.home.successor(next)
			ends := a.thread(goesOn).Successors[0]
			a.set(ends, `{"status":"completed","mess":[{"response":{"re":"`+ends+`","content":["wet"]}}]}`)
			a.home.reaches(last, Completed)
			eventually(t, "the result", func() bool { return strings.Contains(a.home.said(last), "wet") })
			a.home.reaches(depends, Received)
			a.home.want(here, Delegated)
			a.home.want(next, Delegated)
			if list, err := a.home.List(t.Context(), Owner("test"), "", position{}, 10); err != nil || len(list.Threads) != 4 {
				t.Errorf("%d threads, %v: what we asked for came back as somebody's request", len(list.Threads), err)
			}
		})
	}
}

// Our word that we need it no more reaches the thread in which it goes on.
func TestCancelOfADelegatedThread(t *testing.T) {
	a := newAbroad(t, nil)
	a.register("carol")
	here, there := a.ask("{id: water, intent: water the roses}")
	a.set(there, `{"mess":[{"status":{"re":"`+there+`","code":"delegated","delegated_to":"carol"}}]}`)
	next := a.home.successor(here)
	a.home.do(ownerID, "- cancel: {re: "+next+", reason: it rains}")
	goesOn := a.thread(there).Successors[0]
	eventually(t, "the cancel over there", func() bool { return a.thread(goesOn).Status == Cancelled })
	a.home.want(next, Cancelled)
}

// Handed to somebody whom the exchange does not know, or into a thread that is another's, it only closes. The names of a
// foreign exchange are nobody's here.
func TestDelegatedElsewhere(t *testing.T) {
	a := newAbroad(t, nil)
	a.home.executor("dave")
	carol := a.register("carol")
	other, theirs := a.want(201, carol, "POST", "requests", `{"intent":"mow the lawn"}`).GetStr("ref"), ""
	a.poke()
	theirs = a.home.arrived("mow the lawn")
	here := a.home.request(ownerID, "{id: water, intent: water the roses}")
	a.home.sendThrough(here)
	there := a.only("water the roses")
	a.set(there, `{"mess":[{"status":{"re":"`+there+`","code":"delegated","delegated_to":"dave","ref":"`+other+`"}}]}`)
	if th := a.home.reaches(here, Delegated); len(th.Successors) != 0 {
		t.Errorf("successors = %v", th.Successors)
	}
	if text := a.home.said(here); strings.Contains(text, other) {
		t.Errorf("it says %s", text)
	}
	a.home.want(theirs, Received) // and is followed as before
	a.want(200, carol, "PATCH", "requests/"+other, `{"status":"cancelled"}`)
	a.poke()
	a.home.reaches(theirs, Cancelled)
}

// sendThrough sends a thread to the exchange behind the first link.
func (p *party) sendThrough(ref string) {
	p.t.Helper()
	address := p.bridge.links[0].address()
	if err := p.bridge.offerTo(p.t.Context(), ref, string(address.Pseudonym()), address.String(), nil); err != nil {
		p.t.Fatal(err)
	}
}

// sent has our owner ask for something in the directory.
func (s *shed) sent(body string) (here, there string) {
	s.t.Helper()
	here = s.home.request(ownerID, body)
	s.home.sendThrough(here)
	their := s.side("bob")
	eventually(s.t, "the request in the directory", func() bool {
		list, err := their.changed(s.t.Context())
		if err == nil && len(list) == 1 {
			there = list[0].ref
		}
		return there != ""
	})
	return here, there
}

// The same in a directory, and over the mesh.
func TestDelegatedInADirectory(t *testing.T) {
	s := newShed(t, false, nil)
	here, there := s.sent("{id: saw, intent: saw the log}")
	goesOn := s.create("us", "{id: again, intent: saw the log}") // whoever runs the directory writes it in our name
	s.say("bob", there, "- status: {re: x, code: delegated, delegated_to: carol, ref: "+goesOn+"}")
	next := s.home.successor(here)
	s.say("carol", goesOn, "- status: {re: x, code: claimed}\n- status: {re: x, code: completed}\n- response: {re: x, content: [sawn]}")
	s.home.reaches(next, Completed)
	if text := s.home.said(next); !strings.Contains(text, "sawn") {
		t.Errorf("it says %s", text)
	}
}

func TestDelegatedThroughTheMesh(t *testing.T) {
	home, away := pair(t, acl.Open)
	away.executor("carol")
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	there := away.theirs()
	away.status("bob", there, "claimed")
	home.reaches(ref, Claimed)
	away.status("bob", there, "delegated, delegated_to: carol")
	next := home.successor(ref)
	goesOn := away.thread(there).Successors[0]
	away.status("carol", goesOn, "needs_input, questions: [{field: shelf, question: Which shelf?}]")
	home.reaches(next, NeedsInput)
	home.do("client", "- reply: {re: "+next+", answers: {shelf: the top one}}")
	away.reaches(goesOn, InProgress)
	away.do("carol", "- response: {re: "+goesOn+", content: [eggs]}")
	home.reaches(next, Completed)
	conv := convKey(string(away.node.ID()), home.thread(next).Peers[string(away.node.ID())].Conv)
	kept := func() bool {
		_, err := home.records.Get(t.Context(), nsMeta, conv, time.Now())
		return err == nil
	}
	if err := home.remove(t.Context(), ref, time.Now()); err != nil || !kept() { // it is the successor's
		t.Errorf("the conversation went with the thread that was delegated: %v", err)
	}
	if err := home.remove(t.Context(), next, time.Now()); err != nil || kept() {
		t.Errorf("the conversation outlived the successor: %v", err)
	}
}

// Who of ours works on what somebody there asked for is our affair: that one hands it to another says nothing there.
func TestHandedOnAtHome(t *testing.T) {
	a := newAbroad(t, func(c *Config) { c.Links[0].Options = map[string]string{"as": "us"} })
	a.home.executor("eve")
	a.home.executor("dan")
	there, here, _ := a.offered(`{"intent":"mow the lawn"}`)
	a.home.status("eve", here, "in_progress")
	eventually(t, "the claim over there", func() bool { return a.thread(there).Status == InProgress })
	a.home.status("eve", here, "delegated, delegated_to: dan")
	next := a.home.thread(here).Successors[0]
	a.home.status("dan", next, "claimed") // they would refuse it: we hold it, and it is in progress
	a.home.do("dan", "- response: {re: "+next+", content: [mown]}")
	eventually(t, "the result over there", func() bool { return a.thread(there).Status == Completed })
	a.home.want(next, Completed)
	if th := a.thread(there); len(th.Successors) != 0 || th.Holder != "us" {
		t.Errorf("there it is %+v", th)
	}
	if n := a.home.noticesOf("mess", "may not follow"); n != 0 {
		t.Errorf("the owner is told of %d refusals", n)
	}
}

// In a conversation that is closed nothing goes on, whatever the close says.
func TestDelegatedWithAClose(t *testing.T) {
	home, away := pair(t, acl.Open)
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	there := away.theirs()
	away.status("bob", there, "claimed")
	home.reaches(ref, Claimed)
	away.closeWith(there, home.node.ID(), `[{"status":{"re":"look","code":"delegated","delegated_to":"x","ref":"2026-01-01-001"}}]`)
	if th := home.reaches(ref, Delegated); len(th.Successors) != 0 {
		t.Errorf("successors = %v", th.Successors)
	}
}
