package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestPagePeers: rules and aliases can be changed on the page, except those from the configuration.
func TestPagePeers(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	sarah := mesh.Node("sarah", func(c *node.Config) { c.Policy.Block = []string{"am_configured"} })
	p := servePage(t, sarah)
	if status, body := p.post("people", url.Values{"action": {"add"}, "url": {"http://127.0.0.1:9/none"}}); status != http.StatusBadGateway || !strings.Contains(body, "cannot fetch the card") {
		t.Errorf("a card that is not there: %d", status)
	}
	if status, body := p.post("people", url.Values{"action": {"add"}, "url": {chris.URL}, "alias": {"friend"}}); status != http.StatusOK || !strings.Contains(body, "The card was added.") {
		t.Fatalf("add: %d\n%s", status, body)
	}
	body := p.must("people")
	if !strings.Contains(body, ">friend<") || !strings.Contains(body, "Set in the configuration.") {
		t.Errorf("the list:\n%s", body)
	}
	if status, body := p.post("people", url.Values{"action": {"alias"}, "peer": {"friend"}, "alias": {"chris"}}); status != http.StatusOK || !strings.Contains(body, ">chris<") {
		t.Errorf("alias: %d", status)
	}
	if status, body := p.post("people", url.Values{"action": {"alias"}, "peer": {"friend"}, "alias": {"am_x"}}); status != http.StatusBadRequest || !strings.Contains(body, "an alias is") {
		t.Errorf("an invalid alias: %d", status)
	}
	for _, action := range []string{"allow", "block", "write", "no-write", "forget"} {
		if status, body := p.post("people", url.Values{"action": {action}, "peer": {string(chris.ID())}}); status != http.StatusOK || !strings.Contains(body, "Changed.") {
			t.Errorf("%s: %d", action, status)
		}
	}
	if status, _ := p.post("people", url.Values{"action": {"crown"}, "peer": {string(chris.ID())}}); status != http.StatusBadRequest {
		t.Errorf("an unknown action: %d", status)
	}
	if strings.Contains(p.must("people?q=friend"), string(chris.ID())) {
		t.Error("a forgotten peer is found")
	}
}

// TestPageMeeting proposes, counters and accepts on the pages of both sides.
func TestPageMeeting(t *testing.T) {
	mesh := meshtest.New(t)
	chris, sarah := mesh.Node("chris", nil), mesh.Node("sarah", nil)
	his, hers := servePage(t, chris), servePage(t, sarah)
	status, body := his.post("compose", url.Values{
		"to": {string(sarah.ID())}, "kind": {"meeting"}, "title": {"Coffee"}, "time": {"2027-02-19T10:00", "", "2027-02-20T11:30"}, "duration": {"30m"}, "place": {"Sightglass"},
	})
	if status != http.StatusOK || !strings.Contains(body, "Fri 19 Feb 2027, 10:00") || !strings.Contains(body, "Sat 20 Feb 2027, 11:30") {
		t.Fatalf("propose: %d\n%s", status, body)
	}
	waitFor(t, "the proposal", func() bool { return strings.Contains(hers.must("inbox"), "mesh.schedule") })
	talk := link(t, hers.must("conversations"), "conversations/am_")
	if status, body := hers.post(talk+"/reply", url.Values{"action": {"counter"}}); status != http.StatusBadRequest || !strings.Contains(body, "name at least one time") {
		t.Errorf("counter without a time: %d", status)
	}
	if status, body := hers.post(talk+"/reply", url.Values{"action": {"counter"}, "time": {"2027-02-19T12:00"}}); status != http.StatusOK || !strings.Contains(body, "Fri 19 Feb 2027, 12:00") {
		t.Errorf("counter: %d\n%s", status, body)
	}
	waitFor(t, "the counter-proposal", func() bool { return strings.Contains(his.must("inbox?state=new"), "counter") })
	back := link(t, his.must("conversations"), "conversations/am_")
	if status, _ := his.post(back+"/reply", url.Values{"action": {"accept"}, "text": {"See you there"}}); status != http.StatusOK {
		t.Errorf("accept: %d", status)
	}
	waitFor(t, "the end", func() bool { // both accepted, so his node closes (AM-39)
		return strings.Contains(hers.must(talk), "See you there") &&
			strings.Contains(hers.must(talk), ">completed<") && strings.Contains(his.must(back), ">completed<")
	})
}

// TestPageForeignPeer: a peer behind a bridge can be blocked and forgotten like any other.
func TestPageForeignPeer(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	p := servePage(t, sarah)
	out := to("ann", "conv_1", "hello")
	if got, err := sarah.Accept(t.Context(), inbound(out, "wire:space", out.Address)); err != nil || !got.Held {
		t.Fatalf("a foreign stranger: %+v, %v", got, err)
	}
	body := p.must("approvals")
	if !strings.Contains(body, "nothing: the other network says so") || !strings.Contains(body, out.Address) {
		t.Errorf("the question:\n%s", body)
	}
	path := link(t, body, "approvals/ask_")
	if status, _ := p.post(path, choices(t, p.must(path), acl.Block)); status != http.StatusOK {
		t.Fatalf("block: %d", status)
	}
	if body := p.must("people"); !strings.Contains(body, "wire:space") || !strings.Contains(body, ">blocked<") {
		t.Errorf("the rule is not there:\n%s", body)
	}
	if status, body := p.post("people", url.Values{"action": {"forget"}, "peer": {"wire:space"}}); status != http.StatusOK || strings.Contains(body, "wire:space") {
		t.Errorf("forget: %d", status)
	}
	if status, _ := p.post("people", url.Values{"action": {"forget"}, "peer": {"wire:space"}}); status != http.StatusNotFound {
		t.Errorf("forget again: %d", status)
	}
}
