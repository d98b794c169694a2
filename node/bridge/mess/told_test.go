package mess

import (
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// told waits for an event about the approval queue, as the page that is open gets it.
func told(t *testing.T, events <-chan node.Event, state string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case e := <-events:
			if e.Topic == node.TopicApprovals && e.State == state {
				return
			}
		case <-deadline:
			t.Fatalf("nobody was told that a question is %s", state)
		}
	}
}

// noticesOf counts the owner's notices of a kind that say something.
func (p *party) noticesOf(kind, text string) (n int) {
	p.t.Helper()
	list, _, err := p.node.Notices.List(p.t.Context(), "", 1000, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, notice := range list {
		if notice.Kind == kind && strings.Contains(notice.Text, text) {
			n++
		}
	}
	return n
}

// Whatever the exchange asks, the owner is told, once, and an open page sees it come and go.
func TestOwnerIsToldOfQuestions(t *testing.T) {
	home := newParty(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	events, stop := home.node.Watch()
	defer stop()
	ref := home.request(ownerID, "{intent: look into the fridge}")
	home.status("bob", ref, "needs_confirmation, action: eat it")
	told(t, events, "pending")
	if n := home.noticesOf("approval", "asks you to confirm"); n != 1 {
		t.Errorf("%d notices of the question, want one", n)
	}
	if n := home.noticesOf("mess", ""); n != 0 {
		t.Errorf("and %d beside it", n)
	}
	home.do(ownerID, "- reply: {re: "+ref+", confirm: false}\n")
	told(t, events, "withdrawn")
}
