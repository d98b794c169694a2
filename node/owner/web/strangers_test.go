package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPageRejectsStrangers: the page offers to reject strangers if and only if strangers wait.
func TestPageRejectsStrangers(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	p := servePage(t, sarah)
	const button = "Reject all waiting strangers"
	if strings.Contains(p.must("approvals"), button) {
		t.Error("the page offers to reject strangers although none waits")
	}
	chris := mesh.Stranger("chris")
	must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
	if !strings.Contains(p.must("approvals"), button) {
		t.Fatal("the page does not offer to reject strangers")
	}
	if status, body := p.post("approvals/strangers", url.Values{}); status != http.StatusOK || !goldentest.Page(t, "reject all", body) {
		t.Errorf("reject: %d\n%s", status, body)
	}
	if n := len(pendingAsks(t, sarah)); n != 0 {
		t.Errorf("%d questions wait, want none", n)
	}
}
