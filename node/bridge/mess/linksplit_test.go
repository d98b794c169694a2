package mess

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestSplitOfARequestFromALinkIsMadeOnce: a suggestion about a request from behind a link is carried out only by the
// exchange of that request: a split makes its parts once.
func TestSplitOfARequestFromALinkIsMadeOnce(t *testing.T) {
	a := newForeignLink(t, nil)
	a.home.executor("dave")
	there, here, _ := a.offerRequest(`{"intent":"mow and rake"}`)
	a.home.status("dave", here, "claimed")
	eventually(t, "the claim over there", func() bool { return a.thread(there).Holder == "us" })
	a.home.do("dave", "- suggestion: {id: s1, type: split, re: "+here+", proposed: [{intent: mow}, {intent: rake}], reason: two jobs}")
	eventually(t, "the suggestion over there", func() bool { return a.thread(there).FindSuggestion("s1") != nil })
	if _, err := a.home.try(thread.OwnerID, "- reply: {re: s1, accept: true}"); err == nil {
		t.Error("the owner here said yes in the place of who asked there")
	}
	a.do("carol", "- reply: {re: s1, accept: true}")
	a.wakePoll()
	a.home.waitStatus(here, thread.Cancelled)
	a.home.waitThread("mow")
	a.home.waitThread("rake")
	page, err := a.home.List(t.Context(), exchange.Owner("test"), "", "", 100)
	if err != nil || len(page.Threads) != 3 {
		t.Errorf("%d threads here, want the whole and its two parts: %+v, %v", len(page.Threads), page.Threads, err)
	}
}
