package mew

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
)

const proposalText = `{"id":"%s","kind":"mcp/proposal","to":["node"%s],"payload":{"method":"tools/call","params":{"name":"%s","arguments":{"query":"far"}}}}`

// A proposal waits for the owner; approved, it is a request that names it, and its answer closes the conversation.
func TestLinkProposalApproved(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat, dog := l.peers["cat"], l.peers["dog"]
	cat.send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "write_file"))
	ask := l.ask()
	l.decide(acl.Approve)
	request := dog.fromNode("mcp/request")
	to, _ := request.Get("to")
	if about(request) != "p1" || string(to.JSON()) != `["dog"]` || str(pay(request, "method")) != "tools/call" || str(pay(request, "jsonrpc")) != "2.0" {
		t.Errorf("the request is %s", request.JSON())
	}
	// an answer of somebody who was not asked is none
	cat.send(`{"kind":"mcp/response","to":["node"],"correlation_id":["` + request.GetStr("id") + `"],"payload":{"result":{"forged":true}}}`)
	cat.fence()
	dog.send(`{"kind":"mcp/response","to":["node"],"correlation_id":["` + request.GetStr("id") + `"],"payload":{"jsonrpc":"2.0","id":1,"result":{"ok":true}}}`)
	l.await("closed", func() bool {
		entries, err := l.home.Store.Steps().Transcript(t.Context(), ask.Conv, 0, 50)
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, e := range entries {
			all.Write(e.Raw)
		}
		if strings.Contains(all.String(), "forged") {
			t.Fatal("an answer of somebody who was not asked came in")
		}
		return strings.Contains(all.String(), `"ok":true`)
	})
}

// A proposal that the owner rejects, that nobody decides about or that its proposer takes back (MEW-L3).
func TestLinkProposalEnds(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat, dog := l.peers["cat"], l.peers["dog"]
	cat.send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"))
	l.decide(acl.Reject)
	if no := cat.fromNode("mcp/reject"); about(no) != "p1" || str(pay(no, "reason")) != "disagree" {
		t.Errorf("rejected with %s", no.JSON())
	}
	gone := func(why string) {
		t.Helper()
		l.await(why, func() bool {
			asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
			return err == nil && len(asks) == 0
		})
	}
	cat.send(fmt.Sprintf(proposalText, "p2", `,"dog"`, "x"))
	l.ask()
	dog.send(`{"kind":"mcp/withdraw","correlation_id":["p2"],"payload":{}}`) // the gateway refuses it, and so does the link
	l.Inject(t.Context(), "dog", []byte(`{"id":"w","kind":"mcp/withdraw","correlation_id":["p2"],"payload":{}}`))
	l.ask()
	cat.send(`{"kind":"mcp/withdraw","correlation_id":["p2"],"payload":{"reason":"no_longer_needed"}}`)
	gone("withdrawn")
	cat.send(fmt.Sprintf(proposalText, "p3", `,"dog"`, "x"))
	l.ask()
	dog.send(`{"kind":"mcp/request","to":["cat"],"correlation_id":["p3"],"payload":{"jsonrpc":"2.0","id":1,"method":"tools/call"}}`)
	gone("fulfilled")
	cat.send(fmt.Sprintf(proposalText, "p4", `,"dog"`, "x"))
	l.ask()
	if _, err := l.l.decide(t.Context(), keyOf(t, l.l.space(), "p4"), true, ""); err != nil {
		t.Fatal(err)
	}
	request := dog.fromNode("mcp/request")
	if to, _ := request.Get("to"); about(request) != "p4" || string(to.JSON()) != `["dog"]` {
		t.Errorf("the request is %s", request.JSON())
	}
	gone("decided in the space")
}

// Two who give their proposals the same id are told apart: what the owner approved goes where it said (MEW-L3).
func TestLinkProposalsOfOneID(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat, dog := l.peers["cat"], l.peers["dog"]
	cat.send(fmt.Sprintf(proposalText, "p1", `,"cat"`, "honest"))
	first := l.ask()
	dog.send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "evil"))
	pending := func() (asks []acl.Ask) {
		asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return asks
	}
	l.await("asked twice", func() bool { return len(pending()) == 2 })
	if _, err := l.home.Asks().Decide(t.Context(), first.ID, first.Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	request := dog.fromNode("mcp/request")
	if to, _ := request.Get("to"); string(to.JSON()) != `["cat"]` || str(pay(request, "params", "name")) != "honest" {
		t.Errorf("approved was cat's, and the request is %s", request.JSON())
	}
	cat.send(fmt.Sprintf(proposalText, "p1", `,"cat"`, "again"))
	l.await("asked again", func() bool { return len(pending()) == 2 })
	dog.send(`{"kind":"mcp/withdraw","correlation_id":["p1"],"payload":{}}`)
	l.await("withdrawn", func() bool { return len(pending()) == 1 })
	if left := pending()[0]; !strings.Contains(string(left.Body), "again") {
		t.Errorf("dog took its own proposal back, and what is left is %s", left.Body)
	}
}

// Without the capability an approval fails where the owner sees it, and becomes no proposal (MEW-L4).
func TestLinkProposalWithoutCapability(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"}, "chat", "mcp/proposal", "mcp/response")
	l.peers["cat"].send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"))
	first := l.ask()
	l.decide(acl.Approve)
	var again acl.Ask
	l.await("asked again", func() bool {
		asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err == nil && len(asks) == 1 {
			again = asks[0]
		}
		return again.ID != "" && again.ID != first.ID
	})
	if !strings.Contains(string(again.Body), "capabilities") {
		t.Errorf("the owner is not told why: %s", again.Body)
	}
}

// A proposal that names nobody else is carried out here, once the owner approved it.
func TestLinkProposalToUsAlone(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	cat.send(fmt.Sprintf(proposalText, "p1", "", bridge.ToolDiscover))
	l.decide(acl.Approve)
	request := cat.fromNode("mcp/request")
	answer := cat.fromNode("mcp/response")
	if about(request) != "p1" || about(answer) != request.GetStr("id") || !strings.Contains(string(pay(answer, "result").JSON()), string(l.far.ID())) {
		t.Errorf("request %s, answer %s", request.JSON(), answer.JSON())
	}
}
