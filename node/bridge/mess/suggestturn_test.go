package mess

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestSuggestionsToTheOwner: a suggestion about a request of the owner waits in the inbox, and the owner's answer there
// is the decision.
func TestSuggestionsToTheOwner(t *testing.T) {
	const why = "it is faster"
	for kind, c := range map[string]struct {
		proposed string
		want     thread.Code
	}{
		"merge":       {"{intent: both}", thread.Superseded},
		"split":       {"[the top, the bottom]", thread.Superseded},
		"delegate":    {"{executor: eve}", thread.Delegated},
		"defer":       {"{until: 2h}", thread.Waiting},
		"alternative": {"tea", thread.Claimed},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			home := newMeshNode(t, meshtest.New(t), "home", nil)
			home.executor("bob")
			home.executor("eve")
			for _, yes := range []bool{true, false} {
				ref, about := home.request(thread.OwnerID, "{intent: look into the fridge}"), ""
				if kind == "merge" {
					about = ", " + home.request(thread.OwnerID, "{intent: look into the cellar}")
				}
				home.status("bob", ref, "claimed")
				home.do("bob", "- suggestion: {id: s, type: "+kind+", re: ["+ref+about+"], proposed: "+c.proposed+", reason: "+why+"}\n")
				item := home.task(ref, "suggestion/1")
				if s := string(item.Payload); item.State != owner.ItemNew || item.PeerName != "bob" || item.Verified != "bearer" ||
					!strings.Contains(s, `"action":"suggestion"`) || !strings.Contains(s, kind) || !strings.Contains(s, why) {
					t.Errorf("item of %s: %s", item.PeerName, s)
				}
				notices, _, err := home.node.Notices.List(t.Context(), "", 100, time.Now())
				if err != nil || !slices.ContainsFunc(notices, func(n notify.Notice) bool {
					return strings.Contains(n.Title, ref) && strings.Contains(n.Title, "suggest") && strings.Contains(n.Text, "accept or decline it on the MESS page")
				}) {
					t.Errorf("notices = %+v, %v", notices, err)
				}
				for _, payload := range []string{`{}`, text("yes"), `{"action":"claim"}`, `{"answers":{"s":"yes"}}`, `{"mess":[{"reply":{"confirm":true}}]}`,
					`{"mess":[{"answer":{"value":"yes"}}]}`, `{"mess":[{"cancel":{}}]}`, `{"mess":[{"reply":{"re":"s","accept":true}}]}`} {
					if body := home.reply(item.ID, payload, 400); !goldentest.Says(t, payload, strings.ReplaceAll(body, ref, "REF")) {
						t.Errorf("%s: %s", payload, body)
					}
				}
				if !yes {
					home.reply(item.ID, `{"action":"decline","reason":"as I said"}`, 200)
					home.waitItem(item, owner.ItemAnswered)
					home.want(ref, thread.Claimed)
					continue
				}
				home.reply(item.ID, `{"action":"accept"}`, 200)
				home.waitItem(item, owner.ItemAnswered)
				th := home.want(ref, c.want)
				if th.Suggestions[0].Decided != "accepted" {
					t.Errorf("decided: %q", th.Suggestions[0].Decided)
				}
				home.reply(item.ID, `{"action":"decline"}`, 409)
			}
		})
	}
}

// TestSuggestionsInTurn: of several suggestions the newest is asked first. A yes is for the suggestion that was shown,
// and more urgent questions come first.
func TestSuggestionsInTurn(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.do("bob", "- suggestion: {id: one, type: alternative, re: "+ref+", proposed: tea}\n")
	first := home.task(ref, "suggestion/1")
	home.do("bob", "- suggestion: {id: two, type: alternative, re: "+ref+", proposed: {intent: coffee}}\n")
	home.reply(first.ID, `{"action":"accept"}`, 409)
	second := home.task(ref, "suggestion/2")
	home.waitItem(first, owner.ItemWithdrawn)
	home.status("bob", ref, "claimed")
	home.status("bob", ref, "needs_input, questions: [{field: shelf, question: Which shelf?}]")
	home.reply(second.ID, `{"action":"accept"}`, 409)
	asked := home.task(ref, "answer/5")
	home.reply(asked.ID, text("top"), 200)
	second = home.task(ref, "suggestion/2")
	home.reply(second.ID, `{"mess":[{"reply":{"accept":false}}]}`, 200)
	again := home.task(ref, "suggestion/1")
	home.do(thread.OwnerID, "- reply: {re: one, accept: true}\n") // elsewhere
	home.waitItem(again, owner.ItemAnswered)
	th := home.want(ref, thread.InProgress)
	if got := []string{th.Suggestions[0].Decided, th.Suggestions[1].Decided}; !slices.Equal(got, []string{"accepted", "refused"}) {
		t.Errorf("decided: %v", got)
	}
	home.do("bob", "- suggestion: {id: three, type: alternative, re: "+ref+"}\n")
	last := home.task(ref, "suggestion/3")
	home.do("bob", "- response: {re: "+ref+", content: [seen]}\n")
	home.waitItem(last, owner.ItemWithdrawn)
}

// TestSuggestionsToOthers: a suggestion about somebody else's request is not in the owner's inbox, though the owner may
// decide about it.
func TestSuggestionsToOthers(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	ref := home.request("claude", "{intent: look}")
	home.task(ref, "work/0")
	home.do("bob", "- suggestion: {id: s, type: alternative, re: "+ref+", proposed: tea}\n")
	home.task(ref, "work/0")
}
