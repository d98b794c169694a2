package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newHeldPage returns a page on which one message of a stranger waits.
func newHeldPage(t *testing.T) (*meshtest.Mesh, *meshtest.Member, *ownerPage, *meshtest.Stranger, []byte) {
	t.Helper()
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
	return mesh, sarah, servePage(t, sarah), chris, raw
}

// TestPageApproves is AM-34 on the page: the form names what was shown, and the sender gets its answer.
func TestPageApproves(t *testing.T) {
	_, sarah, p, chris, raw := newHeldPage(t)
	body := p.must("approvals")
	for _, want := range []string{"A stranger writes", string(chris.ID), "signature checked", "mesh.message", "hello", "Let them in", "Only this message", "Approve this conversation", "Reject", "Block"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	path := link(t, body, "approvals/ask_")
	form := choices(t, p.must(path), acl.Approve)
	if ask := onlyAsk(t, sarah); form.Get("hash") != ask.Hash {
		t.Errorf("the form names %s, want %s", form.Get("hash"), ask.Hash)
	}
	other := url.Values{"hash": {strings.Repeat("0", 64)}, "choice": {"approve"}}
	if status, body := p.post(path, other); status != http.StatusConflict || !goldentest.Page(t, "another hash", body) {
		t.Errorf("another hash: %d", status)
	}
	if status, _ := p.post(path, url.Values{"hash": form["hash"], "choice": {"perhaps"}}); status != http.StatusBadRequest {
		t.Errorf("another choice: %d", status)
	}
	status, body := p.post(path, form)
	if status != http.StatusOK || !strings.Contains(body, "Let in.") || !strings.Contains(body, `name="action" value="unblock"`) {
		t.Errorf("approve: %d\n%s", status, body)
	}
	final := meshtest.Post(t, sarah.URL, raw)
	if final.Message(t, sarah).Action() != wire.ActionReceived {
		t.Errorf("the sender's repeat: %s", final.Body)
	}
	if body := p.must("approvals?state=approved"); !strings.Contains(body, "by") || !strings.Contains(body, "page") {
		t.Errorf("the list of approved ones does not say by whom:\n%s", body)
	}
}

// TestPageShowsPlainCharacters: what was sent appears without the escapes of the stored JSON, also the second message of
// a sender.
func TestPageShowsPlainCharacters(t *testing.T) {
	_, sarah, p, chris, _ := newHeldPage(t)
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"R&D <plan>"}}`))
	must(t, meshtest.Post(t, sarah.URL, raw), http.StatusAccepted)
	body := p.must(link(t, p.must("approvals"), "approvals/ask_"))
	if want := "&#34;body&#34;: &#34;R&amp;D &lt;plan&gt;&#34;"; !strings.Contains(body, want) {
		t.Errorf("the page lacks %s:\n%s", want, body)
	}
}

// TestPageTwoTabs: of two tabs that decide the same question, the second one shows what the first decided.
func TestPageTwoTabs(t *testing.T) {
	_, sarah, p, _, _ := newHeldPage(t)
	path := link(t, p.must("approvals"), "approvals/ask_")
	form := choices(t, p.must(path), acl.Reject)
	if status, _ := p.post(path, form); status != http.StatusOK {
		t.Fatalf("reject: %d", status)
	}
	form.Set("choice", "approve")
	status, body := p.post(path, form)
	if status != http.StatusConflict || !goldentest.Page(t, "the second tab", body) {
		t.Errorf("the second tab: %d\n%s", status, body)
	}
	if strings.Contains(body, `name="choice"`) {
		t.Error("what is decided can be decided again")
	}
	if n := len(pendingAsks(t, sarah)); n != 0 {
		t.Errorf("%d wait", n)
	}
}

func TestPageApprovalAfterABlock(t *testing.T) { // THREATS 30
	_, sarah, p, chris, _ := newHeldPage(t)
	path := link(t, p.must("approvals"), "approvals/ask_")
	form := choices(t, p.must(path), acl.Approve)
	if status, _ := p.post("people", url.Values{"peer": {string(chris.ID)}, "action": {"block"}}); status != http.StatusOK {
		t.Fatalf("block: %d", status)
	}
	if status, body := p.post(path, form); status != http.StatusConflict || !goldentest.Page(t, "approve", body) {
		t.Errorf("approve after a block: %d\n%s", status, body)
	}
	if n := len(pendingAsks(t, sarah)); n != 1 {
		t.Errorf("%d wait, want 1", n)
	}
}

// TestPageSaysWhatWasTakenBack: a withdrawn hold is shown as withdrawn and cannot be decided.
func TestPageSaysWhatWasTakenBack(t *testing.T) {
	_, sarah, p, chris, raw := newHeldPage(t)
	path := link(t, p.must("approvals"), "approvals/ask_")
	form := choices(t, p.must(path), acl.Approve)
	first, err := wire.ParseObject(raw)
	if err != nil {
		t.Fatal(err)
	}
	back := chris.Draft(sarah.ID(), wire.Deliver, `{"action":"withdraw"}`)
	back.Conversation = wire.ConversationID(first.GetStr("conversation_id"))
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(back)), http.StatusOK)
	if status, body := p.post(path, form); status != http.StatusConflict || !goldentest.Page(t, "approve", body) {
		t.Errorf("approve what was withdrawn: %d\n%s", status, body)
	}
}

func TestPageLargeMessageIsReadFirst(t *testing.T) { // THREATS 30: what is approved was shown
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Approval))
	chris := mesh.Stranger("chris")
	long := strings.Repeat("x", 255<<10)
	payload := fmt.Sprintf(`{"action":"deliver","message":{"body":%q}}`, long+" the end")
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, payload))), http.StatusAccepted)
	p := servePage(t, sarah)
	body := p.must("approvals")
	if strings.Contains(body, `name="choice"`) {
		t.Error("a list decides about what it does not show whole")
	}
	whole := p.must(link(t, body, "approvals/ask_"))
	choices(t, whole, acl.Approve)
	if !strings.Contains(whole, long+" the end") {
		t.Error("its own page does not show it whole")
	}
}
