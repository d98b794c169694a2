package web_test

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPagePeers: rules and aliases can be changed on the page, except those from the configuration.
func TestPagePeers(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	sarah := mesh.Node("sarah", func(c *node.Config) { c.Policy.Block = []string{"am_configured"} })
	p := servePage(t, sarah)
	if status, body := p.post("people", url.Values{"action": {"add"}, "url": {"http://127.0.0.1:9/none"}}); status != http.StatusBadGateway || !goldentest.Page(t, "an unreachable card", body) {
		t.Errorf("a card that is not there: %d", status)
	}
	if status, body := p.post("people", url.Values{"action": {"add"}, "url": {chris.URL}, "alias": {"friend"}}); status != http.StatusOK || !goldentest.Page(t, "add", body) {
		t.Fatalf("add: %d\n%s", status, body)
	}
	body := p.must("people")
	if !strings.Contains(body, ">friend<") || !strings.Contains(body, "Set in the configuration.") {
		t.Errorf("the list:\n%s", body)
	}
	if status, body := p.post("people", url.Values{"action": {"alias"}, "peer": {"friend"}, "alias": {"chris"}}); status != http.StatusOK || !strings.Contains(body, ">chris<") {
		t.Errorf("alias: %d", status)
	}
	if status, body := p.post("people", url.Values{"action": {"alias"}, "peer": {"friend"}, "alias": {"am_x"}}); status != http.StatusBadRequest || !goldentest.Page(t, "an id as alias", body) {
		t.Errorf("an invalid alias: %d", status)
	}
	for _, action := range []string{"allow", "block", "unblock", "write", "no-write", "forget"} {
		want := "Changed."
		if action == "block" {
			want = "Nothing comes in from there any more."
		}
		if status, body := p.post("people", url.Values{"action": {action}, "peer": {string(chris.ID())}}); status != http.StatusOK || !strings.Contains(body, want) {
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

// TestPagePerson: the page of a person has the conversations, the card from a directory, and the actions; undo takes a
// block back to the rule before it.
func TestPagePerson(t *testing.T) {
	mesh := meshtest.New(t)
	chris, sarah := mesh.Node("chris", nil), mesh.Node("sarah", mode(acl.Approval))
	mustSend(t, chris.Node, outgoing(t, sarah.ID(), wire.Deliver, hello), 10*time.Second)
	// Chris has written to Sarah's agent: her key is kept, but he has neither added her card nor accepted the key.
	page := servePage(t, chris)
	if body := page.must("people"); !strings.Contains(body, "key kept") || strings.Contains(body, "added by you") {
		t.Errorf("the list of peers that the owner has written to:\n%s", body)
	}
	if body := page.must("people/" + string(sarah.ID())); !strings.Contains(body, "kept until you forget the agent") || strings.Contains(body, "accepted by you") {
		t.Errorf("the page of a peer that the owner has written to:\n%s", body)
	}
	p := servePage(t, sarah)
	person := "people/" + string(chris.ID())
	standing := func() acl.Standing {
		t.Helper()
		peers, err := sarah.OwnerAPI().ListPeers(t.Context(), "")
		i := slices.IndexFunc(peers, func(p owner.Peer) bool { return p.ID == string(chris.ID()) })
		if err != nil || i < 0 {
			t.Fatalf("the peer is not there: %v", err)
		}
		return peers[i].Standing
	}
	act := func(form url.Values, want string) string {
		t.Helper()
		form.Set("peer", string(chris.ID()))
		status, body := p.post("people", form)
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%v: %d\n%s", form, status, body)
		}
		return body
	}
	if body := p.must(person + "?card=yes"); !strings.Contains(body, "conversations/"+string(chris.ID())) || !strings.Contains(body, "&lt;b&gt;chris</bdi></q></a><span><span class=\"tag bad\">id not proven") {
		t.Errorf("the page of a person:\n%s", body)
	}
	for _, before := range []acl.Standing{acl.Unknown, acl.Approved, acl.Allowed} {
		if action := map[acl.Standing]string{acl.Approved: "approve", acl.Allowed: "allow"}[before]; action != "" {
			act(url.Values{"action": {action}, "person": {string(chris.ID())}}, "Changed.")
		}
		for action, after := range map[string]acl.Standing{"block": acl.Blocked, "approve": acl.Approved, "allow": acl.Allowed} {
			if after == before {
				continue
			}
			body := act(url.Values{"action": {action}, "person": {string(chris.ID())}}, `id="undo"`)
			if standing() != after {
				t.Fatalf("%s has no effect", action)
			}
			undo := url.Values{}
			for _, name := range []string{"action", "undo"} {
				undo.Set(name, regexp.MustCompile(`<input type="hidden" name="` + name + `" value="([^"]+)">`).FindStringSubmatch(body[strings.Index(body, `class="said"`):])[1])
			}
			act(undo, map[string]string{"block": "The block is gone.", "approve": "Undone.", "allow": "Undone."}[action])
			if got := standing(); got != before {
				t.Errorf("after the undo of %s the rule is %q, want %q", action, got, before)
			}
		}
	}
	link := "people?did=block&who=" + string(chris.ID()) + "&was=" + string(acl.Allowed)
	if body := p.must(link); strings.Contains(body, `id="undo"`) {
		t.Error("a link offers the undo of a block that is undone")
	}
	if body := act(url.Values{"action": {"forget"}}, "Changed."); strings.Contains(body, `id="undo"`) {
		t.Error("what is forgotten would come back")
	}
	act(url.Values{"action": {"block"}}, `id="undo"`)
	if body := p.must(link); strings.Contains(body, `name="action" value="allow"><input type="hidden" name="peer"`) || !strings.Contains(body, `name="action" value="unblock"><input type="hidden" name="peer"`) {
		t.Errorf("a link puts an action of its own into the undo:\n%s", body)
	}
	if status, _ := p.get("people/nobody"); status != http.StatusNotFound {
		t.Errorf("nobody: %d", status)
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
	waitFor(t, "the proposal", func() bool { return strings.Contains(hers.must("inbox"), "proposed a meeting") })
	talk := link(t, hers.must("conversations"), "conversations/am_")
	if status, body := hers.post(talk+"/reply", url.Values{"action": {"counter"}}); status != http.StatusBadRequest || !goldentest.Page(t, "no time", body) {
		t.Errorf("counter without a time: %d", status)
	}
	if status, body := hers.post(talk+"/reply", url.Values{"action": {"counter"}, "time": {"2027-02-19T12:00"}}); status != http.StatusOK || !strings.Contains(body, "Fri 19 Feb 2027, 12:00") {
		t.Errorf("counter: %d\n%s", status, body)
	}
	waitFor(t, "the counter-proposal", func() bool { return strings.Contains(his.must("inbox?state=new"), "proposed another time") })
	back := link(t, his.must("conversations"), "conversations/am_")
	if status, _ := his.post(back+"/reply", url.Values{"action": {"accept"}, "text": {"See you there"}}); status != http.StatusOK {
		t.Errorf("accept: %d", status)
	}
	waitFor(t, "the end", func() bool { // both accepted, so his node closes (AM-39)
		return strings.Contains(hers.must(talk), "See you there") &&
			strings.Contains(hers.must(talk), ">completed<") && strings.Contains(his.must(back), ">completed<")
	})
	for _, p := range []*ownerPage{his, hers} {
		if body := p.must("inbox?state=needs-owner"); !goldentest.Page(t, "nothing waits", body) || strings.Contains(body, "<title>(") {
			t.Errorf("after the agreement something needs the owner:\n%s", body)
		}
	}
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
	if !strings.Contains(body, "not at all: only the other network names the sender") || !strings.Contains(body, out.Address) {
		t.Errorf("the question:\n%s", body)
	}
	path := link(t, body, "approvals/ask_")
	if status, _ := p.post(path, choices(t, p.must(path), acl.Block)); status != http.StatusOK {
		t.Fatalf("block: %d", status)
	}
	if body := p.must("people"); !strings.Contains(body, "wire:space") || !strings.Contains(body, ">blocked<") {
		t.Errorf("the rule is not there:\n%s", body)
	}
	for _, id := range []string{url.PathEscape("wire:space"), string(out.To)} {
		if body := p.must("people/" + id); !strings.Contains(body, "conversations/"+string(out.To)) {
			t.Errorf("the page of %s has no conversations:\n%s", id, body)
		}
	}
	if body := p.must("people/" + url.PathEscape("wire:space/bob")); !goldentest.Page(t, "a foreign address", body) { // of a refused message
		t.Errorf("the page of an address without a rule:\n%s", body)
	}
	if status, body := p.post("people", url.Values{"action": {"forget"}, "peer": {"wire:space"}}); status != http.StatusOK || strings.Contains(body, "wire:space") {
		t.Errorf("forget: %d", status)
	}
	if status, _ := p.post("people", url.Values{"action": {"forget"}, "peer": {"wire:space"}}); status != http.StatusNotFound {
		t.Errorf("forget again: %d", status)
	}
}
