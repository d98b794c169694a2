package web_test

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestPageDiscovers: a search shows the agents of the directories with what was proven, leads to a message, and asks
// nobody before the owner searches.
func TestPageDiscovers(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	p := servePage(t, mesh.Node("sarah", nil))
	if body := p.must("discover"); strings.Contains(body, string(chris.ID())) || !goldentest.Page(t, "before a search", body) {
		t.Errorf("before a search:\n%s", body)
	}
	body := p.must("discover?q=chris")
	for _, want := range []string{
		`<q title="what they call themselves"><bdi class="line">chris</bdi></q>`, `href="/owner/page/compose?to=` + string(chris.ID()) + `"`, "not reached",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s:\n%s", want, body)
		}
	}
	if body := p.must("discover?q=sarah"); !strings.Contains(body, "This is your agent.") || strings.Contains(body, "compose?to=") {
		t.Errorf("the owner's own agent:\n%s", body)
	}
	if body := p.must("discover?q=nobody-like-that"); !goldentest.Page(t, "nobody found", body) {
		t.Errorf("a search without a hit:\n%s", body)
	}
}
