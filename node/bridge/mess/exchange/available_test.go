package exchange

import (
	"slices"
	"testing"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestAvailableCapabilities: a query for capabilities also returns those of approved executors.
func TestAvailableCapabilities(t *testing.T) {
	l := newLab(t)
	list, err := registry.ParseCapabilities([]byte("id: take-photo\ndescription: Photos\ntags: [visual]\n"))
	if err != nil || l.Executors.AddCapabilities(t.Context(), list) != nil {
		t.Fatal(err)
	}
	l.executor("bob", "take-photo", "knife")
	l.Executors.Publish(registry.Update{Executors: []*registry.Executor{{Account: credential.Account{ID: "eve", Pending: true}, Capabilities: []thread.Need{{ID: "poison"}}}}})
	ask := func(query string) (ids []string) {
		t.Helper()
		for _, e := range l.do("alice", "- query: "+query+"\n").Answers {
			content, _ := e.Body.Get("content")
			data, _ := content.At(0).Get("structured")
			found, _ := data.Get("capabilities")
			for c := range found.Elems() {
				ids = append(ids, c.GetStr("id")+":"+c.GetStr("description"))
			}
		}
		return ids
	}
	if got := ask("{type: capabilities}"); !slices.Equal(got, []string{"knife:", "take-photo:Photos"}) {
		t.Errorf("capabilities: %q", got)
	}
	if got := ask("{type: capabilities, filter: {tags: [visual]}}"); !slices.Equal(got, []string{"take-photo:Photos"}) {
		t.Errorf("with a tag: %q", got)
	}
	l.executor("bob")
	if got := ask("{type: capabilities}"); !slices.Equal(got, []string{"take-photo:Photos"}) {
		t.Errorf("when nobody claims it any more: %q", got)
	}
}
