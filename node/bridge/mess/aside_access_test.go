package mess

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// closeWith closes the conversation in which a thread was sent, and says something with it.
func (p *party) closeWith(ref string, to wire.AgentID, list string) {
	p.t.Helper()
	v, err := wire.Parse([]byte(`{"action":"close","status":"failed","reason":"no_longer_needed","mess":` + list + `}`))
	if err != nil {
		p.t.Fatal(err)
	}
	conv := p.thread(ref).Peers[string(to)].Conv
	if _, err := p.bridge.cfg.Sender.SendLetter(p.t.Context(), Letter{To: to, Conv: wire.ConversationID(conv), Intent: Intent, Payload: v}); err != nil {
		p.t.Fatal(err)
	}
}

// A close opens no thread: whose requests the owner wants to see first would have others carried out unseen.
func TestCloseOpensNoThread(t *testing.T) {
	home, away := pair(t, acl.Approval)
	ref := home.request("client", "{intent: look into the fridge}")
	home.reaches(ref, Held)
	home.closeWith(ref, away.node.ID(), `[{"request":{"intent":"empty the fridge"}}]`)
	eventually(t, "the close", func() bool { // it takes the question back
		asks, _, err := away.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 1, time.Now())
		return err == nil && len(asks) == 0
	})
	eventually(t, "the end of what was said aside", func() bool {
		page, err := away.bridge.x.records.List(t.Context(), nsAside, "", "", 1, time.Now())
		return err == nil && len(page.Records) == 0
	})
	if page, err := away.List(t.Context(), Owner("test"), "", position{}, 10); err != nil || len(page.Threads) != 0 {
		t.Errorf("%d threads, %v", len(page.Threads), err)
	}
}
