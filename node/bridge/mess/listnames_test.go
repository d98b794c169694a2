package mess

import (
	"context"
	"testing"

	"github.com/agentmesh/agentmesh/node/owner"
)

type fixedNames map[string]owner.PeerNames

func (n fixedNames) NamesOf(_ context.Context, id string) (owner.PeerNames, error) { return n[id], nil }

// TestThreadsHaveNames: the owner's list and view of threads have the names of agents, and others do not get them.
func TestThreadsHaveNames(t *testing.T) {
	s := newHTTPLab(t, nil)
	const chris, ann = "am_0123456789abcdef0123456789abcdef", "am_1123456789abcdef0123456789abcdef"
	s.server.Names = fixedNames{chris: {PeerAlias: "my-chris", PeerName: "chris"}, ann: {PeerName: `an"n`}}
	for _, id := range []string{chris, ann, "agent"} {
		ref := s.request(id, "{intent: look}")
		want := map[string]string{chris: "my-chris", ann: `"an'n"`, "agent": "agent"}[id]
		thread, _ := s.want(200, "", "GET", "/owner/mess/exchange/requests/"+ref, "").Get("thread")
		if got := owner.ShowParty(thread, "requestor_id"); got != want || thread.GetStr("requestor_id") != id {
			t.Errorf("%s is shown as %s, want %s: %s", id, got, want, thread.JSON())
		}
	}
	list, _ := s.want(200, "", "GET", "/owner/mess/exchange/requests", "").Get("threads")
	shown := map[string]bool{}
	for e := range list.Elems() {
		shown[owner.ShowParty(e, "requestor_id")] = true
		if got := owner.ShowParty(e, "executor_id"); got != "-" {
			t.Errorf("no executor is shown as %s", got)
		}
	}
	if len(shown) != 3 || !shown["my-chris"] || !shown[`"an'n"`] {
		t.Errorf("the list shows %v", shown)
	}
	reg := s.want(201, "", "POST", "register", `{"executor_id":"bob","display_name":"Bob","capabilities":[]}`)
	public, _ := s.want(200, reg.GetStr("api_key"), "GET", "requests", "").Get("threads")
	if public.Len() == 0 {
		t.Error("an executor sees no thread")
	}
	for e := range public.Elems() {
		if _, ok := e.Get("peer_names"); ok {
			t.Errorf("an executor gets the owner's names: %s", e.JSON())
		}
	}
}
