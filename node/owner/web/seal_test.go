package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestPageSeals: one choice on the page seals a message. The owner reads the content, marked as sealed, and gets an
// error if sealing is not possible.
func TestPageSeals(t *testing.T) {
	const secret = "the secret of the coffee"
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	sarah := mesh.Node("sarah", nil)
	unable := mesh.Stranger("unable")
	p := servePage(t, sarah)
	form := url.Values{"to": {string(chris.ID())}, "kind": {"message"}, "text": {secret}, "seal": {"seal"}}
	status, body := p.post("compose", form)
	if status != http.StatusOK || !strings.Contains(body, secret) || !strings.Contains(body, ">sealed<") {
		t.Errorf("sealed: %d\n%s", status, body)
	}
	waitFor(t, "the sealed message to arrive", func() bool {
		items, _, err := chris.Inbox(t.Context(), "", "", 10)
		return err == nil && len(items) == 1 && items[0].Sealed
	})
	form.Set("to", string(unable.ID))
	if status, body := p.post("compose", form); status != http.StatusUnprocessableEntity || !goldentest.Page(t, "no recipient", body) || !strings.Contains(body, `value="seal" selected`) {
		t.Errorf("to an agent without a key: %d\n%s", status, body)
	}
	form.Set("seal", "wax")
	if status, _ := p.post("compose", form); status != http.StatusBadRequest {
		t.Errorf("an unknown way to send it: %d", status)
	}
}
