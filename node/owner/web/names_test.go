package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPageShowsNames: each list shows the name that a peer gives itself in quotes and, once the owner gave it an alias,
// the alias.
func TestPageShowsNames(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	chris := mesh.Stranger("chris")
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
	p := servePage(t, sarah)
	const claimed = `<q title="what they call themselves"><bdi class="line">chris</bdi></q>`
	lists := []string{"approvals", "inbox", "conversations", "people", "notices", "log"}
	for _, path := range lists {
		if body := p.must(path); !strings.Contains(body, claimed) {
			t.Errorf("%s does not show the name:\n%s", path, body)
		}
	}
	if status, body := p.post("people", url.Values{"action": {"alias"}, "peer": {string(chris.ID)}, "alias": {"my-chris"}}); status != http.StatusOK || !strings.Contains(body, "my-chris: Changed.") {
		t.Fatalf("alias: %d\n%s", status, body)
	}
	for _, path := range lists {
		if body := p.must(path); !strings.Contains(body, `<bdi class="line">my-chris</bdi>`) || strings.Contains(body, claimed) {
			t.Errorf("%s does not show the alias:\n%s", path, body)
		}
	}
	if status, _ := p.post("people", url.Values{"peer": {string(chris.ID)}, "action": {"block"}}); status != http.StatusOK {
		t.Fatalf("block: %d", status)
	}
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusForbidden)
	if body := p.must("settings"); !strings.Contains(body, `somebody who claims to be <bdi class="line">my-chris</bdi>`) {
		t.Errorf("the page does not name the refused sender:\n%s", body)
	}
	if body := p.must("people?did=peer&who=am_buy-gold"); strings.Contains(body, "gold: ") || !strings.Contains(body, "Changed.") {
		t.Errorf("a link puts words into the page:\n%s", body)
	}
	asks, err := owner.WithNames(sarah.OwnerAPI()).ListApprovals(t.Context(), owner.Query{State: string(acl.AskPending), Limit: 10})
	if err != nil || len(asks.Items) != 1 || asks.Items[0].PeerAlias != "my-chris" || asks.Items[0].PeerName != "chris" {
		t.Errorf("the API has %+v, %v", asks.Items, err)
	}
}
