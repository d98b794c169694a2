package mess

import (
	"slices"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// A yes to what an executor asked first is none to what it asks by the time that the owner answers.
func TestConfirmationIsNotSwapped(t *testing.T) {
	home := newParty(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	ref := home.request(ownerID, "{intent: look into the fridge}")
	home.status("bob", ref, "claimed")
	var asked []acl.Ask
	ask := func(action string) {
		t.Helper()
		home.status("bob", ref, "needs_confirmation, action: "+action)
		n := len(asked) + 1
		eventually(t, "the question to the owner", func() bool {
			asks, _, err := home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
			for _, a := range asks {
				if !slices.ContainsFunc(asked, func(had acl.Ask) bool { return had.ID == a.ID }) {
					asked = append(asked, a)
				}
			}
			return err == nil && len(asked) == n
		})
	}
	ask("buy milk")
	ask("sell the house")
	if _, err := home.node.Asks().Decide(t.Context(), asked[0].ID, asked[0].Hash, acl.Approve, "test", time.Now()); err == nil {
		t.Error("the yes to the milk sold the house")
	}
	home.want(ref, NeedsConfirmation)
	if _, err := home.node.Asks().Decide(t.Context(), asked[1].ID, asked[1].Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	home.want(ref, InProgress)
}
